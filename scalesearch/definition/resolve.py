"""A study definition made concrete: epochs become examples, and sizes fit the replicas that are really there."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from scalesearch.core.accumulation import Accumulation, AsFewAsFit
from scalesearch.core.axis import Interval
from scalesearch.core.evaluation import EvaluationPlan
from scalesearch.core.parameters import Parameters
from scalesearch.core.quantities import Amount
from scalesearch.core.results import Direction, Objective
from scalesearch.core.schedule import Constant, Linear, Piecewise, Schedule
from scalesearch.core.schedule_space import ConstantSpace, LinearSpace, PiecewiseSpace, ScheduleSpace
from scalesearch.core.space import BatchSizes, SearchSpace
from scalesearch.definition.schema import (
    AmountBounds,
    Bounds,
    MomentumBounds,
    ScheduleSection,
    StudyDefinition,
)
from scalesearch.errors import DefinitionError

DEFAULT_MOMENTUM = 0.9
_SGD_HAS_NONE = 'optimizer "sgd" has no momentum; use "momentum" or "nesterov", or remove the key'

_ToExamples = Callable[[Amount], int]


@dataclass(frozen=True, kw_only=True)
class ResolvedStudy:
    """What a study needs to run, in examples and natural units.

    `objective.target` is None while `target = "baseline"` waits for the baseline to be run.
    """

    name: str
    replicas: int
    aim: Literal["optimum", "curve"] = "optimum"
    train_examples: int
    max_examples: int
    objective: Objective
    target_from_baseline: bool
    space: SearchSpace
    baseline: Parameters | None
    first_evaluation_examples: int
    evaluation_ratio: float

    def evaluation_plan(self, parameters: Parameters, objective: Objective) -> EvaluationPlan:
        """When a trial of `parameters` is evaluated."""
        return EvaluationPlan(
            objective=objective,
            boundaries=parameters.schedule.boundaries,
            first_examples=self.first_evaluation_examples,
            max_interval_examples=self.train_examples,
            end_examples=self.max_examples,
            ratio=self.evaluation_ratio,
        )


def resolve(
    definition: StudyDefinition,
    *,
    replicas: int,
    train_examples: int,
    metrics: Collection[str],
    maximize: Collection[str],
) -> ResolvedStudy:
    """Fit a definition to `replicas` devices, a training split and the workload's metrics.

    `metrics` are the names that the workload measures, `maximize` those of which more is better. Raises
    DefinitionError where the definition does not fit.
    """
    max_examples = definition.trial.max_examples.examples(train_examples=train_examples)

    def examples(amount: Amount) -> int:
        return amount.examples(train_examples=train_examples, max_examples=max_examples)

    space = SearchSpace(
        batch_sizes=_batch_sizes(definition, replicas),
        learning_rate=_interval(definition.search.learning_rate),
        momentum=_momentum(definition),
        schedule=_schedule_space(definition.search.schedule, examples),
        accumulation=_accumulation(definition, replicas),
    )
    return ResolvedStudy(
        name=f"{definition.name}-r{replicas}",
        replicas=replicas,
        aim=definition.search.aim,
        train_examples=train_examples,
        max_examples=max_examples,
        objective=_objective(definition, metrics, maximize),
        target_from_baseline=definition.objective.target == "baseline",
        space=space,
        baseline=_baseline(definition, replicas, space, examples),
        first_evaluation_examples=examples(definition.trial.first_evaluation),
        evaluation_ratio=definition.trial.evaluation_ratio,
    )


def _objective(definition: StudyDefinition, metrics: Collection[str], maximize: Collection[str]) -> Objective:
    section = definition.objective
    if section.metric not in metrics:
        near = difflib.get_close_matches(section.metric, metrics, n=1)
        hint = f"did you mean `{near[0]}`?" if near else "it measures " + ", ".join(sorted(metrics))
        raise DefinitionError(
            f"`objective.metric = {section.metric!r}`: workload {definition.workload.name} does not measure it: {hint}"
        )
    natural: Direction = "maximize" if section.metric in maximize else "minimize"
    target = section.target if isinstance(section.target, float) else None
    return Objective(
        metric=section.metric,
        direction=section.direction or natural,
        target=target,
        minimize=section.minimize,
        crossing=section.crossing,
    )


def _accumulation(definition: StudyDefinition, replicas: int) -> Accumulation:
    accumulation = definition.run.accumulation
    if isinstance(accumulation, int):
        return accumulation
    return AsFewAsFit(replicas=replicas, only_measured=accumulation == "measure")


def _batch_sizes(definition: StudyDefinition, replicas: int) -> BatchSizes:
    bounds = definition.search.global_batch_size
    accumulation = definition.run.accumulation if isinstance(definition.run.accumulation, int) else 1
    divisor = replicas * accumulation
    try:
        return BatchSizes(low=bounds.low, high=bounds.high, multiple_of=bounds.multiple_of, divisor=divisor)
    except ValueError:
        pass
    shared = f"{replicas} replicas" + (f" × {accumulation} micro-batches" if accumulation > 1 else "")
    step = math.lcm(bounds.multiple_of or 1, divisor)
    enough = f"set `high` to at least {-(-bounds.low // step) * step}"
    if bounds.multiple_of is None and divisor & (divisor - 1):
        remedy = f"set `multiple_of = {divisor}`, since no power of two is divisible by {divisor}"
        if bounds.high < step:
            remedy += f", and {enough}"
    else:
        remedy = enough
    multiple = f", multiple_of = {bounds.multiple_of}" if bounds.multiple_of else ""
    raise DefinitionError(
        f"`search.global_batch_size = {{ low = {bounds.low}, high = {bounds.high}{multiple} }}`: no size in it can be "
        f"shared equally by {shared}; {remedy}"
    )


def _momentum(definition: StudyDefinition) -> Interval | None:
    momentum = definition.search.momentum
    if definition.workload.optimizer == "sgd":
        if momentum is not None:
            raise DefinitionError(f"`search.momentum`: {_SGD_HAS_NONE}")
        return None
    if isinstance(momentum, MomentumBounds):
        return Interval(momentum.low, momentum.high)
    if momentum is None and definition.workload.optimizer == "workload":
        return None  # whether it has one is not known
    value = DEFAULT_MOMENTUM if momentum is None else momentum
    return Interval(value, value)


def _interval(value: float | Bounds) -> Interval:
    return Interval(value.low, value.high) if isinstance(value, Bounds) else Interval(value, value)


def _amounts(value: Amount | AmountBounds, examples: _ToExamples, key: str) -> Interval:
    low, high = (value.low, value.high) if isinstance(value, AmountBounds) else (value, value)
    if examples(low) > examples(high):
        raise DefinitionError(f'`{key}`: `low <= high` must hold, but got low = "{low}", high = "{high}"')
    return Interval(examples(low), examples(high))


def _schedule_space(section: ScheduleSection, examples: _ToExamples) -> ScheduleSpace:
    if section.kind == "linear" and section.decay_examples is not None:
        return LinearSpace(
            decay_examples=_amounts(section.decay_examples, examples, "search.schedule.decay_examples"),
            end_factor=_interval(section.end_factor),
        )
    if section.kind == "piecewise" and section.decays > 0 and section.boundaries is not None:
        return PiecewiseSpace(
            decays=section.decays,
            boundaries=_amounts(section.boundaries, examples, "search.schedule.boundaries"),
            decay_factor=_interval(section.decay_factor),
        )
    return ConstantSpace()


def _baseline(
    definition: StudyDefinition, replicas: int, space: SearchSpace, examples: _ToExamples
) -> Parameters | None:
    section = definition.baseline
    if section is None:
        return None
    divisor = space.batch_sizes.divisor
    size = section.global_batch_size
    if size % divisor:
        below, above = size - size % divisor, size - size % divisor + divisor
        choices = f"{below} or {above}" if below else f"{above}"
        raise DefinitionError(
            f"`baseline.global_batch_size = {size}` is not divisible by {divisor} "
            f"(replicas × accumulation): use {choices}"
        )
    schedule: Schedule = Constant(learning_rate=section.learning_rate)
    if section.boundaries:
        boundaries = tuple(examples(b) for b in section.boundaries)
        if list(boundaries) != sorted(set(boundaries)):
            raise DefinitionError(
                f"`baseline.boundaries = {[str(b) for b in section.boundaries]}`: they must be strictly increasing"
            )
        schedule = Piecewise(
            learning_rate=section.learning_rate, decay_factor=section.decay_factor, boundaries=boundaries
        )
    elif section.decay_examples is not None and section.end_factor is not None:
        schedule = Linear(
            learning_rate=section.learning_rate,
            decay_examples=examples(section.decay_examples),
            end_factor=section.end_factor,
        )
    momentum = section.momentum
    if momentum is not None and definition.workload.optimizer == "sgd":
        raise DefinitionError(f"`baseline.momentum = {momentum:g}`: {_SGD_HAS_NONE}")
    if momentum is None and space.momentum is not None:
        momentum = space.momentum.clip(DEFAULT_MOMENTUM)
    return space.accumulated(Parameters(global_batch_size=size, schedule=schedule, momentum=momentum))
