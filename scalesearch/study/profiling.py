"""Profiles one worker: which batches fit, and how long a step takes."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from scalesearch.core.budget import Budget
from scalesearch.core.profile import (
    PRECISION,
    LimitedBy,
    ProfileFingerprint,
    ProfilePoint,
    ReplicaProfile,
    Tried,
    sizes_to_measure,
)
from scalesearch.definition import ResolvedStudy
from scalesearch.errors import WorkerLost
from scalesearch.execution.tasks import Content, FingerprintTask, FitTask, Task, TimingTask

SHARE_OF_BUDGET = 0.02
LEAST_SECONDS = 2.0  # in less, what is measured is not worth it
MOST_SECONDS = 60.0  # and in more, hardly better known
SECONDS_WITHOUT_BUDGET = 10.0  # of time: what examples or trials will take is not known yet
FITTING_SHARE = 0.5  # of the time, for finding what fits


class Answering(Protocol):
    """A worker that answers tasks."""

    def answers(self, task: Task) -> Iterator[Content]: ...


@dataclass(frozen=True, kw_only=True)
class ProfilePlan:
    """What to measure: per-replica batch sizes between two bounds, within a time that does not count compilation."""

    replicas: int
    smallest: int
    largest: int
    accumulations: tuple[int, ...]
    momentum: float | None
    limit_seconds: float

    @staticmethod
    def of(resolved: ResolvedStudy, *, accumulations: tuple[int, ...], limit_seconds: float) -> ProfilePlan:
        """All that a study may train, as far as it fits at once."""
        shares = [
            size // resolved.replicas // resolved.space.accumulation_at(size)
            for size in resolved.space.batch_sizes.values()
        ]
        if resolved.baseline is not None:
            shares.append(resolved.baseline.per_replica_batch_size(resolved.replicas))
        momentum = resolved.space.momentum
        return ProfilePlan(
            replicas=resolved.replicas,
            smallest=min(shares),
            largest=max(shares),
            accumulations=accumulations,
            momentum=momentum.low if momentum is not None else None,
            limit_seconds=limit_seconds,
        )


def fingerprint_of(worker: Answering) -> ProfileFingerprint:
    """What a profile of this worker would be of."""
    [found] = worker.answers(FingerprintTask())
    assert isinstance(found, ProfileFingerprint)
    return found


def measure_profile(
    worker: Answering, plan: ProfilePlan
) -> Generator[Tried | ProfilePoint | ReplicaProfile, None, None]:
    """Measure; what was tried and the points as they get better, then the profile."""
    started = time.monotonic()
    tried: list[Tried] = []
    for news in _fit(worker, plan):
        tried.append(news)
        yield news
    fits = max((t.per_replica_batch_size for t in tried if t.fits), default=0)
    points: dict[tuple[int, int], ProfilePoint] = {}
    for point in _time(worker, plan, fits, sum(t.seconds for t in tried[2:])):
        points[point.per_replica_batch_size, point.accumulation] = point
        yield point
    failed = any(t.fits is False for t in tried)
    limited_by: LimitedBy = "memory" if failed else "definition" if fits >= plan.largest else "time"
    yield ReplicaProfile(
        replicas=plan.replicas,
        largest_per_replica_batch_size=fits,
        limited_by=limited_by,
        compile_seconds=tried[1].seconds if len(tried) > 1 else 0.0,
        points=tuple(points[key] for key in sorted(points)),
        seconds=time.monotonic() - started,
    )


def _fit(worker: Answering, plan: ProfilePlan) -> Iterator[Tried]:
    """Try sizes; that a worker died of one is the same answer as that it did not fit, and another one goes on."""
    task = FitTask(
        smallest=plan.smallest,
        largest=plan.largest,
        momentum=plan.momentum,
        limit_seconds=FITTING_SHARE * plan.limit_seconds,
    )
    while True:
        announced: Tried | None = None
        fits = 0
        try:
            for news in worker.answers(task):
                assert isinstance(news, Tried)
                announced = news
                fits = news.per_replica_batch_size if news.fits else fits
                yield news
            return
        except WorkerLost:
            if announced is None or announced.fits is not None:
                raise
        yield replace(announced, fits=False)
        task = replace(task, smallest=max(fits, 1), too_large=announced.per_replica_batch_size)
        if announced.per_replica_batch_size == 1:
            return


def _time(worker: Answering, plan: ProfilePlan, fits: int, spent_seconds: float) -> Iterator[ProfilePoint]:
    if not fits:
        return
    sizes = sizes_to_measure(min(plan.smallest, fits), fits)
    task = TimingTask(
        sizes=sizes,
        accumulations=plan.accumulations,
        momentum=plan.momentum,
        precision=PRECISION,
        limit_seconds=max(plan.limit_seconds - spent_seconds, 0.0),
    )
    for point in worker.answers(task):
        assert isinstance(point, ProfilePoint)
        yield point


def covers(part: ReplicaProfile, plan: ProfilePlan) -> bool:
    """Whether what was measured before answers the plan: its range of sizes, as far as they fit."""
    sizes = [p.per_replica_batch_size for p in part.points]
    if not sizes:
        return part.limited_by == "memory"
    as_large = part.limited_by == "memory" or max(sizes) >= plan.largest
    return as_large and min(sizes) <= max(plan.smallest, 1)


def affordable_seconds(budget: Budget, *, replicas: int) -> float:
    """The time that a study may spend on its profile; 0 if that is too little to measure anything."""
    times = [budget.wall_clock_seconds, budget.device_seconds / replicas if budget.device_seconds else None]
    shares = [SHARE_OF_BUDGET * seconds for seconds in times if seconds is not None]
    seconds = min(shares, default=SECONDS_WITHOUT_BUDGET)
    return min(seconds, MOST_SECONDS) if seconds >= LEAST_SECONDS else 0.0
