"""Steps to target as a function of the global batch size, and its three regimes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

MIN_BATCH_SIZES = 4

Vector = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ScalingCurve:
    """S(B) = s_min · (1 + b_crit / B) (McCandlish et al. 2018, eq. 5.1 with E = B·S).

    `residual` is the root mean square of log(measured / fitted) steps.
    """

    s_min: float
    b_crit: float
    residual: float

    def steps(self, global_batch_size: float) -> float:
        """Steps to target S(B)."""
        return self.s_min * (1.0 + self.b_crit / global_batch_size)

    @property
    def perfect_scaling_up_to(self) -> float:
        """Largest batch size at which doubling it still nearly halves the steps: local slope −0.9 on log-log axes."""
        return self.b_crit / 9.0

    @property
    def maximal_data_parallelism_from(self) -> float:
        """Smallest batch size beyond which more is almost useless: local slope −0.1 on log-log axes."""
        return self.b_crit * 9.0


def fit_scaling_curve(steps_to_target: Mapping[int, float]) -> ScalingCurve | None:
    """Least squares in log steps over {global batch size: steps to target}; None below MIN_BATCH_SIZES of them."""
    if len(steps_to_target) < MIN_BATCH_SIZES:
        return None
    batch = np.array(sorted(steps_to_target), dtype=float)
    log_steps = np.log([steps_to_target[int(b)] for b in batch])

    def residuals(x: Vector) -> Vector:
        return np.asarray(x[0] + np.logaddexp(0.0, x[1] - np.log(batch)) - log_steps)

    start = np.array([log_steps.min(), np.log(np.median(batch))])
    # Outside of this box S(B) is a straight line within the data, and s_min or b_crit alone means nothing.
    bounds = (
        [log_steps.min() - np.log(1e3), np.log(batch[0] / 100)],
        [log_steps.max() + 1e-9, np.log(batch[-1] * 100)],
    )
    fit = least_squares(residuals, np.clip(start, *bounds), bounds=bounds)
    return ScalingCurve(
        s_min=float(np.exp(fit.x[0])),
        b_crit=float(np.exp(fit.x[1])),
        residual=float(np.sqrt(np.mean(fit.fun**2))),
    )
