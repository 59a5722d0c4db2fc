"""Run-to-run noise, estimated from whatever is there: first the fluctuation of single curves, then hits and repeats."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scalesearch.core.results import CrossingRule, TrialResult
from scalesearch.core.surrogate.cost import Noise
from scalesearch.core.surrogate.loss_curves import LossCurves
from scalesearch.core.surrogate.modes import Array, runs_of

LEAST_LEVEL = 0.025  # runs of real networks differ by as much from seed to seed, however calm each of them is
LOG_COST_RANGE = (0.08, 0.5)  # for the same reason
NEAR = 0.2
OF_MEDIAN = 0.67  # the standard deviation of the median of three, in those of one
PRIOR_HITS = 3.0
PRIOR_REPEATS = 2.0


def estimate_noise(
    results: Sequence[TrialResult],
    losses: Sequence[Array],
    trust: Array,
    *,
    model: LossCurves,
    target: float,
    rule: CrossingRule = "smoothed",
) -> Noise:
    """Level and bias from where runs near the target lie on the model, log cost from fluctuation over slope and from repeats.

    `trust` says how much each run counts: one far from the best parameters tells little of those near them.
    """
    # Runs that got there, if there are any: at rates far from the best, plateaus fluctuate far more.
    hits = [curve for r, curve in zip(results, losses, strict=True) if r.reached is not None and len(curve) >= 6]
    fluctuation = (OF_MEDIAN if rule == "smoothed" else 1.0) * _fluctuation(hits or losses)
    misfits, near = _misfits(results, losses, model, target)
    weights = trust[near]
    bias = float((weights * misfits).sum() / (weights.sum() + PRIOR_HITS))
    prior = max(fluctuation, LEAST_LEVEL)
    level = np.sqrt((PRIOR_HITS * prior**2 + (weights * (misfits - bias) ** 2).sum()) / (PRIOR_HITS + weights.sum()))
    slope = _slope_at_hits(results, losses)
    first = float(np.clip(fluctuation / slope, *LOG_COST_RANGE))
    squares, degrees = _repeats(results)
    log_cost = np.sqrt((PRIOR_REPEATS * first**2 + squares) / (PRIOR_REPEATS + degrees))
    return Noise(level=float(min(level, 0.3)), bias=float(np.clip(bias, -0.3, 0.3)), log_cost=float(log_cost))


def _fluctuation(losses: Sequence[Array]) -> float:
    """Standard deviation of log loss from one evaluation to the next, beyond any smooth trend."""
    second = [np.diff(np.log(curve[-12:]), 2) for curve in losses if len(curve) >= 6 and np.isfinite(curve).all()]
    if not second:
        return 0.03
    return float(1.4826 * np.median(np.abs(np.concatenate(second))) / np.sqrt(6.0))


def _misfits(
    results: Sequence[TrialResult], losses: Sequence[Array], model: LossCurves, target: float
) -> tuple[Array, NDArray[np.intp]]:
    """log(model / observed) where runs met the target, or ended near it, and which these are.

    Above 0 if runs do better than the model. One for each seed, as runs of one seed may have most of their steps in common.
    """
    near, steps, observed = [], [], []
    seeds: set[int] = set()
    for i, (result, curve) in enumerate(zip(results, losses, strict=True)):
        if result.seed in seeds:
            continue
        if result.reached is not None:
            end, loss = result.reached.steps, target
        elif len(curve) >= 3 and abs(np.log(np.median(curve[-3:]) / target)) < NEAR:
            end, loss = float(result.measurements[-2].step), float(np.median(curve[-3:]))
        else:
            continue
        seeds.add(result.seed)
        near.append(i)
        steps.append([end])
        observed.append(loss)
    if not near:
        return np.zeros(0), np.zeros(0, dtype=np.intp)
    predicted = model.predict(runs_of([results[i].parameters for i in near]), np.array(steps))[0, :, 0]
    misfits = np.clip(np.log(np.maximum(predicted, 1e-12) / np.array(observed)), -0.5, 0.5)
    return np.asarray(misfits), np.array(near)


def _slope_at_hits(results: Sequence[TrialResult], losses: Sequence[Array]) -> float:
    """Typical −d log loss / d log steps on the way to the target."""
    slopes = []
    for result, curve in zip(results, losses, strict=True):
        if result.reached is None or len(curve) < 6:
            continue
        steps = np.array([m.step for m in result.measurements[1:]], dtype=float)
        late = steps >= 0.6 * steps[-1]
        if late.sum() >= 4 and np.isfinite(curve[late]).all():
            slopes.append(-np.polyfit(np.log(steps[late]), np.log(curve[late]), 1)[0])
    return max(float(np.median(slopes)), 0.1) if slopes else 0.4


def _repeats(results: Sequence[TrialResult]) -> tuple[float, int]:
    """Sum of squares and degrees of freedom of log cost among runs of the same parameters."""
    groups = defaultdict(list)
    for r in results:
        if r.reached is not None:
            groups[r.parameters].append(np.log(r.reached.steps))
    repeated = [np.array(g) for g in groups.values() if len(g) > 1]
    return sum(float(((g - g.mean()) ** 2).sum()) for g in repeated), sum(len(g) - 1 for g in repeated)
