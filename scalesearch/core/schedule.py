"""Learning rate as a function of the examples seen; the one place where examples become steps.

A step that starts after `examples` examples uses `rate(examples)`. A boundary belongs to what follows it: the
first step that starts at or after the boundary uses the new rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np


@dataclass(frozen=True)
class Segment:
    """rate(e) = rate + slope · (e − start) from `start` examples on, until the next segment starts."""

    start: int
    rate: float
    slope: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The same learning rate throughout."""

    learning_rate: float
    kind: Literal["constant"] = "constant"

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Examples seen at each decay boundary: none."""
        return ()

    def segments(self) -> tuple[Segment, ...]:
        """The schedule as linear pieces, in order of their start."""
        return (Segment(0, self.learning_rate),)


@dataclass(frozen=True, kw_only=True)
class Piecewise:
    """Multiplied by `decay_factor` at every boundary (in examples seen, strictly increasing)."""

    learning_rate: float
    decay_factor: float
    boundaries: tuple[int, ...]
    kind: Literal["piecewise"] = "piecewise"

    def __post_init__(self) -> None:
        if any(b <= a for a, b in pairwise((0, *self.boundaries))):
            raise ValueError(f"`0 < boundaries[0] < boundaries[1] < …` must hold, but got {self.boundaries}")

    def segments(self) -> tuple[Segment, ...]:
        """The schedule as linear pieces, in order of their start."""
        return tuple(
            Segment(start, self.learning_rate * self.decay_factor**i) for i, start in enumerate((0, *self.boundaries))
        )


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Linear from `learning_rate` to `end_factor` times it over `decay_examples`, then constant.

    Shallue et al. 2018: η(t) = η0 − (1 − α) η0 t/T for t ≤ T, then α η0.
    """

    learning_rate: float
    decay_examples: int
    end_factor: float
    kind: Literal["linear"] = "linear"

    def __post_init__(self) -> None:
        if self.decay_examples <= 0:
            raise ValueError(f"`decay_examples > 0` must hold, but got {self.decay_examples}")

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Examples seen where the linear decay ends."""
        return (self.decay_examples,)

    def segments(self) -> tuple[Segment, ...]:
        """The schedule as linear pieces, in order of their start."""
        end = self.learning_rate * self.end_factor
        slope = (end - self.learning_rate) / self.decay_examples
        return (Segment(0, self.learning_rate, slope), Segment(self.decay_examples, end))


Schedule = Constant | Piecewise | Linear


def rate(schedule: Schedule, examples: int) -> float:
    """Learning rate of the step that starts after `examples` examples."""
    return float(rates(schedule, np.array(examples)))


def rates(schedule: Schedule, examples: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Learning rates (float64) of the steps that start after `examples` examples, any shape."""
    segments = schedule.segments()
    starts = np.array([s.start for s in segments])
    index = np.searchsorted(starts, examples, side="right") - 1
    at_start = np.array([s.rate for s in segments])[index]
    slope = np.array([s.slope for s in segments])[index]
    result: np.ndarray[Any, Any] = at_start + slope * (examples - starts[index])
    return result


def first_step_from(examples: int, *, global_batch_size: int) -> int:
    """The first step (counted from 0) that starts at or after `examples` examples."""
    return -(-examples // global_batch_size)
