"""Seconds per step as a function of batch size, replicas and accumulation, fitted to what was measured.

    t = accumulation · compute(m) · replicas^contention + synchronisation(replicas) + accumulating
    compute(m) = (launch^s + (per_example · m)^s)^(1/s)

Seconds are those of a machine that does nothing else (`ProfilePoint.undisturbed_seconds`), so that what ran beside a
profile does not make one batch size look better than another. m is the examples that a replica processes at a time.
With saturation s = 1, compute is affine in m; the larger s, the longer a step stays at its least time (a device that is
not filled yet) before it grows in proportion. Replicas with devices of their own do not slow one another (contention
0), those that share one do (up to 1). Where a size was measured, or sizes near it, what the formula leaves over is added
as far as it is more than noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from scipy.optimize import least_squares

from scalesearch.core.profile import Profile, ProfilePoint

Array = np.ndarray[Any, np.dtype[np.float64]]
Growth = Literal["ring", "star"]

LEAST_ERROR = 0.01  # of a measured time, relative: what blocks of steps in one process do not show
MOST_SATURATION = 8.0
REACH = 2.0  # octaves of the batch size over which a deviation from the formula is likely to be the same
EXTRAPOLATION_ERROR = 0.15  # relative, for each doubling or halving of the replicas away from what was measured
LEAST_SIZES = 3  # measured, for a model that knows how batch sizes compare
UNKNOWN_ERROR = 0.1  # relative, where too few sizes were measured to leave one out
NORMAL_90 = 1.645


@dataclass(frozen=True, kw_only=True)
class StepTimeFormula:
    """The formula's parameters, in seconds but for the exponents. `synchronisation` is that of two replicas.

    It grows with the replicas as `growth` says: `ring` as 2 (K − 1)/K (an all-reduce around a ring, as NCCL's), `star`
    as K − 1 (all gradients to one device, as between logical CPU devices).
    """

    launch: float
    per_example: float
    saturation: float
    contention: float
    synchronisation: float
    growth: Growth
    accumulating: float
    """Per micro-batch beyond the first."""

    def seconds(self, *, share: float, replicas: int, accumulation: int) -> float:
        """Seconds per step with `share` examples per replica and micro-batch."""
        s, work = self.saturation, self.per_example * share
        peak = max(self.launch, work)
        compute = peak * ((self.launch / peak) ** s + (work / peak) ** s) ** (1.0 / s)
        each = compute * replicas**self.contention
        seconds = accumulation * each + (accumulation - 1) * max(self.accumulating, -0.9 * each)
        return float(seconds + self.synchronisation_seconds(replicas))

    def synchronisation_seconds(self, replicas: int) -> float:
        """What replicas wait for one another in each step."""
        growth = 2.0 * (replicas - 1) / replicas if self.growth == "ring" else replicas - 1.0
        return self.synchronisation * growth


@dataclass(frozen=True, kw_only=True)
class _Deviation:
    """What the formula leaves over, as a Gaussian process of log seconds over (replicas, log2 share)."""

    at: tuple[tuple[int, float], ...]
    left_over: tuple[float, ...]
    noise: tuple[float, ...]  # variances
    variance: float

    def mean(self, replicas: int, octave: float) -> float:
        if not self.at or not self.variance:
            return 0.0
        return float(self._covariance([(replicas, octave)])[0] @ np.array(_weights(self)))

    def deviation(self, replicas: int, octave: float) -> float:
        """Standard deviation of what is left over at a point."""
        if not self.at or not self.variance:
            return 0.0
        row = self._covariance([(replicas, octave)])[0]
        explained = row @ np.linalg.solve(self._covariance(self.at) + np.diag(self.noise), row)
        return math.sqrt(max(self.variance - float(explained), 0.0))

    def _covariance(self, points: Sequence[tuple[int, float]]) -> Array:
        """Half of the variance is common to a number of replicas, half fades with the distance in batch size."""
        apart = np.abs(np.array([[p[1] - q[1] for q in self.at] for p in points]))
        same = np.array([[float(p[0] == q[0]) for q in self.at] for p in points])
        return np.asarray(self.variance * same * (0.5 + 0.5 * np.exp(-apart / REACH)))


@lru_cache(maxsize=64)
def _weights(deviation: _Deviation) -> tuple[float, ...]:
    total = deviation._covariance(deviation.at) + np.diag(deviation.noise)
    return tuple(np.linalg.solve(total, np.array(deviation.left_over)).tolist())


@dataclass(frozen=True, kw_only=True)
class StepTimeModel:
    """Seconds per step of one workload on one machine.

    `error` is the root mean square of the relative errors that are to be expected at sizes between the measured ones,
    from leaving out each measured size in turn; None with fewer than 4 sizes. `measured_replicas` are the numbers of
    replicas that the model knows from measurements; of all others, only what the formula makes of them.
    """

    formula: StepTimeFormula
    error: float | None
    measured_replicas: tuple[int, ...]
    deviation: _Deviation

    def seconds(self, global_batch_size: int, *, replicas: int, accumulation: int = 1) -> float:
        """Seconds per step."""
        share = global_batch_size / replicas / accumulation
        seconds = self.formula.seconds(share=share, replicas=replicas, accumulation=accumulation)
        return seconds * math.exp(self.deviation.mean(replicas, math.log2(share)))

    def interval(self, global_batch_size: int, *, replicas: int, accumulation: int = 1) -> tuple[float, float]:
        """90 % interval of `seconds`: wider away from measured sizes, and much wider for replicas not measured."""
        seconds = self.seconds(global_batch_size, replicas=replicas, accumulation=accumulation)
        octave = math.log2(global_batch_size / replicas / accumulation)
        doublings = min(abs(math.log2(replicas / k)) for k in self.measured_replicas)
        known = self.error if self.error is not None else UNKNOWN_ERROR
        error = math.hypot(self.deviation.deviation(replicas, octave), known, EXTRAPOLATION_ERROR * doublings)
        return seconds * math.exp(-NORMAL_90 * error), seconds * math.exp(NORMAL_90 * error)

    def is_measured(self, replicas: int) -> bool:
        """Whether the model has measurements with so many replicas."""
        return replicas in self.measured_replicas

    def on(self, replicas: int, *, micro_batches: Callable[[int], int]) -> StepSeconds:
        """Seconds per step as a function of the global batch size alone, with the micro-batches of each."""
        return StepSeconds(self, replicas, micro_batches)

    def assumption(self) -> str:
        """What is assumed of numbers of replicas that were not measured, in words."""
        several = [k for k in self.measured_replicas if k > 1]
        if not several:
            return "synchronisation of several replicas was not measured and is taken to cost nothing"
        law = "2 (K − 1)/K, as around a ring" if self.formula.growth == "ring" else "K − 1, as through one device"
        known = "" if len(several) > 1 else f", from its cost with {several[0]} replicas alone"
        return f"synchronisation is taken to grow with the number K of replicas as {law}{known}"


@dataclass(frozen=True)
class StepSeconds:
    """Seconds per step at a global batch size, which is taken in `micro_batches` of it."""

    model: StepTimeModel
    replicas: int
    micro_batches: Callable[[int], int]

    def __call__(self, global_batch_size: int) -> float:
        """Seconds per step."""
        return self.model.seconds(
            global_batch_size, replicas=self.replicas, accumulation=self.micro_batches(global_batch_size)
        )


def model_of(profile: Profile) -> StepTimeModel:
    """The step-time model of a profile."""
    on_cpus = profile.fingerprint.hardware.get("kind") == "CPU"
    return fit_step_time_model(profile.points, growth="star" if on_cpus else "ring")


def step_seconds_of(
    profile: Profile, *, replicas: int, micro_batches: Callable[[int], int]
) -> Callable[[int], float] | None:
    """Seconds per step at a global batch size; None if too few sizes were measured to compare others by them.

    Numbers of replicas that were not measured are extrapolated to (`StepTimeModel.assumption`).
    """
    part = profile.of(replicas)
    if part is not None and len({p.per_replica_batch_size for p in part.points}) < LEAST_SIZES:
        return None
    return model_of(profile).on(replicas, micro_batches=micro_batches)


def fit_step_time_model(points: Sequence[ProfilePoint], *, growth: Growth = "ring") -> StepTimeModel:
    """Robust least squares of log seconds. At least one point is needed; `growth` is what to assume of more replicas.

    What the points cannot tell is not fitted: contention and synchronisation need two numbers of replicas,
    accumulation a point with it.
    """
    if not points:
        raise ValueError("a step-time model needs at least one measured step time")
    formula = _fit(points, growth)
    return StepTimeModel(
        formula=formula,
        error=_error_at_left_out_sizes(points, growth),
        measured_replicas=tuple(sorted({p.replicas for p in points})),
        deviation=_deviation(points, formula),
    )


def _fit(points: Sequence[ProfilePoint], growth: Growth) -> StepTimeFormula:
    single = [p for p in points if p.accumulation == 1] or list(points)
    fastest = min(p.undisturbed_seconds for p in single)
    rate = min(p.undisturbed_seconds / (p.per_replica_batch_size * p.accumulation) for p in points)
    several = len({p.replicas for p in points}) > 1
    free = (True, len(single) > 1, len(single) > 3, several, several, any(p.accumulation > 1 for p in points))
    start = np.array([math.log(0.7 * fastest), math.log(0.7 * rate), 0.3, 0.1, 0.1, 0.0])
    low = np.array([math.log(fastest) - 9.0, math.log(rate) - 9.0, 0.0, 0.0, 0.0, -0.9])
    high = np.array([math.log(fastest) + 3.0, math.log(rate) + 3.0, math.log(MOST_SATURATION), 1.0, 50.0, 10.0])
    fixed = np.where(free, start, [start[0], start[1], 0.0, 0.0, 0.0, 0.0])
    chosen = np.array(free)

    def formula(free_values: Array) -> StepTimeFormula:
        values = fixed.copy()
        values[chosen] = free_values
        launch, per_example = math.exp(values[0]), math.exp(values[1])
        return StepTimeFormula(
            launch=launch,
            per_example=per_example,
            saturation=math.exp(values[2]),
            contention=float(values[3]),
            synchronisation=float(values[4] * fastest),
            growth=growth,
            accumulating=float(values[5] * launch),
        )

    def residuals(free_values: Array) -> Array:
        values = fixed.copy()
        values[chosen] = free_values
        # Of what explains the times as well, the simplest: affine, devices of their own.
        simplicity = [0.1 * values[2], 0.1 * values[3], 0.1 * values[5]]
        errors = _log_ratios(points, formula(free_values)) / _errors(points)
        return np.concatenate([errors, simplicity])

    found = least_squares(
        residuals, start[chosen], bounds=(low[chosen], high[chosen]), loss="soft_l1", x_scale="jac", max_nfev=400
    )
    return formula(found.x)


def _log_ratios(points: Sequence[ProfilePoint], formula: StepTimeFormula) -> Array:
    """log of the measured over the formula's seconds."""
    predicted = [
        formula.seconds(share=p.per_replica_batch_size, replicas=p.replicas, accumulation=p.accumulation)
        for p in points
    ]
    return np.log([p.undisturbed_seconds for p in points]) - np.log(predicted)


def _errors(points: Sequence[ProfilePoint]) -> Array:
    """Standard errors of the points' log seconds."""
    return np.array([math.hypot(LEAST_ERROR, min(p.undisturbed_error, 1.0)) for p in points])


def _deviation(points: Sequence[ProfilePoint], formula: StepTimeFormula) -> _Deviation:
    counted = [p for p in points if p.accumulation == 1]
    if not counted:
        return _Deviation(at=(), left_over=(), noise=(), variance=0.0)
    left_over, noise = _log_ratios(counted, formula), _errors(counted) ** 2
    variance = max(float(np.mean(left_over**2 - noise)), LEAST_ERROR**2)
    return _Deviation(
        at=tuple((p.replicas, math.log2(p.per_replica_batch_size)) for p in counted),
        left_over=tuple(left_over.tolist()),
        noise=tuple(noise.tolist()),
        variance=variance,
    )


def _error_at_left_out_sizes(points: Sequence[ProfilePoint], growth: Growth) -> float | None:
    """Root mean square of the relative errors at inner sizes, each left out in turn; None with fewer than 4 sizes."""
    sizes = sorted({p.per_replica_batch_size for p in points})
    if len(sizes) < 4:
        return None
    errors = []
    for size in sizes[1:-1]:
        others = [p for p in points if p.per_replica_batch_size != size]
        formula = _fit(others, growth)
        deviation = _deviation(others, formula)
        for p in points:
            if p.per_replica_batch_size == size and p.accumulation == 1:
                [ratio] = _log_ratios([p], formula)
                errors.append(float(ratio) - deviation.mean(p.replicas, math.log2(size)))
    return float(np.sqrt(np.mean(np.square(errors))))
