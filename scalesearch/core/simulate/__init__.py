"""Ground truth: simulated workloads that train in milliseconds and whose true optimum is known."""

from scalesearch.core.simulate.optimum import Decays, Optimum, true_cost, true_curve, true_optimum, true_steps
from scalesearch.core.simulate.trainer import SimulatedTrainer
from scalesearch.core.simulate.workload import SimulatedWorkload, workload_from_table

__all__ = [
    "Decays",
    "Optimum",
    "SimulatedTrainer",
    "SimulatedWorkload",
    "true_cost",
    "true_curve",
    "true_optimum",
    "true_steps",
    "workload_from_table",
]
