"""Seconds per step as a function of the global batch size, from the step times that trials measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from scalesearch.core.results import TrialResult

MIN_STEPS = 3


@dataclass(frozen=True)
class StepTimes:
    """t(B) = fixed + per_example · B, in seconds: launch, synchronisation and the optimizer; then the examples.

    Ranking trials by steps · t(B) instead of by the seconds that each happened to take keeps a noisy machine from choosing.
    """

    fixed: float
    per_example: float

    def __call__(self, global_batch_size: int) -> float:
        """Seconds per step."""
        return self.fixed + self.per_example * global_batch_size


def fit_step_times(results: Sequence[TrialResult]) -> StepTimes:
    """Least squares in relative error over the median step time at each batch size.

    With one batch size, half of its step time is taken as fixed; without any measured trial, every step costs a second.
    """
    by_size = defaultdict(list)
    for result in results:
        last = result.measurements[-1] if result.measurements else None
        if last is not None and last.step >= MIN_STEPS and last.train_seconds > 0:
            by_size[result.parameters.global_batch_size].append(last.train_seconds / last.step)
    if not by_size:
        return StepTimes(1.0, 0.0)
    sizes = np.array(sorted(by_size), dtype=float)
    seconds = np.array([np.median(by_size[int(s)]) for s in sizes])
    if len(sizes) == 1:
        return StepTimes(0.5 * float(seconds[0]), 0.5 * float(seconds[0] / sizes[0]))
    rows = np.column_stack([1.0 / seconds, sizes / seconds])
    scale = np.abs(rows).max(axis=0)
    solution, _ = nnls(rows / scale, np.ones(len(sizes)))
    fixed, per_example = solution / scale
    return StepTimes(float(fixed), float(per_example))
