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
    shape = (len(runs), steps.shape[1], len(modes))
    decay, noise = np.empty(shape), np.empty(shape)
    at_start_decay, at_start_noise = np.ones((len(runs), len(modes))), np.zeros((len(runs), len(modes)))
    segments = runs.starts.shape[1]
    for s in range(segments):
        start = runs.starts[:, s]
        end = runs.starts[:, s + 1] if s + 1 < segments else np.full(len(runs), _NEVER)
        log_factor, settled = _step(modes, runs.rates[:, s], runs.batch)
        grown = np.exp(np.minimum(_within(steps, start[:, None])[:, :, None] * log_factor[:, None], _MAX_EXPONENT))
        here = ((steps > start[:, None]) | (s == 0))[:, :, None] & (steps <= end[:, None])[:, :, None]
        np.copyto(decay, at_start_decay[:, None] * grown, where=here)
        np.copyto(noise, settled[:, None] + grown * (at_start_noise - settled)[:, None], where=here)
        if s + 1 < segments:
            length = np.where(end < _NEVER, end - start, 0.0)
            grown_end = np.exp(np.minimum(length[:, None] * log_factor, _MAX_EXPONENT))
            at_start_noise = settled + grown_end * (at_start_noise - settled)
            at_start_decay = at_start_decay * grown_end
    return np.concatenate([decay, noise], axis=2)


def _within(steps: Array, start: Array) -> Array:
    return np.maximum(steps - start, 0.0)


def _step(modes: Array, rate: Array, batch: Array) -> tuple[Array, Array]:
    """Log of a step's factor (1 − e λ)², and the fixed point that the noise of each mode settles at."""
    x = rate[:, None] * modes
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
