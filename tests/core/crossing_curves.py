"""A trainer that no sum of decaying modes describes: its learning curves cross.

A rate that is too high makes training slow, not unstable, as in networks with normalised weights; its loss falls fast at
first and slowly later, that at a low rate the other way round, and a decay shortens training without a drop. So what a
curve shows early on says nothing about where it ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scalesearch.core.evaluation import EvaluationPlan
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Measurement
from scalesearch.core.simulate.workload import LOSS, StepTime
from tests.core.simulated import EASY

INITIAL, TARGET = 20.0 * EASY.target, EASY.target
LEAST_STEPS, CRITICAL_BATCH, BEST_RATE = 60.0, 64.0, 0.5
STABLE = 4.0  # times the best rate; beyond, training diverges
NO_DECAY = 0.5  # nats that a run without decay takes longer
BEST_BOUNDARY = 0.75  # of the steps to target
STEP_SECONDS = StepTime(saturation_batch=32.0)


@dataclass(frozen=True)
class CrossingCurves:
    """Runs differ by `speed`, the standard deviation of the logarithm of their steps to target."""

    speed: float = 0.03

    def train(self, parameters: Parameters, *, seed: int, plan: EvaluationPlan) -> Iterator[Measurement]:
        random = np.random.default_rng(seed)
        total = steps_to_target(parameters) * math.exp(self.speed * random.standard_normal())
        shape = min(max(too_high(parameters) ** -0.5, 0.4), 2.0)
        batch = parameters.global_batch_size
        step: int | None = 0
        measured: list[Measurement] = []
        while step is not None:
            loss = (
                INITIAL * (TARGET / INITIAL) ** ((step / total) ** shape)
                if math.isfinite(total)
                else INITIAL * 2.0**step
            )
            loss *= math.exp(0.01 * random.standard_normal())
            seconds = step * STEP_SECONDS(batch)
            measured.append(
                Measurement(
                    step=step,
                    examples=step * batch,
                    train_seconds=seconds,
                    elapsed_seconds=seconds,
                    train_loss=loss,
                    metrics={LOSS: loss},
                )
            )
            yield measured[-1]
            step = plan.next_step(measured, global_batch_size=batch)


def steps_to_target(parameters: Parameters) -> float:
    """Of a run of median speed; infinite if it diverges."""
    high = too_high(parameters)
    if high > STABLE:
        return math.inf
    log_high = math.log(high)
    total = _least_steps(parameters.global_batch_size) * math.exp(math.hypot(log_high, 0.3) - 0.3)
    if not parameters.schedule.boundaries:
        return total * math.exp(NO_DECAY)
    share = parameters.schedule.boundaries[0] / parameters.global_batch_size / total
    late = math.log(share / BEST_BOUNDARY)
    return total * math.exp(min(late, NO_DECAY) if late > 0.0 else 2.0 * (math.hypot(late, 0.2) - 0.2))


def too_high(parameters: Parameters) -> float:
    """The learning rate over the best one at its batch size."""
    share = _least_steps(parameters.global_batch_size) / LEAST_STEPS
    return parameters.learning_rate / (BEST_RATE * share**-0.8)


def seconds_to_target(parameters: Parameters) -> float:
    return steps_to_target(parameters) * STEP_SECONDS(parameters.global_batch_size)


def least_seconds(batch_sizes: tuple[int, ...]) -> float:
    """At the true optimum."""
    return min(_least_steps(b) * STEP_SECONDS(b) for b in batch_sizes)


def _least_steps(batch: int) -> float:
    return float(LEAST_STEPS * (1.0 + (CRITICAL_BATCH / batch) ** 1.5) ** (1.0 / 1.5))
