"""How large an effective learning rate each batch size bears, from stable and unstable runs.

The limit rises with the batch size at most in proportion and never falls with it: gradient noise makes small batches less
stable (on small data sets in proportion to B), and curvature bounds all of them. So an unstable point (B', e) forbids rates
above e · max(1, B / B'), and a stable one supports rates up to e · min(1, B / B').
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from scipy.special import ndtr

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Outcome, TrialResult
from scalesearch.core.surrogate.modes import Array

CLIMBED = 1.35  # times its own lowest smoothed loss, at a constant rate
GROWTH = 0.5  # nats that a trial may lie above the largest rate known to be stable
MIN_POINTS = 5
BEHIND = 1.15  # times the loss of a run with a lower rate
EASE = 0.35  # nats below the limit at which five rates in six are still as good as they seem, if they worsen gradually
EARLY_SHARE = 0.05  # of a full-length run
EARLY_STEPS = 20
LEAST_STEPS = 5
UNSUPPORTED = 0.5  # nats below the lowest unstable rate to try where no stable one supports more
NEARBY = (1.5, 0.7)  # nats in batch size and rate within which a late instability casts doubt on shorter stable runs
TOO_SHORT = 0.5  # of the steps after which the nearby instability showed


@dataclass(frozen=True)
class Stability:
    """Points (log B, log effective rate), stable and unstable; some of the stable ones are `in_doubt`.

    `gradual`: a rate proved too high by a loss that fell behind or climbed, rather than by divergence.
    """

    stable: tuple[tuple[float, float], ...] = ()
    unstable: tuple[tuple[float, float], ...] = ()
    in_doubt: tuple[tuple[float, float], ...] = ()
    gradual: bool = False

    def log_limit(self, log_batch: Array) -> Array:
        """The largest log effective rate to try at each log batch size; −inf or +inf where nothing is known."""
        supported, forbidden = self.log_supported(log_batch), self.log_forbidden(log_batch)
        gap = forbidden - supported
        with np.errstate(invalid="ignore"):
            between = np.where(gap > 0.03, np.minimum(supported + 0.5 * gap, supported + GROWTH), forbidden - 0.05)
        limit = np.where(np.isfinite(forbidden), between, supported + GROWTH)
        return np.asarray(np.where(np.isfinite(supported), limit, forbidden - UNSUPPORTED))

    def log_supported(self, log_batch: Array) -> Array:
        """The largest log effective rate that stable runs support at each log batch size; −inf where none does."""
        away = np.asarray(log_batch)[..., None]
        stable = self._proven
        return np.asarray((stable[:, 1] + np.minimum(0.0, away - stable[:, 0])).max(axis=-1, initial=-np.inf))

    def ease(self, parameters: Sequence[Parameters]) -> Array:
        """The chance that a rate is as good as runs at lower rates let it seem, before anything has reached the target.

        Where divergence is the only limit, the best rate may lie just below it. Real networks get worse long before,
        which no loss-curve model of lower rates foresees.
        """
        if not self.gradual:
            return np.ones(len(parameters))
        points = np.array([log_point(p) for p in parameters])
        return np.asarray(ndtr((self.log_limit(points[:, 0]) - points[:, 1]) / EASE))

    def log_forbidden(self, log_batch: Array) -> Array:
        """The log effective rate from which on runs are unstable at each log batch size; +inf where none is known to be."""
        unstable = np.array(self.unstable).reshape(-1, 2)
        away = np.asarray(log_batch)[..., None]
        return np.asarray((unstable[:, 1] + np.maximum(0.0, away - unstable[:, 0])).min(axis=-1, initial=np.inf))

    @cached_property
    def _proven(self) -> Array:
        """Stable points, without those in doubt or disproved by an unstable one at a larger batch and a lower rate."""
        certain = [point for point in self.stable if point not in self.in_doubt]
        stable, unstable = (np.array(points).reshape(-1, 2) for points in (certain, self.unstable))
        larger = unstable[:, 0] >= stable[:, None, 0] - 0.02
        lower = unstable[:, 1] <= stable[:, None, 1] - 0.02
        return np.asarray(stable[~(larger & lower).any(axis=1)])


def stability_of(results: Sequence[TrialResult], losses: Sequence[Array], *, max_examples: int) -> Stability:
    """Sort trials into stable and unstable; `losses` are their curves, without the point before training.

    A stable run supports its rate only as far as it went: it is in doubt if a run nearby, at a higher rate, took more than
    twice as long to show its instability. A loss that only seems to fall behind or to climb proves nothing where a run at
    such a rate reached the target. Runs that measured nothing are left out.
    """
    stable: dict[tuple[float, float], float] = {}  # steps of the longest run
    unstable: dict[tuple[float, float], float] = {}
    diverged: set[tuple[float, float]] = set()
    behind = _fall_behind(results, losses, max_examples)
    for result, curve, falls_behind in zip(results, losses, behind, strict=True):
        point, steps = log_point(result.parameters), float(result.measurements[-1].step if len(curve) else 0)
        if result.outcome is Outcome.REACHED:
            stable[point] = np.inf
        elif result.outcome is Outcome.DIVERGED or climbs(result, curve) or falls_behind:
            unstable[point] = max(steps, unstable.get(point, 0.0))
            diverged |= {point} if result.outcome is Outcome.DIVERGED else set()
        elif len(curve):
            stable[point] = max(steps, stable.get(point, 0.0))
    for borne in [point for point, steps in stable.items() if steps == np.inf]:
        unstable = {
            point: steps for point, steps in unstable.items() if point in diverged or not _is_borne(point, borne)
        }
    in_doubt = (point for point, steps in stable.items() if _in_doubt(point, steps, unstable))
    return Stability(tuple(stable), tuple(unstable), tuple(in_doubt), gradual=bool(unstable.keys() - diverged))


def _is_borne(point: tuple[float, float], borne: tuple[float, float]) -> bool:
    """Whether a run that reached the target, at a batch no larger and a rate no lower, shows a rate not to be too high."""
    return borne[0] <= point[0] + 0.02 and borne[1] >= point[1] - 0.02


def _in_doubt(point: tuple[float, float], steps: float, unstable: Mapping[tuple[float, float], float]) -> bool:
    """Whether a run nearby, at a higher rate, was still fine after so many steps and proved unstable much later."""
    return any(
        0.0 < rate - point[1] < NEARBY[1] and abs(batch - point[0]) < NEARBY[0] and steps < TOO_SHORT * late
        for (batch, rate), late in unstable.items()
        if late > EARLY_STEPS
    )


def _fall_behind(results: Sequence[TrialResult], losses: Sequence[Array], max_examples: int) -> list[bool]:
    """Whether each run is early on far above one with a lower rate and no larger batch, after as many steps.

    A stable run is not: early on, a higher rate and a larger batch can only help. So a loss that stays at a high plateau
    from the start, which never becomes NaN, is found out by comparison. Later it proves nothing, as a higher rate also
    ends at a higher level of noise.
    """
    points = np.array([log_point(r.parameters) for r in results]).reshape(-1, 2)
    diverged = np.array([r.outcome is Outcome.DIVERGED for r in results], dtype=bool)
    curves = [(np.log(_steps(r)), np.log(curve)) for r, curve in zip(results, losses, strict=True)]
    last = np.array([r.measurements[-1].step if len(r.measurements) > 1 else 0 for r in results])

    @cache
    def log_losses_at(step: float) -> Array:
        """Of all runs; of one that ended before, its last."""
        return np.array([np.interp(np.log(step), *curve) if len(curve[0]) else np.nan for curve in curves])

    behind = []
    for point, curve, end in zip(points, curves, last, strict=True):
        early = min(float(end), max(EARLY_SHARE * max_examples / np.exp(point[0]), EARLY_STEPS))
        common = np.minimum(early, last)
        others = (points[:, 1] < point[1] - 0.02) & (points[:, 0] <= point[0] + 0.02) & ~diverged
        others &= common >= LEAST_STEPS
        if others.any():
            mine = np.interp(np.log(common[others]), *curve)
            behind.append(bool((mine > np.log(BEHIND) + log_losses_at(early)[others]).any()))
        else:
            behind.append(False)
    return behind


def _steps(result: TrialResult) -> Array:
    return np.array([m.step for m in result.measurements[1:]], dtype=float)


def climbs(result: TrialResult, losses: Array) -> bool:
    """Whether the loss rose far above its own minimum while the rate had not changed: slow divergence."""
    if result.outcome is Outcome.REACHED or len(losses) < MIN_POINTS:
        return False
    first_change = min(result.parameters.schedule.boundaries, default=np.inf)
    examples = np.array([m.examples for m in result.measurements[1:]])
    at_first_rate = losses[examples <= first_change]
    if len(at_first_rate) < MIN_POINTS:
        return False
    smooth = np.convolve(at_first_rate, np.ones(3) / 3.0, "valid")
    return bool(np.median(at_first_rate[-3:]) > CLIMBED * smooth.min())


def log_point(parameters: Parameters) -> tuple[float, float]:
    """(log global batch size, log effective learning rate)."""
    return float(np.log(parameters.global_batch_size)), float(np.log(parameters.effective_learning_rate))
