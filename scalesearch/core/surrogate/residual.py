"""What the loss-curve model gets wrong about the cost, as a Gaussian process over the parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from scalesearch.core.parameters import Parameters
from scalesearch.core.prefix import shared_steps
from scalesearch.core.results import Outcome, TrialResult
from scalesearch.core.surrogate.cost import Costs, Noise
from scalesearch.core.surrogate.modes import Array

AMPLITUDES = (0.1, 0.2, 0.4)  # of what differs from place to place; the data choose, and doubt the larger ones
COMMON = 0.1  # an error that all predictions share
LENGTHS = (1.0, 0.4, 0.5)  # in log batch, log effective rate, log of each boundary
LARGEST = 0.7
MOST_RUNS = 300  # the latest hits, then the latest others: the cost of a Gaussian process grows with their cube
BEYOND = 0.8  # how far, in standard deviations, a censored run is expected to lie beyond its cap
MOST_COMMON = 0.95  # of the noise of two runs: evaluations and what is after a fork are never the same
LEAST_BEYOND = 0.1


@dataclass(frozen=True)
class Residual:
    """log(true / predicted cost); without data, zero with the prior's spread."""

    amplitude: float = AMPLITUDES[0]
    points: Array = field(default_factory=lambda: np.zeros((0, 0)))
    solved: Array = field(default_factory=lambda: np.zeros(0))
    factor: tuple[Array, bool] | None = None

    def at(self, parameters: Sequence[Parameters]) -> tuple[Array, Array]:
        """Mean and standard deviation at `parameters`."""
        if self.factor is None:
            return np.zeros(len(parameters)), np.full(len(parameters), np.hypot(self.amplitude, COMMON))
        cross = _kernel(_coordinates(parameters, self.points.shape[1]), self.points, self.amplitude)
        explained = np.einsum("ij,ji->i", cross, cho_solve(self.factor, cross.T))
        return cross @ self.solved, np.sqrt(np.maximum(self.amplitude**2 + COMMON**2 - explained, 1e-6))


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
    hits = hits[-MOST_RUNS:]
    used = hits + censored[-max(MOST_RUNS - len(hits), 1) :]
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
    runs = [(r, n) for r, n, k in zip(used, steps, keep, strict=True) if k]
    kept = [r.parameters for r, _ in runs]
    width = 2 + max(len(p.schedule.boundaries) for p in kept)
    points = _coordinates(kept, width)
    luck = noise.log_cost**2 * _common_luck(runs)
    fits = [_fit(points, errors, luck, amplitude) for amplitude in AMPLITUDES]
    return max(fits, key=lambda fit: fit[0])[1]


def _fit(points: Array, errors: Array, luck: Array, amplitude: float) -> tuple[float, Residual]:
    """The log posterior of an amplitude, up to a constant and under a prior of 1 / amplitude, and the residual with it."""
    factor = cho_factor(_kernel(points, points, amplitude) + luck, lower=True)
    solved = cho_solve(factor, errors)
    likelihood = -0.5 * errors @ solved - np.log(np.diag(factor[0])).sum()
    return float(likelihood - np.log(amplitude)), Residual(amplitude, points, solved, factor)


def _common_luck(runs: Sequence[tuple[TrialResult, float]]) -> Array:
    """Correlations of the noise of runs that took so many steps: what they share, as forks of one run do.

    Luck that adds up step by step (a random walk on a tree) is correlated by the common steps over the geometric mean.
    """
    common = np.eye(len(runs))
    for i, (run, steps) in enumerate(runs):
        for j, (other, others) in enumerate(runs[:i]):
            if run.seed == other.seed and (shared := shared_steps(run.parameters, other.parameters)):
                common[i, j] = common[j, i] = MOST_COMMON * min(shared, steps, others) / np.sqrt(steps * others)
    return common


def similarity(parameters: Sequence[Parameters], others: Sequence[Parameters]) -> Array:
    """How much a run of any of `others` would say about each of `parameters`: 0 to 1, (parameters,)."""
    if not others:
        return np.zeros(len(parameters))
    width = 2 + max(len(p.schedule.boundaries) for p in others)
    away = _coordinates(parameters, width)[:, None] - _coordinates(others, width)[None]
    return np.asarray(np.exp(-0.5 * (away**2).sum(axis=2)).max(axis=1))


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


def _kernel(a: Array, b: Array, amplitude: float) -> Array:
    squared = ((a[:, None] - b[None]) ** 2).sum(axis=2)
    return np.asarray(amplitude**2 * np.exp(-0.5 * squared) + COMMON**2)
