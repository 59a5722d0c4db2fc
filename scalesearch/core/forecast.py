"""What more replicas would give: steps to target, which no hardware changes, times what a step takes there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from scalesearch.core.accumulation import micro_batches_that_fit
from scalesearch.core.curve import CurvePoint
from scalesearch.core.parameters import Parameters
from scalesearch.core.schedule import Linear, Piecewise, Schedule
from scalesearch.core.step_time_model import NORMAL_90, StepTimeModel

INTERPOLATION_ERROR = 0.05  # of log steps, half an octave from the nearest measured batch size
WORSE = 1.15  # times the steps that other batch sizes prove possible: not tuned well enough to go by
PAYS = 0.9  # times the seconds: what the next number of replicas must come to, to be worth it

ByModel = Callable[[int], CurvePoint | None]


class Source(StrEnum):
    """How steps to target at a batch size are known."""

    MEASURED = "measured"
    INTERPOLATED = "interpolated"
    EXTRAPOLATED = "extrapolated"


@dataclass(frozen=True, kw_only=True)
class StepsAt:
    """Steps to target at a global batch size with their 90 % interval, and the parameters that need so many."""

    parameters: Parameters
    steps: float
    interval: tuple[float, float]
    source: Source


@dataclass(frozen=True)
class StepsToTarget:
    """S(B) of an old study: as measured, between measured batch sizes, and beyond them as the study's model has it."""

    points: Mapping[int, CurvePoint]
    by_model: ByModel = lambda size: None

    def at(self, size: int) -> StepsAt | None:
        """What is known of a global batch size; None where there is nothing to go by."""
        smaller = max((s for s in self.points if s <= size), default=None)
        larger = min((s for s in self.points if s >= size), default=None)
        if size in self.points:
            return _as_known(self.points[size], Source.MEASURED)
        if smaller is not None and larger is not None:
            return _between(size, smaller, self.points[smaller], larger, self.points[larger])
        beyond = self.by_model(size)
        return _as_known(beyond, Source.EXTRAPOLATED) if beyond else None


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The best global batch size on a number of replicas, and what training to the target takes with it.

    `interval` is the 90 % interval of `seconds`. `speed_up` is over one replica with the batch that is best there;
    `efficiency` is the speed-up per replica, `examples_ratio` what is processed over what one replica needs.
    """

    replicas: int
    steps: StepsAt
    seconds: float
    interval: tuple[float, float]
    is_profiled: bool
    speed_up: float = 1.0
    examples_ratio: float = 1.0

    @property
    def parameters(self) -> Parameters:
        return self.steps.parameters

    @property
    def examples(self) -> float:
        """Examples to target."""
        return self.steps.steps * self.parameters.global_batch_size

    @property
    def device_seconds(self) -> float:
        """Seconds of all replicas together."""
        return self.seconds * self.replicas

    @property
    def efficiency(self) -> float:
        return self.speed_up / self.replicas


def forecasts(
    steps: StepsToTarget,
    model: StepTimeModel,
    *,
    replicas: Sequence[int],
    sizes: Callable[[int], Sequence[int]],
    largest_share: int | None,
    accumulates: bool = False,
) -> list[Forecast]:
    """The best batch size for each number of replicas, ascending; none for one that no batch size suits.

    Args:
        steps: to target, of the old study.
        model: seconds per step.
        replicas: to forecast for.
        sizes: global batch sizes that a number of replicas can share.
        largest_share: examples that fit on a replica at a time, if that is known.
        accumulates: whether a larger share is taken in several micro-batches, rather than left out.
    """
    at: dict[int, StepsAt | None] = {}

    def best(count: int) -> Forecast | None:
        found = []
        for size in sizes(count):
            parts = micro_batches_that_fit(size, replicas=count, largest_share=largest_share) if largest_share else 1
            if parts > 1 and not accumulates:
                continue
            if size not in at:
                at[size] = steps.at(size)
            if (known := at[size]) is not None:
                found.append(_forecast(known, model, replicas=count, accumulation=parts))
        return min(found, key=lambda f: f.seconds, default=None)

    one = best(1)
    rows = (best(count) if count > 1 else one for count in sorted(set(replicas)))
    return [_compared(row, one) for row in rows if row is not None]


def pays_up_to(rows: Sequence[Forecast]) -> int:
    """The number of replicas after which the next one forecast saves less than a tenth of the time."""
    for fewer, more in pairwise(rows):
        if more.seconds > PAYS * fewer.seconds:
            return fewer.replicas
    return rows[-1].replicas


def well_tuned(points: Mapping[int, CurvePoint]) -> dict[int, CurvePoint]:
    """Those points that need no more steps than others prove possible.

    A larger batch, tuned as well, needs no more steps than a smaller one, and a smaller batch no more examples. What a
    study of the optimum only passed through needs far more of both.
    """
    kept = {}
    for size, point in points.items():
        possible = min(other.steps * max(1.0, b / size) for b, other in points.items())
        if point.steps <= WORSE * possible:
            kept[size] = point
    return kept


def _forecast(known: StepsAt, model: StepTimeModel, *, replicas: int, accumulation: int) -> Forecast:
    size = known.parameters.global_batch_size
    per_step = model.seconds(size, replicas=replicas, accumulation=accumulation)
    seconds = known.steps * per_step
    _, slowest = model.interval(size, replicas=replicas, accumulation=accumulation)
    half = math.hypot(math.log(slowest / per_step), _half_width(known.interval))
    return Forecast(
        replicas=replicas,
        steps=replace(known, parameters=replace(known.parameters, accumulation=accumulation)),
        seconds=seconds,
        interval=(seconds * math.exp(-half), seconds * math.exp(half)),
        is_profiled=model.is_measured(replicas),
    )


def _compared(row: Forecast, one: Forecast | None) -> Forecast:
    if one is None:
        return row
    return replace(row, speed_up=one.seconds / row.seconds, examples_ratio=row.examples / one.examples)


def _as_known(point: CurvePoint, source: Source) -> StepsAt:
    return StepsAt(parameters=point.parameters, steps=point.steps, interval=point.interval, source=source)


def _between(size: int, smaller: int, p: CurvePoint, larger: int, q: CurvePoint) -> StepsAt:
    """By interpolation in the logarithms of everything; boundaries as shares of the steps to target."""
    weight = math.log(size / smaller) / math.log(larger / smaller)
    steps = _blend(p.steps, q.steps, weight)
    away = math.log2(size / smaller) if weight < 0.5 else math.log2(larger / size)
    half = math.hypot(
        (1.0 - weight) * _half_width(p.interval) + weight * _half_width(q.interval),
        NORMAL_90 * INTERPOLATION_ERROR * 2.0 * away,
    )
    a, b = p.parameters, q.parameters
    momentum = a.momentum
    if a.momentum is not None and b.momentum is not None:
        momentum = 1.0 - _blend(1.0 - a.momentum, 1.0 - b.momentum, weight)
    examples = steps * size
    schedule = _between_schedules(
        a.schedule, b.schedule, weight, shares=(examples / (p.steps * smaller), examples / (q.steps * larger))
    )
    return StepsAt(
        parameters=Parameters(global_batch_size=size, schedule=schedule, momentum=momentum),
        steps=steps,
        interval=(steps * math.exp(-half), steps * math.exp(half)),
        source=Source.INTERPOLATED,
    )


def _between_schedules(a: Schedule, b: Schedule, weight: float, *, shares: tuple[float, float]) -> Schedule:
    """`shares`: by what the examples of each are multiplied to be those at the size between them."""
    rate = _blend(a.learning_rate, b.learning_rate, weight)
    if isinstance(a, Piecewise) and isinstance(b, Piecewise) and len(a.boundaries) == len(b.boundaries):
        boundaries: list[int] = []
        for x, y in zip(a.boundaries, b.boundaries, strict=True):
            boundary = round(_blend(x * shares[0], y * shares[1], weight))
            boundaries.append(max(boundary, (boundaries or [0])[-1] + 1))
        return replace(a if weight < 0.5 else b, learning_rate=rate, boundaries=tuple(boundaries))
    if isinstance(a, Linear) and isinstance(b, Linear):
        decay = round(_blend(a.decay_examples * shares[0], b.decay_examples * shares[1], weight))
        return replace(a if weight < 0.5 else b, learning_rate=rate, decay_examples=max(decay, 1))
    return replace(a if weight < 0.5 else b, learning_rate=rate)


def _blend(a: float, b: float, weight: float) -> float:
    return math.exp((1.0 - weight) * math.log(a) + weight * math.log(b))


def _half_width(interval: tuple[float, float]) -> float:
    return 0.5 * math.log(interval[1] / interval[0])
