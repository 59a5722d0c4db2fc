"""The search space: named axes for a sampler on one side, `Parameters` in natural units on the other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal

from scalesearch.core.accumulation import Accumulation, AsFewAsFit
from scalesearch.core.axis import Axis, Interval, free_axis
from scalesearch.core.parameters import Parameters
from scalesearch.core.schedule_space import ScheduleSpace


@dataclass(frozen=True, kw_only=True)
class BatchSizes:
    """The global batch sizes searched: powers of two (`multiple_of` None) or multiples; all divisible by `divisor`."""

    low: int
    high: int
    multiple_of: int | None
    divisor: int

    def __post_init__(self) -> None:
        if not self.values():
            raise ValueError(f"no global batch size between {self.low} and {self.high} is divisible by {self.divisor}")

    def values(self) -> tuple[int, ...]:
        """All of them, in ascending order."""
        return _batch_size_values(self)

    def axis(self) -> Axis:
        """An integer exponent or multiple: never a categorical, which could not be widened later."""
        values = self.values()
        if self.multiple_of is None:
            return Axis(
                name="log2_global_batch_size",
                low=values[0].bit_length() - 1,
                high=values[-1].bit_length() - 1,
                integer=True,
            )
        step = math.lcm(self.multiple_of, self.divisor)
        return Axis(
            name=f"global_batch_size_over_{step}",
            low=values[0] // step,
            high=values[-1] // step,
            log=True,
            integer=True,
        )

    def to_axis(self, global_batch_size: int) -> float:
        """The coordinate of a global batch size, unclipped."""
        if self.multiple_of is None:
            return math.log2(global_batch_size)
        return global_batch_size / math.lcm(self.multiple_of, self.divisor)

    def from_axis(self, value: float) -> int:
        """The global batch size of a coordinate."""
        if self.multiple_of is None:
            return int(2 ** round(value))
        return round(value) * math.lcm(self.multiple_of, self.divisor)


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """What is searched. `momentum` None: the optimizer has none; an interval of one point: fixed.

    `largest_that_fits` is the global batch size beyond which memory runs out, if that is known: whatever the bounds are
    moved to, nothing larger is proposed.

    The learning rate is an axis as effective learning rate, lr/(1 − momentum), and momentum as 1 − momentum, both
    logarithmic: the coordinates in which the optimum moves least (Shallue et al. 2018, §4.7).
    """

    batch_sizes: BatchSizes
    learning_rate: Interval
    momentum: Interval | None
    schedule: ScheduleSpace
    accumulation: Accumulation = 1
    largest_that_fits: int | None = None

    def axes(self) -> tuple[Axis, ...]:
        """All dimensions: a fixed number of them, so that joint samplers see one space."""
        slow, fast = (1.0 - self.momentum.low, 1.0 - self.momentum.high) if self.momentum else (1.0, 1.0)
        return (
            self.batch_sizes.axis(),
            Axis(
                name="effective_learning_rate",
                low=self.learning_rate.low / slow,
                high=self.learning_rate.high / fast,
                log=True,
            ),
            *free_axis("one_minus_momentum", Interval(fast, slow)),
            *self.schedule.axes(),
        )

    def parameters(self, at: Mapping[str, float]) -> Parameters:
        """The parameters at the coordinates `at` (one value per axis)."""
        momentum = None
        if self.momentum is not None:
            momentum = 1.0 - at["one_minus_momentum"] if "one_minus_momentum" in at else self.momentum.low
        learning_rate = self.learning_rate.clip(at["effective_learning_rate"] * (1.0 - (momentum or 0.0)))
        size = self.batch_sizes.from_axis(at[self.batch_sizes.axis().name])
        return Parameters(
            global_batch_size=size,
            schedule=self.schedule.schedule(learning_rate, at),
            momentum=momentum,
            accumulation=self.accumulation_at(size),
        )

    def accumulation_at(self, global_batch_size: int) -> int:
        """Micro-batches per replica and step."""
        return (
            self.accumulation.at(global_batch_size) if isinstance(self.accumulation, AsFewAsFit) else self.accumulation
        )

    def accumulated(self, parameters: Parameters) -> Parameters:
        """The same in as many micro-batches as the space has at their batch size."""
        return replace(parameters, accumulation=self.accumulation_at(parameters.global_batch_size))

    @property
    def recommends_accumulated(self) -> bool:
        """Whether batches in several micro-batches may be recommended, rather than measured only."""
        return not (isinstance(self.accumulation, AsFewAsFit) and self.accumulation.only_measured)

    def searched(self) -> tuple[str, ...]:
        """The quantities that are not fixed, by their keys in a study definition's section `search`."""
        keys = [
            "global_batch_size",
            "learning_rate",
            "momentum",
            *(f"schedule.{f.name}" for f in fields(self.schedule)),
        ]
        intervals = {key: self._interval(key) for key in keys}
        return tuple(
            key for key, interval in intervals.items() if interval is not None and interval.low < interval.high
        )

    def interval(self, key: str) -> Interval:
        """Where a searched quantity lies, in its natural unit."""
        interval = self._interval(key)
        assert interval is not None
        return interval

    def _interval(self, key: str) -> Interval | None:
        if key == "global_batch_size":
            sizes = self.batch_sizes.values()
            return Interval(sizes[0], sizes[-1])
        owner = self.schedule if key.startswith("schedule.") else self
        interval = getattr(owner, key.removeprefix("schedule."))
        return interval if isinstance(interval, Interval) else None

    def with_bound(self, key: str, side: Literal["low", "high"], value: float) -> SearchSpace:
        """The space with one bound of a searched quantity moved."""
        if key == "global_batch_size":
            # To a size that is one of the space's: what rounds up at the low side and down at the high one.
            whole = math.ceil(value) if side == "low" else math.floor(value)
            return replace(self, batch_sizes=replace(self.batch_sizes, **{side: whole}))
        moved: dict[str, Any] = {key.removeprefix("schedule."): replace(self.interval(key), **{side: value})}
        if not key.startswith("schedule."):
            return replace(self, **moved)
        return replace(self, schedule=replace(self.schedule, **moved))

    def reaching(self, parameters: Parameters) -> SearchSpace:
        """The space, made just so wide that it holds `parameters`."""
        space = self
        for key in self.searched():
            for value in values_of(parameters, key):
                interval = space.interval(key)
                if value < interval.low:
                    space = space.with_bound(key, "low", value)
                elif value > interval.high:
                    space = space.with_bound(key, "high", value)
        return space

    def nearest(self, parameters: Parameters) -> Parameters:
        """The point of the space that is nearest to `parameters`; no decay becomes a boundary at the upper limit."""
        return self.parameters(self.coordinates(parameters))

    def coordinates(self, parameters: Parameters) -> dict[str, float]:
        """The coordinates nearest to `parameters`; those outside of the space are clipped to its edge."""
        at = {
            self.batch_sizes.axis().name: self.batch_sizes.to_axis(parameters.global_batch_size),
            "effective_learning_rate": parameters.effective_learning_rate,
            "one_minus_momentum": 1.0 - (parameters.momentum or 0.0),
            **self.schedule.coordinates(parameters.schedule),
        }
        return {axis.name: axis.clip(at.get(axis.name, axis.high)) for axis in self.axes()}


def coordinate(key: str, value: float) -> float:
    """Where a value of a searched quantity lies on the scale on which it is searched, which rises with it."""
    return -math.log1p(-value) if key == "momentum" else math.log(value)


def values_of(parameters: Parameters, key: str) -> tuple[float, ...]:
    """What parameters have of a quantity, in its natural unit: none, one, or several decay boundaries."""
    match key:
        case "global_batch_size":
            return (parameters.global_batch_size,)
        case "learning_rate":
            return (parameters.learning_rate,)
        case "momentum":
            return () if parameters.momentum is None else (parameters.momentum,)
    value = getattr(parameters.schedule, key.removeprefix("schedule."), ())
    return value if isinstance(value, tuple) else (value,)


@lru_cache(maxsize=16)
def _batch_size_values(sizes: BatchSizes) -> tuple[int, ...]:
    if sizes.multiple_of is None:
        exponents = range(math.ceil(math.log2(sizes.low)), math.floor(math.log2(sizes.high)) + 1)
        return tuple(2**k for k in exponents if 2**k % sizes.divisor == 0)
    step = math.lcm(sizes.multiple_of, sizes.divisor)
    return tuple(range(-(-sizes.low // step) * step, sizes.high + 1, step))
