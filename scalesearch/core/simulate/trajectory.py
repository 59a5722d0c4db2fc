"""The expected loss of a run, and where it first crosses a level."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from scalesearch.core.parameters import Parameters
from scalesearch.core.schedule import Schedule, first_step_from
from scalesearch.core.simulate.quadratic import Dynamics, Floats, Whole, dynamics
from scalesearch.core.simulate.workload import SimulatedWorkload
from scalesearch.core.stopping import CLIMBED, ENOUGH_PROGRESS, EXPLODED

# A linear decay becomes so many constant pieces: exact up to that many steps, and beyond within 1 % of the loss for a
# decay to a hundredth. A constant segment whose curvature sharpens needs fewer, for 2 %.
LINEAR_PIECES = 64
SHARPENING_PIECES = 16
GRID = 32  # points at which a first crossing is looked for in each segment, about


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
    constant = np.array_equal(first, last)
    if constant and not sharpens:
        return Pieces(first, np.diff(edges, axis=0))
    # Denser at the start of a segment, where sharpening is fastest.
    number = SHARPENING_PIECES if constant else LINEAR_PIECES
    share = np.linspace(0.0, 1.0, number + 1) ** (2.0 if sharpens else 1.0)
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


@dataclass(frozen=True, eq=False)
class Position:
    """How far a run has come: the model's own steps, and its moments then."""

    clock: int
    moments: Floats


class Trajectory:
    """The expected loss of one run, asked at ascending steps; the run learns `speed` times as fast as the model.

    Set its `position` to that of another run to go on from there.
    """

    def __init__(self, workload: SimulatedWorkload, parameters: Parameters, *, end_step: int, speed: float) -> None:
        self._modes = workload.modes
        self._batch, self._momentum = parameters.global_batch_size, parameters.momentum or 0.0
        self._speed = speed
        pieces = pieces_of(workload, parameters.schedule, batch=self._batch, momentum=self._momentum, end_step=end_step)
        self._rates = pieces.rates
        self._ends = np.cumsum(pieces.steps).tolist()
        self._piece, self._dynamics = 0, self._dynamics_of(0)
        self.position = Position(0, self._modes.initial_moments(heavy_ball=bool(self._momentum)))

    def loss(self, step: int) -> float:
        """The expected loss after `step` steps, none of them before the step asked for last."""
        while step > self._ends[self._piece] and self._piece + 1 < len(self._ends):
            self._advance(self._ends[self._piece])
            self._piece += 1
            self._dynamics = self._dynamics_of(self._piece)
        self._advance(step)
        return float(self._modes.loss(self.position.moments))

    def _advance(self, step: int) -> None:
        clock = round(step * self._speed)
        if clock > self.position.clock:
            steps = np.array(clock - self.position.clock)
            self.position = Position(clock, self._dynamics.advance(self.position.moments, steps))

    def _dynamics_of(self, piece: int) -> Dynamics:
        rate = self._rates[piece]
        return dynamics(self._modes, rate, batch=self._batch, momentum=self._momentum)


def first_crossing(
    workload: SimulatedWorkload, pieces: Pieces, *, batch: int, momentum: float, loss: float
) -> tuple[Floats, Floats]:
    """The steps after which each run's expected loss first falls below `loss` (inf: never), and its last loss.

    `pieces` has arrays (pieces, runs). Steps are whole ones, interpolated in the logarithm of the loss. The loss is
    looked at at some points of each piece, and for a crossing again between two of them. A run that
    `core.stopping.verdict` would call diverged at these points never crosses.
    """
    runs = pieces.rates.shape[1]
    crossed, final = np.full(runs, np.inf), np.full(runs, workload.initial_loss)
    if workload.initial_loss < loss:
        return np.zeros(runs), final
    walk = _Walk(workload=workload, batch=batch, momentum=momentum, loss=loss)
    start = workload.modes.initial_moments(heavy_ball=bool(momentum))
    moments, lowest = np.broadcast_to(start, (runs, *start.shape)), final.copy()
    left, done = np.arange(runs), np.zeros(runs, dtype=np.int64)
    points = GRID if len(pieces.rates) < SHARPENING_PIECES else 2
    for rates, steps in zip(pieces.rates, pieces.steps, strict=True):
        path = walk.path(rates[left], steps[left], moments, lowest, points=points)
        crossed[left] = done[left] + walk.crossing(rates[left], path)
        final[left] = path.losses[path.end, np.arange(len(left))]
        done[left] += steps[left]
        goes_on = ~(path.crosses | path.diverges)
        left, moments, lowest = left[goes_on], path.moments[-1][goes_on], path.lowest[-1][goes_on]
        if not len(left):
            break
    return crossed, final


