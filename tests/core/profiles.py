"""Profiles made up from a formula."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from scalesearch.core.profile import Profile, ProfileFingerprint, ProfilePoint, ReplicaProfile
from scalesearch.core.step_time_model import StepTimeFormula

AFFINE = StepTimeFormula(
    launch=1e-3, per_example=5e-6, saturation=1.0, contention=0.0, synchronisation=0.0, growth="ring", accumulating=0.0
)
MACHINE = ProfileFingerprint(
    hardware={"kind": "GPU", "device": "made up"}, software={"tensorflow": "0"}, workload={"name": "made/up"}
)


def point(
    step_seconds: float, *, share: int, replicas: int = 1, accumulation: int = 1, error: float = 0.01
) -> ProfilePoint:
    """A measured step time that is known within ± `error`, relative."""
    return ProfilePoint(
        replicas=replicas,
        per_replica_batch_size=share,
        accumulation=accumulation,
        step_seconds=step_seconds,
        interval=(step_seconds * (1 - error), step_seconds * (1 + error)),
        undisturbed_seconds=step_seconds,
        undisturbed_error=error,
        spread=error,
        blocks=10,
        steps=100,
        input_share=0.1,
        memory_bytes=2**30,
    )


def points(
    formula: StepTimeFormula,
    *,
    shares: Iterable[int],
    replicas: Iterable[int] = (1,),
    accumulations: Iterable[int] = (1,),
    noise: float = 0.0,
    seed: int = 0,
) -> list[ProfilePoint]:
    """What would be measured of the formula, with normal noise of log seconds."""
    rng = np.random.default_rng(seed)
    return [
        point(
            formula.seconds(share=m, replicas=k, accumulation=a) * math.exp(noise * rng.normal()),
            share=m,
            replicas=k,
            accumulation=a,
            error=noise,
        )
        for k in replicas
        for m in shares
        for a in accumulations
    ]


def profile(measured: Iterable[ProfilePoint], *, largest: int = 1024) -> Profile:
    """A profile of these points on MACHINE."""
    by_replicas: dict[int, list[ProfilePoint]] = {}
    for p in measured:
        by_replicas.setdefault(p.replicas, []).append(p)
    parts = (
        ReplicaProfile(
            replicas=k,
            largest_per_replica_batch_size=largest,
            limited_by="memory",
            compile_seconds=1.0,
            points=tuple(by_replicas[k]),
            seconds=10.0,
        )
        for k in sorted(by_replicas)
    )
    return Profile(fingerprint=MACHINE, by_replicas=tuple(parts))
