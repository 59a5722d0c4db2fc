"""Stop a trial whose learning curve, carried on, misses the target within its cap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scalesearch.core.results import Measurement, Objective

MIN_POINTS = 6
MIN_MEASURED = 8
CLEARLY = 0.02  # nats above the target


def misses_target(
    measured: Sequence[Measurement], objective: Objective, *, boundaries: Sequence[int], cap_examples: float
) -> bool:
    """Whether the metric, falling on at its present rate plus two standard errors, stays above the target until the cap.

    Never judged while a decay is still ahead within the cap: the metric drops there. The slope is that of log metric
    against examples, over the last 40 % of the run since the last boundary; a log-linear decline is optimistic, as curves
    flatten.
    """
    now = measured[-1].examples
    if objective.target is None or objective.target <= 0 or len(measured) < MIN_MEASURED:
        return False
    if any(now < b < cap_examples for b in boundaries):
        return False
    since = max([0.6 * now, *(b for b in boundaries if b <= now)])
    points = [(m.examples, m.metrics[objective.metric]) for m in measured[1:] if m.examples >= since]
    x, y = np.array([p[0] for p in points], dtype=float), np.array([p[1] for p in points])
    if len(points) < MIN_POINTS or (y <= 0).any():
        return False
    if objective.direction == "maximize":
        y, target = 1.0 / y, 1.0 / objective.target
    else:
        target = objective.target
    log_y = np.log(y)
    spread = x - x.mean()
    slope = (spread @ log_y) / (spread @ spread)
    residual = log_y - log_y.mean() - slope * spread
    error = np.sqrt(residual @ residual / (len(x) - 2) / (spread @ spread))
    ahead = cap_examples - now
    best_case = log_y[-4:].mean() + (min(slope, 0.0) - 2.0 * error) * ahead
    return bool(best_case > np.log(target) + CLEARLY)