@dataclass(frozen=True, kw_only=True)
class _Path:
    """Runs at points of a piece with constant rates: arrays (points, runs, …). `end` (runs,) is a run's last point."""

    steps: Whole
    moments: Floats
    losses: Floats
    lowest: Floats
    end: Whole
    crosses: NDArray[np.bool_]
    diverges: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class _Walk:
    """Walks runs at constant rates towards a loss."""

    workload: SimulatedWorkload
    batch: int
    momentum: float
    loss: float

    def path(self, rates: Floats, steps: Whole, moments: Floats, lowest: Floats, *, points: int = GRID) -> _Path:
        """Up to `steps` steps from moments that were reached with `lowest` as the lowest loss so far."""
        modes = self.workload.modes
        at_constant_rate = dynamics(modes, rates, batch=self.batch, momentum=self.momentum)
        stride = np.maximum(-(-steps // points), 1)
        # The odd steps first, then whole strides.
        passed = [np.zeros_like(steps), steps % stride]
        visited = [moments, at_constant_rate.advance(moments, passed[-1])]
        leap = at_constant_rate.leap(stride)
        while np.any(walks := passed[-1] < steps):
            visited.append(np.where(walks[:, None, None], leap(visited[-1]), visited[-1]))
            passed.append(np.where(walks, passed[-1] + stride, passed[-1]))
        losses = modes.loss(np.array(visited))
        lowest = np.minimum.accumulate(np.vstack([np.minimum(lowest, losses[0]), losses[1:]]))
        diverged = ~(losses <= self._highest(lowest))
        ends = diverged | (losses < self.loss)
        end = np.where(ends.any(axis=0), ends.argmax(axis=0), len(losses) - 1)
        index = np.arange(len(steps))
        return _Path(
            steps=np.array(passed),
            moments=np.array(visited),
            losses=losses,
            lowest=lowest,
            end=end,
            crosses=(losses < self.loss)[end, index],
            diverges=diverged[end, index],
        )

    def _highest(self, lowest: Floats) -> Floats:
        """The loss above which a run that was at `lowest` has diverged, as in `core.stopping`."""
        initial = self.workload.initial_loss
        has_learnt = lowest < ENOUGH_PROGRESS * initial
        return np.where(has_learnt, lowest + CLIMBED * (initial - lowest), EXPLODED * initial)

    def crossing(self, rates: Floats, path: _Path) -> Floats:
        """Steps from the start of the path to the first crossing of each run (inf: none)."""
        found = np.full(len(rates), np.inf)
        runs = np.flatnonzero(path.crosses)
        if not len(runs):
            return found
        after = np.maximum(path.end[runs], 1)
        start, length = path.steps[after - 1, runs], path.steps[after, runs] - path.steps[after - 1, runs]
        before, behind = path.losses[after - 1, runs], path.losses[after, runs]
        found[runs] = start + np.clip(np.log(before / self.loss) / np.log(before / behind), 0.0, 1.0)
        wide = length > 1
        if np.any(wide):
            runs, after = runs[wide], after[wide]
            inner = self.path(rates[runs], length[wide], path.moments[after - 1, runs], path.lowest[after - 1, runs])
            # Sums in another order may differ in their last digit, and so miss what they should find.
            within = np.minimum(self.crossing(rates[runs], inner), length[wide])
            found[runs] = start[wide] + within
        return found
