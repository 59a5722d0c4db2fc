"""What the loss-curve model gets wrong about the cost, as a Gaussian process over the parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Outcome, TrialResult
from scalesearch.core.surrogate.cost import Costs, Noise
from scalesearch.core.surrogate.modes import Array

AMPLITUDE = 0.1
COMMON = 0.1  # an error that all predictions share
LENGTHS = (1.0, 0.4, 0.5)  # in log batch, log effective rate, log of each boundary
LARGEST = 0.7
MOST_RUNS = 300  # the latest: the cost of a Gaussian process grows with their cube
BEYOND = 0.8  # how far, in standard deviations, a censored run is expected to lie beyond its cap
LEAST_BEYOND = 0.1


@dataclass(frozen=True)
class Residual:
    """log(true / predicted cost); without data, zero with the prior's spread."""

    points: Array = field(default_factory=lambda: np.zeros((0, 0)))
    solved: Array = field(default_factory=lambda: np.zeros(0))
    factor: tuple[Array, bool] | None = None

    def at(self, parameters: Sequence[Parameters]) -> tuple[Array, Array]:
        """Mean and standard deviation at `parameters`."""
        if self.factor is None:
            return np.zeros(len(parameters)), np.full(len(parameters), np.hypot(AMPLITUDE, COMMON))
        cross = _kernel(_coordinates(parameters, self.points.shape[1]), self.points)
        explained = np.einsum("ij,ji->i", cross, cho_solve(self.factor, cross.T))
        return cross @ self.solved, np.sqrt(np.maximum(AMPLITUDE**2 + COMMON**2 - explained, 1e-6))


def fit_residual(
    results: Sequence[TrialResult],
    *,
    cost_per_step: Callable[[int], float],
    belief_costs: Callable[..., Costs],
    noise: Noise,
) -> Residual:
    """Fit to runs that reached the target, and to runs that passed the cost at which they should have."""
    hits = [r for r in results if r.reached is not None]
    censored = [
        r
        for r in results
        if r.outcome in (Outcome.CAPPED, Outcome.EXHAUSTED) and r.reached is None and _last_step(r) > 0
    ]
    used = sorted(hits + censored, key=lambda r: r.number)[-MOST_RUNS:]
    steps = [r.reached.steps if r.reached else _last_step(r) for r in used]
    spent = [n * cost_per_step(r.parameters.global_batch_size) for n, r in zip(steps, used, strict=True)]
    predicted = belief_costs([r.parameters for r in used], cap=4.0 * max(spent))
    log_error = np.log(spent) - np.log(predicted.hit.mean(axis=0))
    is_hit = np.array([r.reached is not None for r in used])
    expected_hit = predicted.miss.mean(axis=0) < 0.5
    # A censored run says "at least": it speaks only where the model had promised less.
    keep = is_hit | (expected_hit & (log_error > 0.0))
    beyond = max(BEYOND * noise.log_cost, LEAST_BEYOND)
    errors = np.clip(np.where(is_hit, log_error, log_error + beyond), -LARGEST, LARGEST)[keep]
    deviation = np.full(len(errors), noise.log_cost)
    kept = [r.parameters for r, k in zip(used, keep, strict=True) if k]
    width = 2 + max(len(p.schedule.boundaries) for p in kept)
    points = _coordinates(kept, width)
    factor = cho_factor(_kernel(points, points) + np.diag(deviation**2), lower=True)
    return Residual(points, cho_solve(factor, errors), factor)


def _last_step(result: TrialResult) -> float:
    """Steps up to which a run is known, or was judged by its curve, not to reach the target."""
    last = result.measurements[-1].step if result.measurements else 0
    return max(last, result.ruled_out_steps or 0.0)


def _coordinates(parameters: Sequence[Parameters], width: int) -> Array:
    """(log batch, log effective rate, log boundary in steps …) over their length scales."""
    rows = np.zeros((len(parameters), width))
    for i, p in enumerate(parameters):
        rows[i, 0] = np.log(p.global_batch_size) / LENGTHS[0]
        rows[i, 1] = np.log(p.effective_learning_rate) / LENGTHS[1]
        far = 12.0 / LENGTHS[2]  # no decay is far from any boundary
        boundaries = [np.log(b / p.global_batch_size) / LENGTHS[2] for b in p.schedule.boundaries]
        rows[i, 2:] = (boundaries + [far] * width)[: width - 2]
    return rows


def _kernel(a: Array, b: Array) -> Array:
    squared = ((a[:, None] - b[None]) ** 2).sum(axis=2)
    return np.asarray(AMPLITUDE**2 * np.exp(-0.5 * squared) + COMMON**2)
