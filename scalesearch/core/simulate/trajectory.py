"""The expected loss of a run, and where it first crosses a level."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from scalesearch.core.parameters import Parameters
from scalesearch.core.schedule import Schedule, first_step_from
from scalesearch.core.simulate.quadratic import Dynamics, Floats, Modes, Whole, dynamics
from scalesearch.core.simulate.workload import SimulatedWorkload

# A stretch of varying learning rate becomes so many constant pieces: exact up to that many steps, and beyond within
# 1 % of the loss for a linear decay to a hundredth (tests/core/simulate/test_trajectory.py).
PIECES = 64
GRID = 32  # points of each piece at which a first crossing is looked for


@dataclass(frozen=True)
class Pieces:
    """Constant acting learning rates for so many steps: arrays of shape (pieces, …), one entry for each run."""

    rates: Floats
    steps: Whole


def pieces_of(workload: SimulatedWorkload, schedule: Schedule, *, batch: int, momentum: float, end_step: int) -> Pieces:
    """A schedule as constant pieces of acting learning rate, of one run."""
    segments = schedule.segments()
    starts = [min(first_step_from(s.start, global_batch_size=batch), end_step) for s in segments]
    edges = np.array([*starts, end_step], dtype=np.int64)
    factor = workload.learning_rate(schedule.learning_rate, batch) / schedule.learning_rate
    first, last = [], []
    for segment, (start, end) in zip(segments, pairwise(edges.tolist()), strict=True):
        first.append(factor * (segment.rate + segment.slope * (start * batch - segment.start)))
        last.append(factor * (segment.rate + segment.slope * (max(end - 1, start) * batch - segment.start)))
    return constant_pieces(workload, edges, np.array(first), np.array(last), momentum=momentum)


def constant_pieces(
    workload: SimulatedWorkload, edges: Whole, first: Floats, last: Floats, *, momentum: float
) -> Pieces:
    """Segments with linear rates as constant pieces.

    `edges` (segments + 1, …) are whole steps; the acting rate goes from `first` (segments, …) at a segment's first
    step to `last` at its last one. Sharpening multiplies it.
    """
    sharpens = workload.sharpening.factor != 1.0
    if not sharpens and np.array_equal(first, last):
        return Pieces(first, np.diff(edges, axis=0))
    # Denser at the start of a segment, where sharpening is fastest.
    share = np.linspace(0.0, 1.0, PIECES + 1) ** (2.0 if sharpens else 1.0)
    share = share.reshape(-1, *[1] * (edges.ndim - 1))
    rates, steps = [], []
    for i in range(len(first)):
        length = edges[i + 1] - edges[i]
        within = np.round(share * length).astype(np.int64)
        middle = (within[:-1] + np.maximum(within[1:] - 1, within[:-1])) / 2.0 / np.maximum(length - 1, 1)
        rates.append(first[i] + (last[i] - first[i]) * middle)
        steps.append(np.diff(within, axis=0))
    rate, count = np.concatenate(rates), np.concatenate(steps)
    if sharpens:
        time = np.cumsum(rate * count, axis=0) / (1.0 - momentum)
        rate = rate * workload.sharpening.at(time - 0.5 * rate * count / (1.0 - momentum))
    return Pieces(rate, count)


class Trajectory:
    """The expected loss of one run, asked at ascending steps; the run learns `speed` times as fast as the model."""

    def __init__(self, workload: SimulatedWorkload, parameters: Parameters, *, end_step: int, speed: float) -> None:
        self._modes = workload.modes
        self._batch, self._momentum = parameters.global_batch_size, parameters.momentum or 0.0
        self._speed = speed
        pieces = pieces_of(workload, parameters.schedule, batch=self._batch, momentum=self._momentum, end_step=end_step)
        self._rates = pieces.rates
        self._ends = np.cumsum(pieces.steps).tolist()
        self._piece, self._dynamics = 0, self._dynamics_of(0)
        self._clock = 0
        self._moments = self._modes.initial_moments(heavy_ball=bool(self._momentum))

    def loss(self, step: int) -> float:
        """The expected loss after `step` steps, none of them before the step asked for last."""
        while step > self._ends[self._piece] and self._piece + 1 < len(self._ends):
            self._advance(self._ends[self._piece])
            self._piece += 1
            self._dynamics = self._dynamics_of(self._piece)
        self._advance(step)
        return float(self._modes.loss(self._moments))

    def _advance(self, step: int) -> None:
        clock = round(step * self._speed)
        if clock > self._clock:
            self._moments = self._dynamics.advance(self._moments, np.array(clock - self._clock))
            self._clock = clock

    def _dynamics_of(self, piece: int) -> Dynamics:
        rate = self._rates[piece]
        return dynamics(self._modes, rate, batch=self._batch, momentum=self._momentum)


def first_crossing(
    workload: SimulatedWorkload, pieces: Pieces, *, batch: int, momentum: float, loss: float
) -> tuple[Floats, Floats]:
    """The steps after which each run's expected loss first falls below `loss` (inf: never), and its last loss.

    `pieces` has arrays (pieces, runs). Steps are whole ones, interpolated in the logarithm of the loss. A crossing is
    looked for at GRID points of each piece and then between two of them, so that a shorter dip is overlooked.
    """
    modes, runs = workload.modes, pieces.rates.shape[1]
    crossed, final = np.full(runs, np.inf), np.full(runs, workload.initial_loss)
    if workload.initial_loss < loss:
        return np.zeros(runs), final
    start = modes.initial_moments(heavy_ball=bool(momentum))
    moments = np.broadcast_to(start, (runs, *start.shape))
    left, done = np.arange(runs), np.zeros(runs, dtype=np.int64)
    for piece_rates, piece_steps in zip(pieces.rates, pieces.steps, strict=True):
        rates, steps = piece_rates[left], piece_steps[left]
        walk = _Walk(modes=modes, rates=rates, batch=batch, momentum=momentum, loss=loss)
        found, moments, final[left] = walk.first_below(moments, steps)
        crossed[left] = done[left] + found
        done[left] += steps
        still = np.isinf(found)
        left, moments = left[still], moments[still]
        if not len(left):
            break
    return crossed, final


@dataclass(frozen=True, kw_only=True)
class _Walk:
    """Runs at constant rates on their way to a loss."""

    modes: Modes
    rates: Floats
    batch: int
    momentum: float
    loss: float

    def first_below(self, moments: Floats, steps: Whole) -> tuple[Floats, Floats, Floats]:
        """Steps to the first crossing within `steps` (inf: none), and at their end the moments and the loss."""
        at_constant_rate = dynamics(self.modes, self.rates, batch=self.batch, momentum=self.momentum)
        stride = np.maximum(-(-steps // GRID), 1)
        whole_strides = steps // stride
        leap = at_constant_rate.leap(stride)
        found, before_found = np.full(len(steps), np.inf), np.array(moments)
        losses = self.modes.loss(moments)
        for k in range(int(whole_strides.max(initial=0)) + 1):
            if k < whole_strides.max():
                walks = k < whole_strides
                new = np.where(walks[:, None, None], leap(moments), moments)
            else:
                new = at_constant_rate.advance(moments, steps - whole_strides * stride)
            new_losses = self.modes.loss(new)
            hit = (new_losses < self.loss) & np.isinf(found)
            with np.errstate(divide="ignore", invalid="ignore"):
                share = np.log(losses / self.loss) / np.log(losses / new_losses)
            found[hit] = np.minimum(k, whole_strides)[hit] * stride[hit] + np.clip(share[hit], 0.0, 1.0)
            before_found[hit] = moments[hit]
            moments, losses = new, new_losses
            if np.isfinite(found).all():
                break
        self._refine(found, before_found, stride)
        return found, moments, losses

    def _refine(self, found: Floats, before: Floats, stride: Whole) -> None:
        """Look once more for each crossing, within the stride in which it was found."""
        coarse = np.flatnonzero(np.isfinite(found) & (stride > 1))
        if len(coarse):
            walk = replace(self, rates=self.rates[coarse])
            within, _, _ = walk.first_below(before[coarse], stride[coarse])
            # Sums in another order may differ in their last digit.
            within = np.minimum(within, stride[coarse])
            found[coarse] = np.floor(found[coarse] / stride[coarse]) * stride[coarse] + within
