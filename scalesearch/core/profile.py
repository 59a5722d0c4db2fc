"""What was measured of the steps of one workload on one machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

PRECISION = 0.03  # to which step times are measured, if there is time
LimitedBy = Literal["memory", "definition", "time"]


@dataclass(frozen=True, kw_only=True)
class ProfileFingerprint:
    """What the measured times are of: they say nothing about another workload, and little about other hardware.

    `hardware`: kind and model of the devices, processor, cores. `software`: versions. `workload`: name, options,
    optimizer, and a digest of the model's layers and of the shape of the data.
    """

    hardware: Mapping[str, str]
    software: Mapping[str, str]
    workload: Mapping[str, str]

    def differences(self, other: ProfileFingerprint) -> list[str]:
        """Where `other` is another one, as `hardware.cores: 2 there, 8 here`, with `self` being here."""
        mine, theirs = self.flat(), other.flat()
        keys = [k for k in {**theirs, **mine} if mine.get(k) != theirs.get(k)]
        return [f"{k}: {theirs.get(k, 'nothing')} there, {mine.get(k, 'nothing')} here" for k in keys]

    def flat(self) -> dict[str, str]:
        """{`hardware.…`, `software.…`, `workload.…`: value}."""
        parts = (("hardware", self.hardware), ("software", self.software), ("workload", self.workload))
        return {f"{part}.{k}": v for part, values in parts for k, v in values.items()}


@dataclass(frozen=True, kw_only=True)
class ProfilePoint:
    """Seconds per step of one batch size.

    What else runs on a machine only ever adds to a step, so the fastest blocks tell best how batch sizes compare: they
    hardly change when the median doubles. Models are fitted to them.

    Args:
        replicas: among which the global batch was divided.
        per_replica_batch_size: examples that a replica processes at a time.
        accumulation: micro-batches per replica and step.
        step_seconds: median over blocks of steps, compilation and warm-up excluded.
        interval: 95 % confidence interval of that median.
        undisturbed_seconds: the 10th percentile over the blocks, which is within ± `undisturbed_error` (relative).
        spread: interquartile range of the blocks over their median.
        blocks, steps: what was timed.
        input_share: seconds to fetch, prepare and augment a batch, alone, over those of a step, each at its fastest. Where
            batches are read ahead it is the most that input can cost.
        memory_bytes: the peak: of one device on GPUs, of the whole process on CPUs; None if unknown.
    """

    replicas: int
    per_replica_batch_size: int
    accumulation: int = 1
    step_seconds: float
    interval: tuple[float, float]
    undisturbed_seconds: float
    undisturbed_error: float
    spread: float
    blocks: int
    steps: int
    input_share: float
    memory_bytes: int | None

    @property
    def global_batch_size(self) -> int:
        """Examples per optimizer step."""
        return self.per_replica_batch_size * self.replicas * self.accumulation

    @property
    def examples_per_second(self) -> float:
        """Throughput of all replicas."""
        return self.global_batch_size / self.step_seconds

    @property
    def relative_error(self) -> float:
        """Half the interval's width over the median."""
        return (self.interval[1] - self.interval[0]) / (2.0 * self.step_seconds)


@dataclass(frozen=True, kw_only=True)
class Tried:
    """Whether a per-replica batch size fits, and the seconds until a step was over; first announced with `fits` None."""

    per_replica_batch_size: int
    fits: bool | None = None
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ReplicaProfile:
    """What was measured with one number of replicas.

    `largest_per_replica_batch_size` is the largest that was found to fit, and `limited_by` says why no larger one was:
    the next one did not fit in `memory`, the `definition` asks for none, or the `time` was up. 0: not even the smallest.
    `compile_seconds` are those until the first step was over (tracing, compiling, tuning), and no part of the points,
    which are in the order of their batch size. `seconds` is what the profile took in all.
    """

    replicas: int
    largest_per_replica_batch_size: int
    limited_by: LimitedBy
    compile_seconds: float
    points: tuple[ProfilePoint, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The step times of one workload on one machine, in ascending order of the number of replicas."""

    fingerprint: ProfileFingerprint
    by_replicas: tuple[ReplicaProfile, ...]

    @property
    def points(self) -> tuple[ProfilePoint, ...]:
        """Of all numbers of replicas."""
        return tuple(point for part in self.by_replicas for point in part.points)

    def of(self, replicas: int) -> ReplicaProfile | None:
        """What was measured with so many replicas, if it was."""
        return next((part for part in self.by_replicas if part.replicas == replicas), None)

    def scaling_efficiency(self, point: ProfilePoint) -> float | None:
        """Examples per second and replica over those of one replica with the same per-replica batch (weak scaling).

        By undisturbed seconds, as the two were not measured at the same time; None if the other was not measured.
        """
        alone = self.of(1)
        same = [
            p
            for p in (alone.points if alone else ())
            if (p.per_replica_batch_size, p.accumulation) == (point.per_replica_batch_size, point.accumulation)
        ]
        return same[0].undisturbed_seconds / point.undisturbed_seconds if same else None


def sizes_to_measure(smallest: int, largest: int) -> tuple[int, ...]:
    """The powers of two from `smallest` to `largest` with both ends, ascending."""
    first, last = math.ceil(math.log2(smallest)), math.floor(math.log2(largest))
    return tuple(sorted({smallest, largest, *(2**k for k in range(first, last + 1))}))
