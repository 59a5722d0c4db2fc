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
from scalesearch.core.surrogate.modes import STABLE, Array, Runs, features, runs_of

POINTS_PER_RUN = 28
RELATIVE_ERROR = 0.03  # of one point of a curve: model error and evaluation noise together
NEAR_TARGET = 0.4  # log distance to the target at which a point weighs half
NOISE_SHARE_ERROR = 0.25
BEGINNING_SHARES = (0.25, 0.75)  # of noise
AT_REST = 2.0  # times the loss: a generous sum, over all modes, of the noise that they would settle at


@dataclass(frozen=True)
class Curve:
    """One run as the model sees it: `losses` (> 0, less is better) after `steps` completed steps.

    Up to the step `known` it is the same run as an earlier one, and tells nothing new.
    """

    parameters: Parameters
    steps: Array
    losses: Array
    known: int = 0


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
    equations = equations_of(curves, initial_loss=initial_loss, target=target, longest=longest)
    return equations.ensemble(members, rng)


@dataclass(frozen=True)
class Equations:
    """Normal equations of each run, in units in which noise is that of the typical batch.

    `plateau` are the noise features at the end of the longest stretch at an initial rate (see `_noise_share`), `calm` a
    prior on the noise (see `_calm`).
    """

    modes: Array
    unit: Array
    grams: Array
    moments: Array
    plateau: Array
    calm: Array
    initial_loss: float

    def ensemble(self, members: int, rng: np.random.Generator) -> LossCurves:
        """Fits to all curves, see `fit_loss_curves`."""
        runs = len(self.grams)
        shares = (rng.permutation(members) + 0.5) / members
        fits = []
        for member in range(members):
            weights = rng.exponential(size=runs) if member else np.ones(runs)
            smoothness = np.exp(0.7 * rng.normal()) if member else 1.0
            fits.append(self._solve(weights, share=shares[member], smoothness=smoothness))
        return LossCurves(self.modes, np.array(fits))

    def beginning(self, count: int) -> LossCurves:
        """Plain fits to the first `count` curves, which differ only in the share of noise that they assume."""
        weights = (np.arange(len(self.grams)) < count).astype(float)
        fits = [self._solve(weights, share=share, smoothness=1.0) for share in BEGINNING_SHARES]
        return LossCurves(self.modes, np.array(fits))

    def _solve(self, weights: Array, *, share: float, smoothness: float) -> Array:
        """Coefficients with one weight for each run."""
        prior_gram, prior_moment = _prior(len(self.modes), self.initial_loss, smoothness)
        share_gram, share_moment = _noise_share(self.plateau * self.unit, share)
        gram = np.tensordot(weights, self.grams, 1) * np.outer(self.unit, self.unit)
        gram += prior_gram + share_gram + self.calm
        moment = weights @ self.moments * self.unit + prior_moment + share_moment
        return _nnls(gram, moment) * self.unit


def equations_of(
    curves: Sequence[Curve], *, initial_loss: float, target: float, longest: float, trust: Array | None = None
) -> Equations:
    """What `fit_loss_curves` solves; `trust` are the weights of the curves, all alike by default."""
    runs = runs_of([c.parameters for c in curves])
    modes = _grid(runs, longest)
    grams, moments = _equations(curves, modes, target)
    if trust is not None:
        grams, moments = grams * trust[:, None, None], moments * trust[:, None]
    reference = np.exp(np.mean(np.log(runs.batch)))
    unit = np.concatenate([np.ones(len(modes)), np.full(len(modes), reference)])
    longest_run, end = _longest_plateau(curves)
    return Equations(
        modes=modes,
        unit=unit,
        grams=grams,
        moments=moments,
        plateau=_noise_at(longest_run, end, modes),
        calm=_calm(longest_run, longest_run.losses[end], modes, unit),
        initial_loss=initial_loss,
    )


def _grid(runs: Runs, longest: float) -> Array:
    """Modes from the slowest that `longest` can show to the fastest that the largest rate leaves stable."""
    # The rates that were really used bound what curvature is possible: e λ < 2 in every run that did not diverge.
    fastest = STABLE / runs.rates.max()
    slowest = min(1.0 / longest, fastest / 10.0)
    count = int(np.clip(round(6 * np.log10(fastest / slowest)), 12, 36))
    return np.geomspace(fastest, slowest, count)


def _equations(curves: Sequence[Curve], modes: Array, target: float) -> tuple[Array, Array]:
    """Normal equations of each run, weighted by nearness to the target: (runs, 2k, 2k) and (runs, 2k)."""
    grams, moments = [], []
    for curve in curves:
        chosen = _thinned(curve)
        chosen = chosen[curve.steps[chosen] > curve.known]
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


def _longest_plateau(curves: Sequence[Curve]) -> tuple[Curve, int]:
    """The run that saw the most examples at its initial rate, and the index of its last point at that rate."""
    ends = [_end_of_first_rate(c) for c in curves]
    longest = int(np.argmax([c.steps[i] * c.parameters.global_batch_size for c, i in zip(curves, ends, strict=True)]))
    return curves[longest], ends[longest]


def _noise_at(curve: Curve, i: int, modes: Array) -> Array:
    """Noise features at point `i` of a run, per unit of the loss there; the others are 0."""
    row = features(modes, runs_of([curve.parameters]), curve.steps[None, i : i + 1])[0, 0] / curve.losses[i]
    row[: len(modes)] = 0.0
    return np.asarray(row)


def _calm(curve: Curve, loss: float, modes: Array, unit: Array) -> Array:
    """A prior that every mode would settle at an alike, limited noise, as it does if gradient noise is as the curvature.

    The noise of slow modes builds up over runs longer than any so far: without a prior, misfits hide there as a loss
    that rises for ever after. Noise like curvature: Zhang et al. 2019, appendix; Zhu et al. 2019.
    """
    x = np.minimum(curve.parameters.effective_learning_rate * modes, 1.0)
    settled = curve.parameters.effective_learning_rate**2 / curve.parameters.global_batch_size / (1.0 - (1.0 - x) ** 2)
    per_mode = settled / (AT_REST / len(modes) * loss)
    return np.diag(np.concatenate([np.zeros(len(modes)), per_mode * unit[len(modes) :]]) ** 2)


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
