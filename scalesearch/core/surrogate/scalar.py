"""Cost to target as one number per run: a parametric law of steps to target, for when learning curves mislead.

    log S(x) = log S_min + log(1 + (B_c/B)^a)/a + φ(log e − log e*(B)) + Σ boundaries

with the optimal effective rate e*(B) in proportion to B^α below the critical batch size and level above it (Shallue et al.
2018, McCandlish et al. 2018), never above the stable limit. Of a run that did not reach its target only how far it came
counts, and the loss it came to. Weak priors make the fit proper from the first hit on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.special import ndtr

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Outcome, TrialResult
from scalesearch.core.surrogate.cost import Costs, Noise
from scalesearch.core.surrogate.modes import Array
from scalesearch.core.surrogate.stability import Stability

SHARPNESS = 1.5  # of the knee at the critical batch size
TOO_HIGH = (
    2.0  # slope of log cost in log rate above the best one; below it, a run at a k-th of the rate takes k times as long
)
TOO_EARLY = 2.0  # slope of log cost in the log of a boundary that comes too soon
ROUNDED = 0.3  # nats within which a boundary may come too soon at little cost
BOUNDARIES = 2  # later ones hardly matter
HIT_ERROR = 0.1  # standard deviation of the law, in nats
SOFT_ERROR = 0.4  # of the cost that a run without a hit would have had, per nat of loss that it lacked
BOUND_ERROR = 0.1
MOST_LACKING = 3.0  # nats

# Prior means and standard deviations, after log S_min, log B_c and log e*, which are in the units of the runs.
RATE_EXPONENT = (0.8, 0.3)
BEST_BOUNDARIES = ((float(np.log(0.75)), 0.25), (float(np.log(1.1)), 0.25))  # log share of S
GAIN_OF_DECAYS = ((float(np.log(0.5)), 0.7), (float(np.log(0.15)), 0.7))  # log of the nats that a decay saves
SPREADS = (2.0, 1.5, 1.0)


@dataclass(frozen=True)
class Points:
    """Parameters as the law sees them: logarithms of batch, effective rate, its stable limit, and boundaries in steps."""

    batch: Array
    rate: Array
    limit: Array
    boundaries: Array

    def __len__(self) -> int:
        return len(self.batch)


@dataclass(frozen=True)
class Scalar:
    """A fitted law: the most likely `law` (8,), and `draws` (members, 8) from its posterior, less the law."""

    law: Array
    draws: Array
    stability: Stability
    spread: float

    def costs(
        self,
        candidates: Sequence[Parameters],
        *,
        cost_per_step: Callable[[int], float],
        cap: float,
        max_examples: float,
    ) -> Costs:
        """Costs to target of `candidates` up to `cap`, and to the full length of a trial."""
        batch = np.array([c.global_batch_size for c in candidates])
        per_step = np.array([cost_per_step(int(b)) for b in batch])
        most = np.maximum(np.minimum(cap, max_examples / batch * per_step), 2.0 * per_step)
        points = points_of(candidates, self.stability)
        # Linear around the most likely law: far from it, its kinks would make every draw dear.
        away = self.draws @ _slopes(lambda laws: log_steps(laws, points), self.law).T
        log_cost = log_steps(self.law, points) + away + np.log(per_step)
        miss = ndtr((log_cost - np.log(most)) / self.spread)
        return Costs(np.where(miss < 1.0, np.minimum(np.exp(np.minimum(log_cost, 700.0)), most), cap), miss)


def fit_scalar(
    results: Sequence[TrialResult],
    losses: Sequence[Array],
    *,
    target: float,
    stability: Stability,
    noise: Noise,
    members: int,
    start: Scalar | None = None,
) -> Scalar:
    """Fit to runs that reached the target and to those that did not, without those that diverged.

    Args:
        results: at least one of them reached the target.
        losses: their curves.
        target: as a loss.
        stability: of all runs.
        noise: between runs of the same parameters.
        members: how many draws from the posterior.
        start: a law to begin with, rather than with several guesses.
    """
    last_losses = [curve[-1] if len(curve) else np.inf for curve in losses]
    pairs = [(r, loss) for r, loss in zip(results, last_losses, strict=True) if r.reached or _missed(r)]
    used = [r for r, _ in pairs]
    points = points_of([r.parameters for r in used], stability)
    is_hit = np.array([r.reached is not None for r in used])
    steps = np.log([r.reached.steps if r.reached else max(_last(r), r.ruled_out_steps or 0.0) for r in used])
    lacking = np.array([0.0 if r.reached else np.log(loss / target) for r, loss in pairs])
    lacking = np.clip(lacking, 0.0, MOST_LACKING)
    expected = np.array([0.0 if r.reached else np.log(_last(r)) for r in used]) + lacking
    mean, deviation = _prior(points, steps, is_hit, stability)
    hit_error = np.hypot(noise.log_cost, HIT_ERROR)
    soft_error = SOFT_ERROR * (1.0 + lacking)

    def errors(laws: Array) -> Array:
        predicted = log_steps(laws, points)
        missed = np.minimum(predicted - steps, 0.0) / BOUND_ERROR
        first = np.where(is_hit, (predicted - steps) / hit_error, missed)
        second = np.where(is_hit, 0.0, (predicted - np.maximum(expected, steps)) / soft_error)
        return np.concatenate([first, second, (laws - mean) / deviation], axis=-1)

    starts = [start.law] if start is not None else _starts(mean, points, steps, is_hit)
    law, cost, precision = min((_descend(errors, at) for at in starts), key=lambda fit: fit[1])
    excess = max(1.0, 2.0 * cost / (len(used) + len(law)))
    draws = np.random.default_rng(0).standard_normal((members, len(law)))
    factor = np.linalg.cholesky(np.linalg.inv(precision) * excess)
    return Scalar(law, (draws - draws.mean(axis=0)) @ factor.T, stability, float(hit_error))


def log_steps(laws: Array, points: Points) -> Array:
    """Log steps to target under each law: (…, points)."""
    least, critical, top_rate, exponent, *decays = np.moveaxis(laws[..., None], -2, 0)
    saturation = np.logaddexp(0.0, SHARPNESS * (critical - points.batch)) / SHARPNESS
    away = points.rate - np.minimum(top_rate - exponent * saturation, points.limit)
    off = np.logaddexp(np.log(TOO_HIGH) - away, TOO_HIGH * away) - np.log(TOO_HIGH + 1.0)
    base = least + saturation + off
    total = base
    for i in range(BOUNDARIES):
        best, gain = decays[2 * i], np.exp(np.minimum(decays[2 * i + 1], 3.0))
        late = points.boundaries[:, i] - base - best
        total = total + _early(-np.minimum(late, 0.0)) - gain * np.expm1(-np.maximum(late, 0.0) / gain)
    return np.asarray(total)


def points_of(parameters: Sequence[Parameters], stability: Stability) -> Points:
    """Parameters as the law sees them; a boundary that is not there is infinitely late."""
    batch = np.log([float(p.global_batch_size) for p in parameters])
    limit = stability.log_limit(batch)
    boundaries = np.full((len(parameters), BOUNDARIES), np.inf)
    for i, p in enumerate(parameters):
        given = p.schedule.boundaries[:BOUNDARIES]
        boundaries[i, : len(given)] = np.log(given) - batch[i]
    return Points(batch, np.log([p.effective_learning_rate for p in parameters]), limit, boundaries)


def _early(nats: Array) -> Array:
    """What a boundary costs that comes too soon: quadratic, then linear."""
    return np.asarray(TOO_EARLY * np.where(nats < ROUNDED, nats**2 / (2.0 * ROUNDED), nats - 0.5 * ROUNDED))


def _prior(points: Points, steps: Array, is_hit: NDArray[np.bool_], stability: Stability) -> tuple[Array, Array]:
    centre = points.batch[is_hit].mean()
    at_knee = np.log(2.0) / SHARPNESS
    limit = float(stability.log_limit(np.array([centre]))[0])
    rate = limit if np.isfinite(limit) else float(points.rate.max())
    scales = (steps[is_hit].mean() - at_knee, centre, rate - 0.5 + RATE_EXPONENT[0] * at_knee)
    decays = [p for pair in zip(BEST_BOUNDARIES, GAIN_OF_DECAYS, strict=True) for p in pair]
    rest = np.array([RATE_EXPONENT, *decays])
    return np.concatenate([scales, rest[:, 0]]), np.concatenate([SPREADS, rest[:, 1]])


def _starts(mean: Array, points: Points, steps: Array, is_hit: NDArray[np.bool_]) -> list[Array]:
    """The prior, smaller and larger critical batch sizes, and the rate of the quickest hit."""
    starts = [mean.copy() for _ in range(3)]
    quickest = np.flatnonzero(is_hit)[np.argmin(steps[is_hit])]
    starts[0][2] = points.rate[quickest] + mean[3] * np.log(2.0) / SHARPNESS
    starts[1][1] -= 1.5
    starts[2][1] += 1.5
    return starts


def _descend(errors: Callable[[Array], Array], start: Array) -> tuple[Array, float, Array]:
    """The law of least squares from `start`, half its sum of squares, and the precision there."""
    fit = least_squares(errors, start, jac=partial(_slopes, errors), method="lm", max_nfev=40, xtol=1e-3, ftol=1e-3)
    return fit.x, float(fit.cost), np.asarray(fit.jac.T @ fit.jac)


def _slopes(values: Callable[[Array], Array], law: Array) -> Array:
    """Derivatives of `values` of laws by each parameter of the law: (values, 8)."""
    step = 1e-4
    around = law + step * np.concatenate([np.eye(len(law)), -np.eye(len(law))])
    up, down = np.split(values(around), 2)
    return np.asarray((up - down).T / (2.0 * step))


def _missed(result: TrialResult) -> bool:
    return result.outcome in (Outcome.CAPPED, Outcome.EXHAUSTED) and _last(result) > 0.0


def _last(result: TrialResult) -> float:
    return float(result.measurements[-1].step) if result.measurements else 0.0
