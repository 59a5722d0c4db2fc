"""Ground truth: simulated workloads that train in milliseconds and whose true optimum is known."""

from scalesearch.core.simulate.trainer import SimulatedTrainer
from scalesearch.core.simulate.workload import SimulatedWorkload, workload_from_table

__all__ = ["SimulatedTrainer", "SimulatedWorkload", "workload_from_table"]
