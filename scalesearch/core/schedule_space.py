"""The schedules that are searched: their axes for a sampler, and the schedule at a point of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from scalesearch.core.axis import Axis, Interval, free_axis
from scalesearch.core.schedule import Constant, Linear, Piecewise, Schedule


@dataclass(frozen=True, kw_only=True)
class ConstantSpace:
    """No decay."""

    def axes(self) -> tuple[Axis, ...]:
        return ()

    def schedule(self, learning_rate: float, at: Mapping[str, float]) -> Schedule:
        return Constant(learning_rate=learning_rate)

    def coordinates(self, schedule: Schedule) -> dict[str, float]:
        return {}


@dataclass(frozen=True, kw_only=True)
class PiecewiseSpace:
    """`decays` ordered boundaries in `boundaries` (examples); a boundary past a run's end is no decay.

    The first boundary is an axis of its own; each further one is the fraction of the way, in log examples, from the
    boundary before it to the upper limit, so that every coordinate vector is an ordered schedule.
    """

    decays: int
    boundaries: Interval
    decay_factor: Interval

    def axes(self) -> tuple[Axis, ...]:
        first = Axis(name="decay_boundary_1", low=self.boundaries.low, high=self.boundaries.high, log=True)
        further = (Axis(name=f"decay_boundary_{i}_fraction", low=0.0, high=1.0) for i in range(2, self.decays + 1))
        return (first, *further, *free_axis("decay_factor", self.decay_factor))

    def schedule(self, learning_rate: float, at: Mapping[str, float]) -> Schedule:
        boundaries: list[int] = []
        for i in range(1, self.decays + 1):
            before = boundaries[-1] if boundaries else 0
            if i == 1:
                boundary = round(at["decay_boundary_1"])
            else:
                room = math.log(max(self.boundaries.high / before, 1.0))
                boundary = round(before * math.exp(room * at[f"decay_boundary_{i}_fraction"]))
            latest = int(self.boundaries.high) - (self.decays - i)  # leaves an example to each boundary after it
            boundaries.append(max(min(boundary, latest), before + 1))
        return Piecewise(
            learning_rate=learning_rate,
            decay_factor=at.get("decay_factor", self.decay_factor.low),
            boundaries=tuple(boundaries),
        )

    def coordinates(self, schedule: Schedule) -> dict[str, float]:
        given = list(schedule.boundaries[: self.decays])
        boundaries = given + [self.boundaries.high] * (self.decays - len(given))
        at = {"decay_boundary_1": float(boundaries[0])}
        for i in range(2, self.decays + 1):
            before, boundary = self.boundaries.clip(boundaries[i - 2]), self.boundaries.clip(boundaries[i - 1])
            room = math.log(self.boundaries.high / before)
            at[f"decay_boundary_{i}_fraction"] = math.log(boundary / before) / room if room > 0 else 1.0
        if isinstance(schedule, Piecewise):
            at["decay_factor"] = schedule.decay_factor
        return at


@dataclass(frozen=True, kw_only=True)
class LinearSpace:
    """Linear decay to a fraction of the learning rate over a number of examples, then constant (the paper's)."""

    decay_examples: Interval
    end_factor: Interval

    def axes(self) -> tuple[Axis, ...]:
        return (*free_axis("decay_examples", self.decay_examples), *free_axis("end_factor", self.end_factor))

    def schedule(self, learning_rate: float, at: Mapping[str, float]) -> Schedule:
        return Linear(
            learning_rate=learning_rate,
            decay_examples=max(1, round(at.get("decay_examples", self.decay_examples.low))),
            end_factor=at.get("end_factor", self.end_factor.low),
        )

    def coordinates(self, schedule: Schedule) -> dict[str, float]:
        if isinstance(schedule, Linear):
            return {"decay_examples": float(schedule.decay_examples), "end_factor": schedule.end_factor}
        return {"decay_examples": self.decay_examples.high, "end_factor": self.end_factor.high}


ScheduleSpace = ConstantSpace | PiecewiseSpace | LinearSpace
