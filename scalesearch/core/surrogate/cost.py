"""Cost to target of any parameters, as a distribution: what the curves say, and how likely the target is missed.

Each member of the loss-curve ensemble is crossed with several draws of the noise of a run (its loss level, which decides
whether a plateau near the target is below or above it). A run that has not crossed by the cap is a miss, and costs what it
spent plus another attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from scalesearch.core.parameters import Parameters
from scalesearch.core.surrogate.loss_curves import LossCurves
from scalesearch.core.surrogate.modes import Array, runs_of

GRID_POINTS = 56
CAP_MARGIN = 1.2
MISS_FACTOR = 3.0  # a missed target costs as much as three runs that reach it


@dataclass(frozen=True)
class Noise:
    """How runs of the same parameters differ.

    `level` and `bias` are the standard deviation and the mean of log(loss / model) where runs met the target; `log_cost`
    the standard deviation of log cost to target.
    """

    level: float
    bias: float
    log_cost: float

    def thresholds(self, target: float, draws: int) -> Array:
        """Targets as the model must meet them, (draws,): quantiles of the level noise, so that they are the same for all."""
        quantiles = (np.arange(draws) + 0.5) / draws
        return np.asarray(target * np.exp(self.bias + self.level * ndtri(quantiles)))


@dataclass(frozen=True)
class Costs:
    """`hit` (members, candidates): mean cost of the draws that reach the target (cap where none does); `miss` the share."""

    hit: Array
    miss: Array

    def expected(self, *, miss_factor: float = MISS_FACTOR) -> Array:
        """Expected cost (members, candidates); a miss costs `miss_factor` times a hit."""
        return np.asarray(self.hit * (1.0 + (miss_factor - 1.0) * self.miss))


def predict_costs(
    model: LossCurves,
    candidates: Sequence[Parameters],
    *,
    target: float,
    noise: Noise,
    cost_per_step: Callable[[int], float],
    cap: float,
    max_examples: float,
    draws: int = 7,
) -> Costs:
    """Costs to target of `candidates` up to `cap`, in the unit of `cost_per_step`, and to the full length of a trial."""
    per_step = np.array([cost_per_step(c.global_batch_size) for c in candidates])
    full_length = max_examples / np.array([c.global_batch_size for c in candidates])
    most_steps = np.maximum(np.minimum(cap / per_step, full_length), 2.0)
    runs = runs_of(candidates)
    steps = _grid(runs.starts, most_steps)
    losses = np.minimum.accumulate(model.predict(runs, steps), axis=2)
    thresholds = noise.thresholds(target, draws)
    total = np.zeros(losses.shape[:2])
    hits = np.zeros(losses.shape[:2])
    for threshold in thresholds:
        crossed, at = _first_below(losses, steps, threshold)
        total += np.where(crossed, at * per_step, 0.0)
        hits += crossed
    hit = np.where(hits > 0, total / np.maximum(hits, 1), cap)
    return Costs(hit, 1.0 - hits / draws)


def odds(costs: Costs) -> tuple[Array, Array, Array]:
    """Expected cost per hit of each candidate under its best cap, that cap, and the chance of a hit within it.

    A run that is stopped at a cap spends min(cost, cap); of all caps, the one with the most hits per cost is best. Each
    member of the ensemble is one opinion of the cost.
    """
    order = np.argsort(costs.hit, axis=0)
    hit, chance = np.take_along_axis(costs.hit, order, 0), np.take_along_axis(1.0 - costs.miss, order, 0)
    members = len(hit)
    caps = CAP_MARGIN * hit
    within = np.cumsum(chance, axis=0) / members
    spent = (np.cumsum(hit * chance, axis=0) + caps * (members - np.cumsum(chance, axis=0))) / members
    per_hit = spent / np.maximum(within, 1e-6)
    best = np.argmin(per_hit, axis=0)[None]
    return tuple(np.take_along_axis(a, best, 0)[0] for a in (per_hit, caps, within))


def _grid(starts: Array, most_steps: Array) -> Array:
    """Geometric points up to `most_steps`, and finer ones after each boundary, where losses drop: (runs, points)."""
    base = most_steps[:, None] * np.geomspace(0.01, 1.0, GRID_POINTS)
    boundaries = starts[:, 1:] if starts.shape[1] <= 4 else starts[:, -1:]  # a linear decay has no drops
    room = np.minimum(boundaries, most_steps[:, None])
    after = room[:, :, None] + most_steps[:, None, None] * np.array([0.0, 0.005, 0.012, 0.025, 0.05])
    points = np.concatenate([base, np.minimum(after.reshape(len(starts), -1), most_steps[:, None])], axis=1)
    return np.sort(np.maximum(points, 1.0), axis=1)


def _first_below(losses: Array, steps: Array, threshold: float) -> tuple[Array, Array]:
    """Whether and where each running minimum (members, runs, points) first falls below the threshold."""
    above = (losses >= threshold).sum(axis=2)
    points = losses.shape[2]
    crossed = above < points
    i = np.minimum(above, points - 1)
    j = np.maximum(i - 1, 0)
    run = np.arange(losses.shape[1])[None]
    now, before = (
        np.take_along_axis(losses, i[..., None], 2)[..., 0],
        np.take_along_axis(losses, j[..., None], 2)[..., 0],
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.log(before / threshold) / np.log(before / now)
    share = np.where((above == 0) | ~np.isfinite(share), 1.0, np.clip(share, 0.0, 1.0))
    return crossed, steps[run, j] + share * (steps[run, i] - steps[run, j])
