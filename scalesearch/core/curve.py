"""Steps to target as a function of the global batch size, and its three regimes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from scalesearch.core.parameters import Parameters

MIN_BATCH_SIZES = 4
MIN_BATCH_SIZES_FOR_SHARPNESS = 5
MOST_SHARPNESS = 4.0  # a corner, as far as data can tell

Vector = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """What leads at one global batch size: its expected steps to target, with their 90 % interval."""

    parameters: Parameters
    steps: float
    interval: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class ScalingCurve:
    """S(B) = s_min · (1 + (b_crit / B)^sharpness)^(1 / sharpness).

    With sharpness 1 it is that of McCandlish et al. 2018 (eq. 5.1 with E = B·S); real networks often have a sharper knee.
    b_crit is where the steps of perfect scaling, s_min · b_crit / B, meet the fewest. `residual` is the root mean square of
    log(measured / fitted) steps.
    """

    s_min: float
    b_crit: float
    sharpness: float = 1.0
    residual: float

    def steps(self, global_batch_size: float) -> float:
        """Steps to target S(B)."""
        return float(self.s_min * (1.0 + (self.b_crit / global_batch_size) ** self.sharpness) ** (1.0 / self.sharpness))

    @property
    def perfect_scaling_up_to(self) -> float:
        """Largest batch size at which doubling it still nearly halves the steps: local slope −0.9 on log-log axes."""
        return float(self.b_crit / 9.0 ** (1.0 / self.sharpness))

    @property
    def maximal_data_parallelism_from(self) -> float:
        """Smallest batch size beyond which more is almost useless: local slope −0.1 on log-log axes."""
        return float(self.b_crit * 9.0 ** (1.0 / self.sharpness))


def fit_scaling_curve(steps_to_target: Mapping[int, float]) -> ScalingCurve | None:
    """Least squares in log steps over {global batch size: steps to target}; None below MIN_BATCH_SIZES of them.

    The sharpness of the knee is fitted from MIN_BATCH_SIZES_FOR_SHARPNESS of them on.
    """
    if len(steps_to_target) < MIN_BATCH_SIZES:
        return None
    batch = np.array(sorted(steps_to_target), dtype=float)
    log_steps = np.log([steps_to_target[int(b)] for b in batch])
    free = len(batch) >= MIN_BATCH_SIZES_FOR_SHARPNESS

    def residuals(x: Vector) -> Vector:
        log_s_min, log_b_crit, sharpness = x[0], x[1], np.exp(x[2]) if free else 1.0
        knee = np.logaddexp(0.0, sharpness * (log_b_crit - np.log(batch))) / sharpness
        return np.asarray(log_s_min + knee - log_steps)

    # Outside of this box S(B) is a straight line within the data, and s_min or b_crit alone means nothing.
    low = [log_steps.min() - np.log(1e3), np.log(batch[0] / 100), 0.0]
    high = [log_steps.max() + 1e-9, np.log(batch[-1] * 100), np.log(MOST_SHARPNESS)]
    count = 3 if free else 2
    starts = [[log_steps.min(), np.log(np.median(batch)), sharpness] for sharpness in (0.1, 0.8)]
    fits = [
        least_squares(residuals, np.clip(start, low, high)[:count], bounds=(low[:count], high[:count]))
        for start in starts[: count - 1]
    ]
    fit = min(fits, key=lambda f: f.cost)
    return ScalingCurve(
        s_min=float(np.exp(fit.x[0])),
        b_crit=float(np.exp(fit.x[1])),
        sharpness=float(np.exp(fit.x[2])) if free else 1.0,
        residual=float(np.sqrt(np.mean(fit.fun**2))),
    )
