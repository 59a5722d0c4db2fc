"""What a trial measured and how it ended."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from scalesearch.core.noise_scale import GradientNoise
from scalesearch.core.parameters import Parameters

Goal = Literal["seconds", "steps", "examples", "metric"]
Direction = Literal["minimize", "maximize"]
CrossingRule = Literal["smoothed", "first"]


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
    Outcome.INTERRUPTED: "stopped by the budget or the user, or its driver or worker was killed; a new trial continues it",
    Outcome.CRASHED: "ended by a fault of the workload or of its worker",
}


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One evaluation.

    `train_seconds` is the time spent in training steps so far (tracing, evaluation and logging excluded): what
    time to target is made of. `elapsed_seconds` is all the time that the trial has held its devices so far: what
    it costs. `train_loss` is the mean over the steps since the previous measurement (NaN at step 0). `noise` is that of
    the gradient at these weights, where it was sampled.
    """

    step: int
    examples: int
    train_seconds: float
    elapsed_seconds: float
    train_loss: float
    metrics: Mapping[str, float]
    noise: GradientNoise | None = None


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What a study minimises.

    `metric` must become strictly better than `target` (as in Shallue et al. 2018); `minimize` says what is to be
    small by then. With `minimize = "metric"` there is no target: the metric at the end of a full-length trial counts.
    `crossing` says how the metric is read: "smoothed" as the centred median of three evaluations, so that one lucky
    evaluation does not count; "first" as each evaluation gives it (the paper's rule).
    """

    metric: str
    direction: Direction
    target: float | None
    minimize: Goal
    crossing: CrossingRule = "smoothed"

    def better(self, value: float, than: float) -> bool:
        """Whether `value` is strictly better than `than`; NaN never is."""
        return value < than if self.direction == "minimize" else value > than

    def met(self, value: float) -> bool:
        """Whether `value` is strictly better than the target."""
        return self.target is not None and self.better(value, self.target)


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Where the target was crossed: interpolated between the evaluations around it, and the evaluation that showed it."""

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
    """By the rule of the study's objective."""
    first_reached: Reached | None = None
    """By the paper's rule, whatever the study's is and however the trial ended."""
    measurements: tuple[Measurement, ...] = ()
    test_metrics: Mapping[str, float] = field(default_factory=dict)
    is_baseline: bool = False
    why: str = ""
    """What the search ran it for."""
    seconds: float = 0.0
    """Wall-clock seconds from submission to end."""
    ruled_out_steps: float | None = None
    """Steps up to which the learning curve of a trial that was stopped early rules the target out; None: up to its end."""
    shared_steps: int = 0
    """Steps that another trial trained and paid for, from whose snapshot this one went on; `measurements` holds them."""

    @property
    def examples(self) -> int:
        """How far it came, what it shares with another trial included."""
        return self.shared_steps * self.parameters.global_batch_size + self.cost.examples


def crossing(measurements: Sequence[Measurement], objective: Objective) -> Reached | None:
    """Where `objective.metric` became strictly better than the target by the objective's rule, or None.

    Smoothed, the metric at an evaluation is the median of it and its two neighbours, so a crossing is known one
    evaluation later; the evaluation before training stands for itself. Where the metric improves steadily, and at the
    sudden drop of a decay, medians are the values themselves.
    """
    if objective.crossing == "first":
        return first_crossing(measurements, objective)
    values = _values(measurements, objective)
    medians = [statistics.median(values[i - 1 : i + 2]) for i in range(1, len(values) - 1)]
    return _first_met(measurements, [*values[:1], *medians], objective, known_later=1)


def first_crossing(measurements: Sequence[Measurement], objective: Objective) -> Reached | None:
    """Where an evaluation first was strictly better than the target, as in Shallue et al. 2018, or None."""
    return _first_met(measurements, _values(measurements, objective), objective, known_later=0)


def _values(measurements: Sequence[Measurement], objective: Objective) -> list[float]:
    """The metric at each evaluation, NaN as the worst of values: sorting has no place for it."""
    worst = math.inf if objective.direction == "minimize" else -math.inf
    values = (m.metrics[objective.metric] for m in measurements)
    return [worst if math.isnan(v) else v for v in values]


def _first_met(
    measurements: Sequence[Measurement], values: Sequence[float], objective: Objective, *, known_later: int
) -> Reached | None:
    """The first of `values` that meets the target, which the evaluation `known_later` later shows.

    Linear interpolation in examples between it and the one before it; never before the first step, since before it
    nothing is learnt.
    """
    i = next((i for i, value in enumerate(values) if objective.met(value)), None)
    if i is None or objective.target is None:
        return None
    now, before = measurements[i], measurements[max(i - 1, 0)]
    fraction = 1.0
    if i and math.isfinite(values[i - 1]) and math.isfinite(values[i]):
        fraction = (values[i - 1] - objective.target) / (values[i - 1] - values[i])
    if i and before.step == 0:
        fraction = max(fraction, 1.0 / now.step)
    shown = measurements[i + known_later] if i else now
    return Reached(
        steps=before.step + fraction * (now.step - before.step),
        examples=before.examples + fraction * (now.examples - before.examples),
        seconds=before.train_seconds + fraction * (now.train_seconds - before.train_seconds),
        evaluation_step=shown.step,
        evaluation_examples=shown.examples,
    )
