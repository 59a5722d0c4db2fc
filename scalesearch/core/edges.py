"""The edge rule: an optimum at an edge of the space widens that edge, once, or is reported for what it is.

All of it is a function of the space as it was given and of the trials, so a search that is continued has the same space. An
edge is open while the leader lies at it and, for good, once a trial has been beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import numpy as np

from scalesearch.core.axis import Interval
from scalesearch.core.parameters import Parameters
from scalesearch.core.proposal import smallest_too_large, space_that_fits
from scalesearch.core.results import Objective, Outcome, TrialResult
from scalesearch.core.space import SearchSpace, coordinate, values_of
from scalesearch.core.surrogate.belief import losses_of
from scalesearch.core.surrogate.stability import Stability, stability_of

WITHIN = 0.05  # of an interval, in the coordinate in which it is searched
FURTHER = 4.0  # how far an edge is widened, as a factor
ROUNDING = 1e-3  # in the same coordinate: what lies beyond an edge by less lies on it

Side = Literal["low", "high"]


class Meaning(StrEnum):
    """What it means that the optimum lies at an edge."""

    WIDENED = "widened"
    UNSTABLE = "unstable"
    MEMORY = "memory"
    LIMIT = "limit"
    TOO_SMALL = "too small"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How far a space may be widened: no batch is larger than the training split, no boundary past a trial's end."""

    train_examples: int
    max_examples: int


@dataclass(frozen=True, kw_only=True)
class Edge:
    """An edge at which the optimum lies, or which has made way for it.

    `key` is that of the study definition, `bound` the edge as it was given there, `reach` where it is widened to.
    """

    key: str
    bound: float
    meaning: Meaning
    reach: float | None
    because: str

    @property
    def sentence(self) -> str:
        """What a user should know about it."""
        given = f"`{self.key} = {_text(self.bound)}`"
        if self.meaning is Meaning.MEMORY:
            return f"the optimum lies at the largest global batch that fits, {_text(self.reach or self.bound)}: {self.because}"
        if self.meaning is Meaning.WIDENED:
            return f"{given} was widened to {_text(self.reach)}: {self.because}"
        at = given if self.reach is None else f"{_text(self.reach)}, to which {given} was widened"
        return f"the optimum lies at {at}: {self.because}"


