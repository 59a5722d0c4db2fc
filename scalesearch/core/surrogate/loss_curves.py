"""A loss-curve model fitted to all learning curves of a study at once, as an ensemble that says how sure it is.

L(n) = Σ a_k · decay_k(n) + Σ c_k · noise_k(n), a, c ≥ 0, over a logarithmic grid of modes (see `modes`): capped and diverged
runs are data as much as those that reached the target. The members of the ensemble are non-negative least squares fits
under a Bayesian bootstrap of the runs (Rubin 1981) and varied smoothness, so they agree where many runs do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import nnls

from scalesearch.core.parameters import Parameters
from scalesearch.core.surrogate.modes import Array, Runs, features, runs_of

POINTS_PER_RUN = 28
RELATIVE_ERROR = 0.03  # of one point of a curve: model error and evaluation noise together
NEAR_TARGET = 0.4  # log distance to the target at which a point weighs half
NOISE_SHARE_ERROR = 0.25
UNSTABLE = 2.0  # a mode with e λ above this grows: a run that did not diverge proves that there is none


@dataclass(frozen=True)
class Curve:
    """One run as the model sees it: `losses` (> 0, less is better) after `steps` completed steps."""

    parameters: Parameters
    steps: Array
    losses: Array


@dataclass(frozen=True)
class LossCurves:
    """A fitted ensemble: `coefficients` (members, 2 · modes)."""

    modes: Array
    coefficients: Array

    def predict(self, runs: Runs, steps: Array) -> Array:
        """Losses, (members, runs, points), at `steps` (runs, points)."""
        values = features(self.modes, runs, steps)
        return np.moveaxis(values @ self.coefficients.T, 2, 0)


def fit_loss_curves(
    curves: Sequence[Curve],
    *,
    initial_loss: float,
    target: float,
    longest: float,
    members: int,
    rng: np.random.Generator,
) -> LossCurves:
    """Fit an ensemble to `curves`.

    Args:
        curves: runs that did not diverge, at least one.
        initial_loss: before training.
        target: points near it count most.
        longest: the largest Σ of effective rates over steps that any candidate will have; it bounds the slowest mode, as
            still slower ones cannot be told from a floor.
        members: how many fits.
        rng: draws the weights; the first member is the plain fit.
    """
    runs = runs_of([c.parameters for c in curves])
    modes = _grid(runs, longest)
    grams, moments = _equations(curves, modes, target)
    count = len(modes)
    reference = np.exp(np.mean(np.log(runs.batch)))
    unit = np.concatenate([np.ones(count), np.full(count, reference)])  # noise in units of the typical batch
    last = _end_of_longest_plateau(curves, modes)
    shares = (rng.permutation(members) + 0.5) / members
    fits = []
    for member in range(members):
        weights = rng.exponential(size=len(curves)) if member else np.ones(len(curves))
        smoothness = np.exp(0.7 * rng.normal()) if member else 1.0
        prior_gram, prior_moment = _prior(count, initial_loss, smoothness)
        share_gram, share_moment = _noise_share(last * unit, shares[member])
        gram = np.tensordot(weights, grams, 1) * np.outer(unit, unit) + prior_gram + share_gram
        moment = weights @ moments * unit + prior_moment + share_moment
        fits.append(_nnls(gram, moment) * unit)
    return LossCurves(modes, np.array(fits))


def _grid(runs: Runs, longest: float) -> Array:
    """Modes from the slowest that `longest` can show to the fastest that the largest rate leaves stable."""
    # The rates that were really used bound what curvature is possible: e λ < 2 in every run that did not diverge.
    fastest = 0.98 * UNSTABLE / runs.rates.max()
    slowest = min(1.0 / longest, fastest / 10.0)
    count = int(np.clip(round(6 * np.log10(fastest / slowest)), 12, 36))
    return np.geomspace(fastest, slowest, count)


def _equations(curves: Sequence[Curve], modes: Array, target: float) -> tuple[Array, Array]:
    """Normal equations of each run, weighted by nearness to the target: (runs, 2k, 2k) and (runs, 2k)."""
    grams, moments = [], []
    for curve in curves:
        chosen = _thinned(curve)
        steps, losses = curve.steps[chosen], curve.losses[chosen]
        rows = features(modes, runs_of([curve.parameters]), steps[None])[0]
        weight = 1.0 / (RELATIVE_ERROR * losses)
        weight /= 1.0 + np.maximum(np.log(losses / target), 0.0) / NEAR_TARGET
        weight *= np.sqrt(12.0 / max(len(losses), 12))  # neighbouring points of one run share their errors
        rows = rows * weight[:, None]
        grams.append(rows.T @ rows)
        moments.append(rows.T @ (losses * weight))
    return np.array(grams), np.array(moments)


def _thinned(curve: Curve) -> NDArray[np.intp]:
    if len(curve.steps) <= POINTS_PER_RUN:
        return np.arange(len(curve.steps))
    return np.unique(np.linspace(0, len(curve.steps) - 1, POINTS_PER_RUN).round().astype(np.intp))


def _prior(count: int, initial_loss: float, smoothness: float) -> tuple[Array, Array]:
    """Initial moments add up to the initial loss (15 %), and neighbouring modes are alike."""
    scale = initial_loss / count
    total = np.concatenate([np.ones(count), np.zeros(count)]) / (0.15 * initial_loss)
    second = np.diff(np.eye(count), 2, axis=0) / (scale * smoothness)
    rough = np.zeros((2 * count, 2 * count))
    rough[:count, :count] = second.T @ second
    rough[count:, count:] = 0.09 * second.T @ second
    return np.outer(total, total) + rough, total / 0.15


def _end_of_longest_plateau(curves: Sequence[Curve], modes: Array) -> Array:
    """Noise features where the longest stretch at an initial rate ends, per unit of the loss there; the others are 0."""
    ends = [_end_of_first_rate(c) for c in curves]
    longest = int(np.argmax([c.steps[i] * c.parameters.global_batch_size for c, i in zip(curves, ends, strict=True)]))
    curve, i = curves[longest], ends[longest]
    row = features(modes, runs_of([curve.parameters]), curve.steps[None, i : i + 1])[0, 0] / curve.losses[i]
    row[: len(modes)] = 0.0
    return np.asarray(row)


def _end_of_first_rate(curve: Curve) -> int:
    """Index of the last point before the first boundary."""
    first = min(curve.parameters.schedule.boundaries, default=np.inf) / curve.parameters.global_batch_size
    return max(int((curve.steps <= first).sum()) - 1, 0)


def _noise_share(row: Array, share: float) -> tuple[Array, Array]:
    """A weak opinion of one member: that `share` of the loss at the end of a plateau is gradient noise.

    Runs at one batch size and rate cannot tell noise, which a decay or a larger batch removes, from slow modes, which
    only steps remove: the ensemble must hold all opinions until there are runs that can.
    """
    weighted = row / NOISE_SHARE_ERROR
    return np.outer(weighted, weighted), weighted * share / NOISE_SHARE_ERROR


def _nnls(gram: Array, moment: Array) -> Array:
    """Non-negative least squares from normal equations, through a Cholesky factor of the regularised Gram matrix."""
    scale = 1.0 / np.sqrt(np.diag(gram) + 1e-30)
    scaled = gram * np.outer(scale, scale) + 1e-9 * np.eye(len(gram))
    upper = cholesky(scaled)
    right = solve_triangular(upper, moment * scale, trans="T")
    solution, _ = nnls(upper, right, maxiter=20 * len(gram))
    return np.asarray(solution * scale)
