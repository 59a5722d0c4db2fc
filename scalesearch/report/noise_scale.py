"""The gradient noise scale of a run in words, beside the critical batch size that was measured."""

from __future__ import annotations

import math
from typing import Any

from scalesearch.core.curve import ScalingCurve
from scalesearch.core.noise_scale import NoiseScale, of_second_half
from scalesearch.core.results import TrialResult

WHERE_IT_MISLEADS = (
    "it takes all directions as equally curved, knows neither momentum nor Adam's scaling, grows while the loss falls, and has "
    "been off by a factor of two on MNIST and far too small for language models: where the two differ, measured steps count"
)


def noise_scale_lines(run: TrialResult, critical_batch_size: float | None) -> list[str]:
    """The scale in the second half of a run, compared with the critical batch size if that was measured; none without it."""
    scale = _scale(run)
    if scale is None:
        return []
    low, high = scale.interval
    interval = f"{low:,.0f} to {high:,.0f}" if math.isfinite(high) else f"at least {low:,.0f}"
    of = f"90 %: {interval}; {scale.samples} samples in trial {run.number}, its second half"
    value = f"{scale.value:,.0f}" if math.isfinite(scale.value) else "unknown"
    if critical_batch_size is None:
        beside = "a forecast of the critical batch size, which was not measured"
    else:
        beside = f"{scale.value / critical_batch_size:.2g} × the critical batch size"
    if not math.isfinite(scale.value):
        beside = "the gradient was not told from its noise"
    return [f"gradient noise scale {value} ({of}): {beside}", f"on the noise scale: {WHERE_IT_MISLEADS}"]


def measured_critical_batch_size(curve: ScalingCurve | None, sizes: list[int]) -> float | None:
    """The fitted curve's, if it lies within the batch sizes that reached the target."""
    return curve.b_crit if curve is not None and sizes and sizes[0] <= curve.b_crit <= sizes[-1] else None


def noise_scale_json(run: TrialResult | None) -> dict[str, Any] | None:
    """What `noise_scale_lines` says, as numbers; null for what is infinite."""
    scale = _scale(run) if run is not None else None
    if scale is None or run is None:
        return None
    ends = [x if math.isfinite(x) else None for x in (scale.value, *scale.interval)]
    return {"value": ends[0], "interval": ends[1:], "samples": scale.samples, "trial": run.number}


def _scale(run: TrialResult) -> NoiseScale | None:
    return of_second_half(m.noise for m in run.measurements)
