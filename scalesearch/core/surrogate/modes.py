"""A loss as a sum of modes that decay and gather gradient noise, for any piecewise-constant learning rate.

The second moment of one mode with curvature λ under SGD (Zhang et al. 2019, noisy quadratic model):

    P ← (1 − e λ)² P + e² c / B,      loss = Σ P over modes

so that a loss is linear in the initial moments a and in the noise strengths c of a fixed grid of modes. `e` is the effective
learning rate lr / (1 − momentum), B the global batch size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalesearch.core.parameters import Parameters

Array = NDArray[np.float64]

LINEAR_PIECES = 12
STABLE = 1.96  # the largest e λ: whether a rate is stable is judged by runs, not by the fastest mode of a fit
_NEVER = 1e18
_MAX_EXPONENT = 60.0


@dataclass(frozen=True)
class Runs:
    """Several runs as arrays: `starts` (runs, segments) in steps, `rates` (runs, segments) effective, `batch` (runs,)."""

    starts: Array
    rates: Array
    batch: Array

    def __len__(self) -> int:
        return len(self.batch)


def runs_of(parameters: Sequence[Parameters]) -> Runs:
    """The schedules of `parameters` in steps, linear pieces cut into LINEAR_PIECES constant ones."""
    pieces = [_pieces(p) for p in parameters]
    width = max(len(p) for p in pieces)
    starts = np.full((len(pieces), width), _NEVER)
    rates = np.zeros((len(pieces), width))
    for i, run in enumerate(pieces):
        for j, (start, rate) in enumerate(run):
            starts[i, j], rates[i, j] = start, rate
    return Runs(starts, rates, np.array([p.global_batch_size for p in parameters], dtype=float))


def features(modes: Array, runs: Runs, steps: Array) -> Array:
    """Remaining share of the initial loss and gathered noise per unit strength, (runs, points, 2 · modes).

    `steps` (runs, points) are the completed steps at which the loss is wanted.
    """
    decays, noises, log_factors, settled = _at_segment_starts(modes, runs)
    segment = np.maximum((steps[:, :, None] > runs.starts[:, None]).sum(axis=2) - 1, 0)
    within = steps - np.take_along_axis(runs.starts, segment, 1)
    run = np.arange(len(runs))[:, None]
    grown = np.exp(np.minimum(within[:, :, None] * log_factors[run, segment], _MAX_EXPONENT))
    at_rest = settled[run, segment]
    return np.concatenate([decays[run, segment] * grown, at_rest + grown * (noises[run, segment] - at_rest)], axis=2)


def _at_segment_starts(modes: Array, runs: Runs) -> tuple[Array, Array, Array, Array]:
    """Decay, noise, log of a step's factor and fixed point of the noise for each segment: (runs, segments, modes)."""
    shape = (len(runs), runs.starts.shape[1], len(modes))
    decays, noises, log_factors, settled = (np.empty(shape) for _ in range(4))
    decay, noise = np.ones((len(runs), len(modes))), np.zeros((len(runs), len(modes)))
    for s in range(shape[1]):
        decays[:, s], noises[:, s] = decay, noise
        log_factors[:, s], settled[:, s] = _step(modes, runs.rates[:, s], runs.batch)
        if s + 1 < shape[1]:
            end = runs.starts[:, s + 1]
            length = np.where(end < _NEVER, end - runs.starts[:, s], 0.0)
            grown = np.exp(np.minimum(length[:, None] * log_factors[:, s], _MAX_EXPONENT))
            decay, noise = decay * grown, settled[:, s] + grown * (noise - settled[:, s])
    return decays, noises, log_factors, settled


def _step(modes: Array, rate: Array, batch: Array) -> tuple[Array, Array]:
    """Log of a step's factor (1 − e λ)², and the fixed point that the noise of each mode settles at."""
    x = np.minimum(rate[:, None] * modes, STABLE)
    factor = np.maximum((1.0 - x) ** 2, 1e-300)
    difference = 1.0 - factor
    difference = np.where(np.abs(difference) < 1e-12, 1e-12, difference)
    return np.log(factor), rate[:, None] ** 2 / batch[:, None] / difference


def _pieces(parameters: Parameters) -> list[tuple[float, float]]:
    damping = 1.0 - (parameters.momentum or 0.0)
    size = parameters.global_batch_size
    segments = parameters.schedule.segments()
    pieces = []
    for i, segment in enumerate(segments):
        if segment.slope == 0.0 or i + 1 == len(segments):
            pieces.append((segment.start / size, segment.rate / damping))
            continue
        length = segments[i + 1].start - segment.start
        for k in range(LINEAR_PIECES):
            middle = (k + 0.5) / LINEAR_PIECES * length
            start = segment.start + k / LINEAR_PIECES * length
            pieces.append((start / size, (segment.rate + segment.slope * middle) / damping))
    return pieces
