"""Trains a simulated workload: a generator of measurements, as real training is."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from scalesearch.core.evaluation import EvaluationPlan
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Measurement
from scalesearch.core.schedule import first_step_from
from scalesearch.core.simulate.trajectory import Trajectory
from scalesearch.core.simulate.workload import LOSS, SimulatedWorkload


class SimulatedTrainer:
    """What `MirroredTrainer` is to a workload, on one replica, for a simulated workload. Seconds are simulated ones."""

    replicas = 1

    def __init__(self, workload: SimulatedWorkload) -> None:
        self._workload = workload

    def train(self, parameters: Parameters, *, seed: int, plan: EvaluationPlan) -> Iterator[Measurement]:
        """Yield a measurement at step 0 and at each step of the plan; the same for the same arguments.

        Metrics are `val/loss` and the workload's own. A diverging run becomes infinite or NaN in the end.
        """
        noise, random = self._workload.run_noise, np.random.default_rng(seed)
        speed, level = np.exp([noise.speed, noise.level] * random.standard_normal(2))
        batch = parameters.global_batch_size
        end_step = first_step_from(plan.end_examples, global_batch_size=batch)
        trajectory = Trajectory(self._workload, parameters, end_step=end_step, speed=float(speed))
        measured: list[Measurement] = []
        step: int | None = 0
        before = math.nan
        while step is not None:
            loss = trajectory.loss(step)
            wobble = np.exp(noise.evaluation * random.standard_normal(2))
            measured.append(
                self._measurement(step, batch, loss, 0.5 * (before + loss) * wobble[0], float(level * wobble[1]))
            )
            yield measured[-1]
            before = loss
            step = plan.next_step(measured, global_batch_size=batch)

    def _measurement(self, step: int, batch: int, loss: float, train_loss: float, factor: float) -> Measurement:
        seconds = step * self._workload.step_time(batch)
        metrics = {LOSS: factor * loss, self._workload.metric_name: factor * self._workload.metric_of_loss(loss)}
        return Measurement(
            step=step,
            examples=step * batch,
            train_seconds=seconds,
            elapsed_seconds=seconds,
            train_loss=float(train_loss),
            metrics=metrics,
        )
