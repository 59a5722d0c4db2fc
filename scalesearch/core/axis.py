"""One dimension of a search space."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """A closed interval; low == high pins a value."""

    low: float
    high: float

    def clip(self, value: float) -> float:
        """The point of the interval that is nearest to `value`."""
        return min(max(value, self.low), self.high)


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One dimension as a sampler sees it: uniform in the value or, with `log`, in its logarithm."""

    name: str
    low: float
    high: float
    log: bool = False
    integer: bool = False

    def clip(self, value: float) -> float:
        """The value of the axis that is nearest to `value`."""
        value = min(max(value, self.low), self.high)
        return round(value) if self.integer else value


def free_axis(name: str, interval: Interval) -> tuple[Axis, ...]:
    """A logarithmic axis, or none where the interval pins the value."""
    if interval.low == interval.high:
        return ()
    return (Axis(name=name, low=interval.low, high=interval.high, log=True),)
