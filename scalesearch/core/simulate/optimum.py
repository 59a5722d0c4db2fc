"""The true optimum of a simulated workload, free of noise, by dense search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from scipy.optimize import differential_evolution
from scipy.stats import qmc

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Goal
from scalesearch.core.schedule import Constant, Piecewise, Schedule
from scalesearch.core.simulate.quadratic import Floats, Whole
from scalesearch.core.simulate.trajectory import Pieces, constant_pieces, first_crossing, pieces_of
from scalesearch.core.simulate.workload import SimulatedWorkload
from scalesearch.errors import WorkloadError

MAX_STEPS = 2**28
POPULATION = 64
GENERATIONS = 50
TIGHT_SPREAD = 1e-3  # in log steps, of the population at which a search has converged


@dataclass(frozen=True, kw_only=True)
class Decays:
    """The piecewise-constant schedules searched: so many boundaries, each multiplying the learning rate by `factor`."""

    number: int = 2
    factor: float = 0.1


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The parameters that reach the target in the fewest steps at their batch size, and what that costs."""

    parameters: Parameters
    steps: float
    seconds: float

    @property
    def examples(self) -> float:
        """Examples to target."""
        return self.steps * self.parameters.global_batch_size

    def cost(self, goal: Goal) -> float:
        """Cost to target in the unit of a goal that has one."""
        return {"seconds": self.seconds, "steps": self.steps, "examples": self.examples}[goal]