@dataclass(frozen=True, kw_only=True)
class Edges:
    """The edges of a space as a leader and the trials so far see them; not `widens`: they are only reported."""

    space: SearchSpace
    leader: Parameters
    results: Sequence[TrialResult]
    stability: Stability
    limits: Limits
    widens: bool = True

    def found(self) -> list[Edge]:
        """The edges at which the leader lies, or beyond."""
        return [edge for key, side in self._sides() if (edge := self._edge(key, side)) is not None]

    def widened(self) -> SearchSpace:
        """The space with its open edges moved."""
        space = self.space
        for key, side in self._sides():
            if self.widens and self._is_open(key, side):
                space = space.with_bound(key, side, self._beyond(key, side, _bound(self.space.interval(key), side)))
        return space

    def _sides(self) -> Iterator[tuple[str, Side]]:
        for key in self.space.searched():
            yield key, "low"
            yield key, "high"

    def _is_open(self, key: str, side: Side) -> bool:
        edge = self._edge(key, side)
        return (edge is not None and edge.reach is not None) or self._was_tried_beyond(key, side)

    def _was_tried_beyond(self, key: str, side: Side) -> bool:
        """By a trial that was proposed: a baseline may lie anywhere."""
        tried = (value for r in self.results if not r.is_baseline for value in values_of(r.parameters, key))
        return any(_depth(key, side, value, self.space.interval(key)) < -ROUNDING for value in tried)

    def _edge(self, key: str, side: Side) -> Edge | None:
        interval = self.space.interval(key)
        used = self._used(key)
        if not used:
            return None
        value = min(used) if side == "low" else max(used)
        if _depth(key, side, value, interval) > WITHIN:
            return None
        is_beyond = _depth(key, side, value, interval) < -ROUNDING
        bound = _bound(interval, side)

        def edge(meaning: Meaning, because: str, reach: float | None = None) -> Edge:
            return Edge(key=f"search.{key}.{side}", bound=bound, meaning=meaning, reach=reach, because=because)

        if not is_beyond and (blocked := self._blocked(key, side, bound)):
            return edge(*blocked)
        too_small = (Meaning.TOO_SMALL, f"the space is too small; set it {side}er in a new study")
        if not self.widens:
            return edge(*too_small)
        reach = self._beyond(key, side, bound)
        if not is_beyond:
            tried = self._was_tried_beyond(key, side)
            because = "nothing better was found beyond it" if tried else "the search has yet to go there"
            return edge(Meaning.WIDENED, because, reach)
        if _depth(key, side, value, self.space.with_bound(key, side, reach).interval(key)) > WITHIN:
            return edge(Meaning.WIDENED, "the optimum lies beyond it", reach)
        return edge(*(self._blocked(key, side, reach) or too_small), reach)

    def _used(self, key: str) -> Sequence[float]:
        """The leader's values, without the boundaries that it did not live to see."""
        values = values_of(self.leader, key)
        if key != "schedule.boundaries":
            return values
        ends = [r.reached.examples for r in self.results if r.parameters == self.leader and r.reached is not None]
        return [value for value in values if value < max(ends, default=math.inf)]

    def _beyond(self, key: str, side: Side, bound: float) -> float:
        """A bound, widened within what is possible at all; the same if nothing is."""
        hard = self._hard(key)
        factor = FURTHER if side == "high" else 1.0 / FURTHER
        beyond = 1.0 - (1.0 - bound) / factor if key == "momentum" else bound * factor
        beyond = min(beyond, max(hard.high, bound)) if side == "high" else max(beyond, min(hard.low, bound))
        return _bound(self.space.with_bound(key, side, beyond).interval(key), side)

    def _hard(self, key: str) -> Interval:
        match key:
            case "global_batch_size":
                return Interval(self.space.batch_sizes.divisor, min(self.limits.train_examples, self._too_large - 1))
            case "schedule.boundaries" | "schedule.decay_examples":
                return Interval(self.leader.global_batch_size, self.limits.max_examples)
            case "schedule.decay_factor" | "schedule.end_factor":
                return Interval(0.0, 1.0)
            case _:  # a momentum approaches 1, and a rate is limited by its stability
                return Interval(0.0, math.inf)

    @property
    def _too_large(self) -> float:
        """The smallest global batch size that did not fit in memory."""
        return smallest_too_large(self.space, self.results)

    def _blocked(self, key: str, side: Side, bound: float) -> tuple[Meaning, str] | None:
        """Why there is nothing to search beyond a bound."""
        if key == "learning_rate" and side == "high" and self._is_unstable_beyond(bound):
            return Meaning.UNSTABLE, "higher rates are unstable, so it is an edge of the workload and not of the space"
        if self._beyond(key, side, bound) != bound:
            return None
        if key == "global_batch_size" and side == "high" and self._too_large <= self.limits.train_examples:
            return Meaning.MEMORY, f"a global batch of {self._too_large:,} did not fit in memory"
        return Meaning.LIMIT, _WHY_LIMIT[key, side]

    def _is_unstable_beyond(self, learning_rate: float) -> bool:
        """Whether a rate is known to be unstable at the leader's batch size that is hardly above `learning_rate`."""
        rate = learning_rate / (1.0 - (self.leader.momentum or 0.0))
        forbidden = float(self.stability.log_forbidden(np.log(self.leader.global_batch_size)))
        interval = self.space.learning_rate
        return forbidden < math.log(rate) + WITHIN * math.log(interval.high / interval.low)


def edges_of(
    space: SearchSpace,
    leader: Parameters,
    results: Sequence[TrialResult],
    *,
    objective: Objective,
    limits: Limits,
    widens: bool,
) -> list[Edge]:
    """The edges at which the leader of a study lies after `results`."""
    results = [r for r in results if r.outcome is not Outcome.INTERRUPTED]
    losses = [losses_of(r, objective) for r in results]
    return Edges(
        space=space_that_fits(space, results),
        leader=leader,
        results=results,
        stability=stability_of(results, losses, max_examples=limits.max_examples),
        limits=limits,
        widens=widens,
    ).found()


_WHY_LIMIT = {
    ("global_batch_size", "low"): "the replicas cannot share fewer examples",
    ("global_batch_size", "high"): "the training split holds no larger batch",
    ("schedule.boundaries", "low"): "there is no boundary before the first step",
    ("schedule.boundaries", "high"): "no trial is longer (`trial.max_examples`)",
    ("schedule.decay_examples", "low"): "there is no decay before the first step",
    ("schedule.decay_examples", "high"): "no trial is longer (`trial.max_examples`)",
    ("schedule.decay_factor", "high"): "a larger factor is no decay",
    ("schedule.end_factor", "high"): "a larger factor is no decay",
    ("momentum", "low"): "there is no less momentum",
}


def _bound(interval: Interval, side: Side) -> float:
    return interval.low if side == "low" else interval.high


def _depth(key: str, side: Side, value: float, interval: Interval) -> float:
    """How far inside of an edge a value lies, as a share of the interval; negative: beyond it."""
    low, high, at = (coordinate(key, v) for v in (interval.low, interval.high, value))
    return (at - low) / (high - low) if side == "low" else (high - at) / (high - low)


def _text(value: float | None) -> str:
    return f"{value:,.0f}" if value is not None and value >= 100 else f"{value:.4g}"
