"""Trains a simulated workload: a generator of measurements, as real training is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalesearch.core.evaluation import EvaluationPlan
from scalesearch.core.parameters import Parameters
from scalesearch.core.prefix import shared_steps
from scalesearch.core.results import Measurement
from scalesearch.core.schedule import first_step_from
from scalesearch.core.simulate.trajectory import Position, Trajectory
from scalesearch.core.simulate.workload import LOSS, SimulatedWorkload
from scalesearch.errors import SnapshotError


@dataclass(frozen=True, kw_only=True, eq=False)
class SimulatedSnapshot:
    """The state of a run just after a measurement: where its curve is, and what its random numbers go on from."""

    parameters: Parameters
    seed: int
    measurement: Measurement
    position: Position
    loss: float
    random_state: Mapping[str, Any]


class SimulatedTrainer:
    """What `MirroredTrainer` is to a workload, on one replica, for a simulated workload. Seconds are simulated ones."""

    replicas = 1

    def __init__(self, workload: SimulatedWorkload) -> None:
        self._workload = workload
        self._snapshot: SimulatedSnapshot | None = None

    def train(
        self, parameters: Parameters, *, seed: int, plan: EvaluationPlan, start: SimulatedSnapshot | None = None
    ) -> Iterator[Measurement]:
        """Yield a measurement at step 0 and at each step of the plan; the same for the same arguments.

        With `start`, go on from that snapshot instead; the first measurement is the one after the snapshot's. All is bit
        for bit as in an uninterrupted run (but for a curvature that sharpens, whose approximation depends on the schedule).
        Metrics are `val/loss` and the workload's own. A diverging run becomes infinite or NaN in the end.

        Raises:
            SnapshotError: a run with these parameters and this seed does not pass through `start`.
        """
        if start is not None:
            _check_on_the_way(start, parameters, seed)
        noise, random = self._workload.run_noise, np.random.default_rng(seed)
        speed, level = np.exp([noise.speed, noise.level] * random.standard_normal(2))
        batch = parameters.global_batch_size
        end_step = first_step_from(plan.end_examples, global_batch_size=batch)
        trajectory = Trajectory(self._workload, parameters, end_step=end_step, speed=float(speed))
        before = math.nan
        step: int | None = 0
        if start is not None:
            trajectory.position, before = start.position, start.loss
            random.bit_generator.state = start.random_state
            step = plan.next_step([start.measurement], global_batch_size=batch)
        while step is not None:
            loss = trajectory.loss(step)
            wobble = np.exp(noise.evaluation * random.standard_normal(2))
            now = self._measurement(step, batch, loss, 0.5 * (before + loss) * wobble[0], float(level * wobble[1]))
            self._snapshot = SimulatedSnapshot(
                parameters=parameters,
                seed=seed,
                measurement=now,
                position=trajectory.position,
                loss=loss,
                random_state=random.bit_generator.state,
            )
            yield now
            before = loss
            step = plan.next_step([now], global_batch_size=batch)

    def snapshot(self) -> SimulatedSnapshot:
        """The state of the running trial, or of the last one, at the measurement that it yielded last."""
        if self._snapshot is None:
            raise RuntimeError("a snapshot can be taken of a run that has just yielded a measurement only")
        return self._snapshot

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


def _check_on_the_way(start: SimulatedSnapshot, parameters: Parameters, seed: int) -> None:
    step, shared = start.measurement.step, shared_steps(start.parameters, parameters)
    if start.seed != seed or step > shared:
        raise SnapshotError(
            f"a run of {parameters} with seed {seed} does not pass through the snapshot after {step} steps of "
            f"{start.parameters} with seed {start.seed}: they share {shared if start.seed == seed else 0}"
        )
