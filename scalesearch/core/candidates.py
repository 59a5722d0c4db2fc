"""Candidate parameters for a planner: random within what is stable, then near the best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from scalesearch.core.axis import Axis
from scalesearch.core.forks import Forks
from scalesearch.core.parameters import Parameters
from scalesearch.core.schedule import Constant
from scalesearch.core.space import SearchSpace
from scalesearch.core.surrogate.belief import Belief
from scalesearch.core.surrogate.cost import odds
from scalesearch.core.surrogate.modes import Array
from scalesearch.core.surrogate.residual import similarity

RANDOM = 320
NEAR = 120
REFINED = 240
OCTAVES = 2  # how far beyond the batch sizes tried so far
NO_DECAY = 0.12
LEAST_NOVELTY = 1e-6


@dataclass(frozen=True)
class Candidates:
    """Draws candidates; `horizon` gives the steps that one may take at a batch size. None is `measured`, if others are left.

    Besides the leaders' neighbours, those of the points `near` are drawn.
    """

    space: SearchSpace
    rng: np.random.Generator
    belief: Belief
    horizon: Callable[[int], float]
    start: Parameters
    measured: frozenset[Parameters] = frozenset()
    pending: tuple[Parameters, ...] = ()
    near: tuple[Parameters, ...] = ()
    forks: Forks | None = None

    def search(self, score: Callable[[Sequence[Parameters]], Array]) -> tuple[list[Parameters], Array]:
        """Candidates with their scores (less is better): random ones and the leaders' neighbours, then near the best."""
        pool = [self._random() for _ in range(RANDOM)]
        leaders = [*self.near, *(leader.parameters for leader in self.belief.leaders)] or [self.start]
        pool += [self._near(leaders[i % len(leaders)], 1.0) for i in range(NEAR)]
        scores = score(pool)
        best = [pool[i] for i in np.argsort(scores)[:4]]
        for width in (0.6, 0.25):
            more = [self._near(best[i % len(best)], width) for i in range(REFINED // 2)]
            pool, scores = pool + more, np.concatenate([scores, score(more)])
            best = [pool[i] for i in np.argsort(scores)[:4]]
        new = [i for i, parameters in enumerate(pool) if parameters not in self.measured] or range(len(pool))
        return [pool[i] for i in new], scores[new]

    def of_leaders(self) -> dict[Parameters, int]:
        """Forks of the leaders' runs that are not `measured`, and the steps that each saves."""
        leaders = [leader.parameters for leader in self.belief.leaders]
        forks = self.forks.draw(leaders, self.rng) if self.forks else {}
        return {parameters: saved for parameters, saved in forks.items() if parameters not in self.measured}

    def without_decay(self) -> Parameters:
        """A long run at a constant rate safely below the limit; where that was measured, at a third of it, and so on."""
        at, limit = self.space.coordinates(self.start), self._limit(self.start.global_batch_size)
        rates = [self._rate(limit + np.log(0.6) - k * np.log(3.0)) for k in range(8)]
        runs = [self._constant(self.space.parameters({**at, **rate})) for rate in rates]
        others = (self._constant(self._random()) for _ in range(RANDOM))
        return next((run for run in (*runs, *others) if run not in self.measured), runs[-1])

    def novelty(self, candidates: Sequence[Parameters]) -> Array:
        """The share of what each candidate would tell that no running trial is about to tell: (candidates,)."""
        return np.maximum(1.0 - similarity(candidates, self.pending), LEAST_NOVELTY)

    def cost_per_hit(self, candidates: Sequence[Parameters], *, cap: float) -> Array:
        """What each candidate costs per hit that it promises, of those that no running trial is about to tell and that are
        not too near to the stability limit: (candidates,).
        """
        per_hit, _, _ = odds(self.belief.expected_costs(candidates, cap=cap))
        return np.asarray(per_hit / (self.novelty(candidates) * self.belief.stability.ease(candidates)))

    def _random(self) -> Parameters:
        size = int(self._sizes[self.rng.integers(len(self._sizes))])
        at = {axis.name: self._uniform(axis) for axis in self.space.axes()}
        at[self.space.batch_sizes.axis().name] = self.space.batch_sizes.to_axis(size)
        at.update(self._rate(self._limit(size) - abs(self.rng.normal()) * 0.9))
        at.update(self._schedule(size))
        parameters = self.space.parameters({a.name: a.clip(at[a.name]) for a in self.space.axes()})
        return self._constant(parameters) if self.rng.random() < NO_DECAY else parameters

    def _near(self, parameters: Parameters, width: float) -> Parameters:
        at = self.space.coordinates(parameters)
        for axis in self.space.axes():
            if self.rng.random() < 0.3:
                continue
            at[axis.name] = self._moved(axis, at[axis.name], width)
        moved = self.space.parameters({a.name: a.clip(at[a.name]) for a in self.space.axes()})
        limit = self._limit(moved.global_batch_size)
        if np.log(moved.effective_learning_rate) > limit:
            at.update(self._rate(limit))
            moved = self.space.parameters({a.name: a.clip(at[a.name]) for a in self.space.axes()})
        return moved

    def _moved(self, axis: Axis, value: float, width: float) -> float:
        if axis.integer:
            return value + round(self.rng.normal() * max(1.0 * width, 0.6))
        if axis.log:
            scale = 0.25 if axis.name == "effective_learning_rate" else 0.3
            return float(value * np.exp(scale * width * self.rng.normal()))
        return float(value + 0.2 * width * self.rng.normal() * (axis.high - axis.low))

    def _uniform(self, axis: Axis) -> float:
        if axis.log:
            return float(np.exp(self.rng.uniform(np.log(axis.low), np.log(axis.high))))
        return float(self.rng.uniform(axis.low, axis.high))

    @cached_property
    def _sizes(self) -> NDArray[np.intp]:
        """Batch sizes within OCTAVES of those that have been tried."""
        tried = [b for b, _ in (*self.belief.stability.stable, *self.belief.stability.unstable)]
        tried = tried or [float(np.log(self.start.global_batch_size))]
        reach = OCTAVES * np.log(2.0) + 1e-9
        values = np.array(self.space.batch_sizes.values(), dtype=np.intp)
        near = (np.log(values) >= min(tried) - reach) & (np.log(values) <= max(tried) + reach)
        return values[near] if near.any() else values

    def _limit(self, size: int) -> float:
        return self._limits[size]

    @cached_property
    def _limits(self) -> dict[int, float]:
        """The largest log effective rate at each batch size; that of the start while nothing is known."""
        sizes = self.space.batch_sizes.values()
        limits = self.belief.stability.log_limit(np.log(np.array(sizes, dtype=float)))
        unknown = np.log(self.start.effective_learning_rate)
        return dict(zip(sizes, np.where(np.isfinite(limits), limits, unknown).tolist(), strict=True))

    def _rate(self, log_effective_rate: float) -> dict[str, float]:
        return {"effective_learning_rate": float(np.exp(log_effective_rate))}

    def _schedule(self, size: int) -> dict[str, float]:
        """Boundaries within the horizon, where they can matter."""
        examples = self.horizon(size) * size
        at = {}
        for axis in self.space.axes():
            if axis.name in ("decay_boundary_1", "decay_examples"):
                at[axis.name] = examples * self.rng.uniform(0.1, 1.0)
        return at

    def _constant(self, parameters: Parameters) -> Parameters:
        return self.space.nearest(replace(parameters, schedule=Constant(learning_rate=parameters.learning_rate)))