def true_steps(workload: SimulatedWorkload, parameters: Parameters) -> float:
    """Steps to the target, free of noise and interpolated between whole ones; inf if MAX_STEPS do not reach it."""
    batch, momentum = parameters.global_batch_size, parameters.momentum or 0.0
    # Begun short, as a short run is divided into finer pieces.
    end = min(MAX_STEPS, max([1024, *(4 * b // batch for b in parameters.schedule.boundaries)]))
    while True:
        pieces = pieces_of(workload, parameters.schedule, batch=batch, momentum=momentum, end_step=end)
        one_run = Pieces(pieces.rates[:, None], pieces.steps[:, None])
        level = workload.loss_at(workload.target)
        steps, _ = first_crossing(workload, one_run, batch=batch, momentum=momentum, loss=level)
        if np.isfinite(steps[0]) or end == MAX_STEPS:
            return float(steps[0])
        end = min(4 * end, MAX_STEPS)


def true_cost(workload: SimulatedWorkload, parameters: Parameters, goal: Goal) -> float:
    """Cost to target in the unit of the goal, free of noise; inf if the target is never reached."""
    batch = parameters.global_batch_size
    unit = {"steps": 1.0, "examples": float(batch), "seconds": workload.step_time(batch)}[goal]
    return true_steps(workload, parameters) * unit


def true_optimum(
    workload: SimulatedWorkload,
    batch_sizes: Sequence[int],
    *,
    goal: Goal,
    momentum: float | None = None,
    decays: Decays = Decays(),
) -> Optimum:
    """The cheapest of the optima at each batch size."""
    curve = true_curve(workload, tuple(batch_sizes), momentum=momentum, decays=decays)
    return min(curve, key=lambda o: o.cost(goal))


def true_curve(
    workload: SimulatedWorkload,
    batch_sizes: Sequence[int],
    *,
    momentum: float | None = None,
    decays: Decays = Decays(),
) -> tuple[Optimum, ...]:
    """The optimum at each of the batch sizes, in their order; learning rates and boundaries are unbounded."""
    optima = _optima(workload, tuple(sorted(set(batch_sizes))), momentum, decays)
    return tuple(optima[b] for b in batch_sizes)


@lru_cache(maxsize=64)
def _optima(
    workload: SimulatedWorkload, batch_sizes: tuple[int, ...], momentum: float | None, decays: Decays
) -> dict[int, Optimum]:
    searches = {b: _Search(workload, b, momentum, decays) for b in batch_sizes}
    found: dict[int, _Point] = {}
    # From the largest on, where steps are fewest: at half the batch they are at most about twice as many.
    for batch in reversed(batch_sizes):
        near = min(found, default=None)
        found[batch] = searches[batch].best_near(found[near] if near else searches[batch].first_guess())
    # And back: what is good at one batch size is a start at the next.
    for smaller, batch in pairwise(batch_sizes):
        found[batch] = min(found[batch], searches[batch].best_near(found[smaller]), key=lambda p: p.log_steps)
    return {b: searches[b].optimum(found[b]) for b in batch_sizes}


@dataclass(frozen=True)
class _Point:
    """Log acting learning rate, then log steps to the first boundary and from each boundary to the next."""

    batch: int
    coordinates: Floats
    log_steps: float


@dataclass(frozen=True)
class _Search:
    """Fewest steps to target at one batch size."""

    workload: SimulatedWorkload
    batch: int
    momentum: float | None
    decays: Decays

    def first_guess(self) -> _Point:
        """The best constant learning rate."""
        limit = 2.0 * (1.0 + (self.momentum or 0.0)) / self.workload.modes.curvature.max()
        rates = np.log(np.geomspace(1e-4, 1.0, 60) * limit)
        horizon = 64
        while horizon <= MAX_STEPS:
            never = np.full((self.decays.number, len(rates)), np.log(horizon))
            points = np.vstack([rates, never])
            values = self._log_steps(points, horizon)
            best = int(np.argmin(values))
            if values[best] <= np.log(horizon):
                return _Point(self.batch, points[:, best], float(values[best]))
            horizon *= 4
        raise WorkloadError(f"the target {self.workload.target} is not reached within {MAX_STEPS:,} steps")

    def best_near(self, start: _Point) -> _Point:
        """The optimum within all that the one at another batch size leaves possible.

        Up to perfect scaling, a smaller batch needs a lower rate and more steps in proportion; beyond, the same.
        """
        log_ratio = np.log(start.batch / self.batch)
        log_steps, rate = start.log_steps + np.array([min(log_ratio, 0.0), max(log_ratio, 0.0)]), start.coordinates[0]
        rates = rate + np.log(8.0) * np.array([-1.0, 1.0]) - np.array([max(log_ratio, 0.0), min(log_ratio, 0.0)])
        first = log_steps + np.log([1 / 30, 3.0])
        later = log_steps + np.log([1 / 100, 3.0])
        box = np.array([rates, first, *[later] * (self.decays.number - 1)][: 1 + self.decays.number])
        horizon = int(4 * np.exp(log_steps[1])) + 16
        result = differential_evolution(
            lambda points: self._log_steps(points, horizon),
            bounds=box,
            init=self._population(start, box),
            strategy="best2bin",  # the default gets stuck where a run is a few steps long
            maxiter=GENERATIONS,
            tol=0.0,
            atol=TIGHT_SPREAD,
            mutation=(0.3, 0.9),
            recombination=0.9,
            rng=0,
            polish=False,
            vectorized=True,
            updating="deferred",
        )
        return _Point(self.batch, np.asarray(result.x), float(result.fun))

    def _population(self, start: _Point, box: Floats) -> Floats:
        """Points in the box: the start, as it is and with its rate and its times scaled, and a space-filling rest."""
        points = qmc.scale(qmc.Sobol(len(box), rng=0).random(POPULATION), box[:, 0], box[:, 1])
        ratio = start.batch / self.batch
        for i, (rate, times) in enumerate([(1.0, 1.0), (1.0, 2.0), (0.5, 1.0), (0.5, 2.0), (1.0 / ratio, ratio)]):
            scaled = start.coordinates + np.log([rate, *[times] * self.decays.number])
            points[i] = np.clip(scaled, box[:, 0], box[:, 1])
        return np.asarray(points)

    def optimum(self, point: _Point) -> Optimum:
        """A point in natural units."""
        rates, edges = self._segments(point.coordinates[:, None], MAX_STEPS)
        learning_rate = float(self.workload.learning_rate.inverse(rates[0, 0], self.batch))
        boundaries = tuple(int(e) * self.batch for e in edges[1:-1, 0])
        schedule: Schedule = Constant(learning_rate=learning_rate)
        if boundaries:
            schedule = Piecewise(learning_rate=learning_rate, decay_factor=self.decays.factor, boundaries=boundaries)
        parameters = Parameters(global_batch_size=self.batch, schedule=schedule, momentum=self.momentum)
        steps = true_steps(self.workload, parameters)
        return Optimum(parameters=parameters, steps=steps, seconds=steps * self.workload.step_time(self.batch))

    def _log_steps(self, points: Floats, horizon: int) -> Floats:
        """Log steps to target of points (coordinates, runs); a miss counts by how far its loss is from the target."""
        rates, edges = self._segments(points, horizon)
        momentum, level = self.momentum or 0.0, self.workload.loss_at(self.workload.target)
        pieces = constant_pieces(self.workload, edges, rates, rates, momentum=momentum)
        steps, loss = first_crossing(self.workload, pieces, batch=self.batch, momentum=momentum, loss=level)
        distance = np.log(np.minimum(loss, 1e100)) - np.log(level)
        return np.where(np.isfinite(steps), np.log(np.maximum(steps, 1e-9)), np.log(horizon) + np.maximum(distance, 0))

    def _segments(self, points: Floats, horizon: int) -> tuple[Floats, Whole]:
        """Acting rates (segments, runs) and edges (segments + 1, runs) in steps."""
        lengths = np.maximum(np.round(np.exp(points[1:])), 1).astype(np.int64)
        runs = points.shape[1]
        boundaries = np.minimum(np.cumsum(lengths, axis=0), horizon)
        edges = np.vstack([np.zeros((1, runs), np.int64), boundaries, np.full((1, runs), horizon)])
        decay = self.decays.factor ** np.arange(self.decays.number + 1)
        return decay[:, None] * np.exp(points[0]), edges
