"""What a trial measured and how it ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from scalesearch.core.parameters import Parameters

Goal = Literal["seconds", "steps", "examples", "metric"]
Direction = Literal["minimize", "maximize"]


class Outcome(StrEnum):
    """How a trial ended."""

    REACHED = "REACHED"
    CAPPED = "CAPPED"
    EXHAUSTED = "EXHAUSTED"
    DIVERGED = "DIVERGED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    INTERRUPTED = "INTERRUPTED"
    CRASHED = "CRASHED"


OUTCOME_MEANING: Mapping[Outcome, str] = {
    Outcome.REACHED: "reached the target",
    Outcome.CAPPED: "stopped early: it could no longer win, or had shown what it was run for",
    Outcome.EXHAUSTED: "ran its full length without reaching the target",
    Outcome.DIVERGED: "diverged: the loss became non-finite or climbed far above its own minimum",
    Outcome.OUT_OF_MEMORY: "did not fit in device memory",
    Outcome.INTERRUPTED: "stopped by the budget or by the user",
    Outcome.CRASHED: "ended by a fault of the workload or of its worker",
}


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One evaluation.

    `train_seconds` is the time spent in training steps so far (tracing, evaluation and logging excluded): what
    time to target is made of. `elapsed_seconds` is all the time that the trial has held its devices so far: what
    it costs. `train_loss` is the mean over the steps since the previous measurement (NaN at step 0).
    """

    step: int
    examples: int
    train_seconds: float
    elapsed_seconds: float
    train_loss: float
    metrics: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What a study minimises.

    `metric` must become strictly better than `target` (as in Shallue et al. 2018); `minimize` says what is to be
    small by then. With `minimize = "metric"` there is no target: the metric at the end of a full-length trial counts.
    """

    metric: str
    direction: Direction
    target: float | None
    minimize: Goal

    def better(self, value: float, than: float) -> bool:
        """Whether `value` is strictly better than `than`; NaN never is."""
        return value < than if self.direction == "minimize" else value > than

    def met(self, value: float) -> bool:
        """Whether `value` is strictly better than the target."""
        return self.target is not None and self.better(value, self.target)


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Where the target was crossed: interpolated between the evaluations around it, and the evaluation itself."""

    steps: float
    examples: float
    seconds: float
    evaluation_step: int
    evaluation_examples: int

    def cost(self, goal: Goal) -> float:
        """Cost to target in the unit of `goal` (`seconds`, `steps` or `examples`)."""
        if goal == "metric":
            raise ValueError("a study that minimises its metric has no cost to target")
        return {"seconds": self.seconds, "steps": self.steps, "examples": self.examples}[goal]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a trial spent, whatever its outcome."""

    examples: int = 0
    device_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """A finished trial: everything that accounting, search and recommendation need."""

    number: int
    parameters: Parameters
    seed: int
    outcome: Outcome
    reason: str
    cost: Cost
    reached: Reached | None
    measurements: tuple[Measurement, ...] = ()
    test_metrics: Mapping[str, float] = field(default_factory=dict)
    is_baseline: bool = False
    seconds: float = 0.0
    """Wall-clock seconds from submission to end."""
    ruled_out_steps: float | None = None
    """Steps up to which the learning curve of a trial that was stopped early rules the target out; None: up to its end."""


def crossing(measurements: Sequence[Measurement], objective: Objective) -> Reached | None:
    """Where `objective.metric` first became strictly better than the target, or None.

    Linear interpolation in examples between the evaluation that first met the target and the one before it; never
    before the first step, since before it nothing is learnt.
    """
    if objective.target is None:
        return None
    for i, now in enumerate(measurements):
        value = now.metrics[objective.metric]
        if not objective.met(value):
            continue
        fraction = 1.0
        before = measurements[i - 1] if i else now
        if i:
            previous = before.metrics[objective.metric]
            if math.isfinite(previous) and math.isfinite(value):
                fraction = (previous - objective.target) / (previous - value)
            if before.step == 0:
                fraction = max(fraction, 1.0 / now.step)
        return Reached(
            steps=before.step + fraction * (now.step - before.step),
            examples=before.examples + fraction * (now.examples - before.examples),
            seconds=before.train_seconds + fraction * (now.train_seconds - before.train_seconds),
            evaluation_step=now.step,
            evaluation_examples=now.examples,
        )
    return None
