"""The profile that a study of seconds begins with, so that a noisy machine does not change its ranking."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from scalesearch.cli.stop import Stop
from scalesearch.core.accumulation import AsFewAsFit
from scalesearch.core.budget import Budget
from scalesearch.core.profile import Profile, ProfileFingerprint, ReplicaProfile
from scalesearch.core.step_time_model import model_of, step_seconds_of
from scalesearch.definition import ResolvedStudy
from scalesearch.definition.profile_file import check_workload, profile_to_json, read_profile
from scalesearch.execution.local import LocalExecutor
from scalesearch.report import words
from scalesearch.report.say import say
from scalesearch.search.lease import Lease
from scalesearch.search.profiles import ProfileStore
from scalesearch.search.storage import StudyStore
from scalesearch.study.account import PROFILE_DEVICE_SECONDS
from scalesearch.study.profiling import ProfilePlan, affordable_seconds, covers, fingerprint_of, measure_profile


@dataclass(frozen=True)
class ProfiledStudy:
    """What to search, within what fits in memory, and seconds per step; None if the trials have to tell them."""

    resolved: ResolvedStudy
    step_seconds: Callable[[int], float] | None = None


def profile_study(
    executor: LocalExecutor,
    resolved: ResolvedStudy,
    *,
    budget: Budget,
    store: StudyStore,
    lease: Lease,
    console: Console,
    stop: Stop,
) -> ProfiledStudy:
    """Find the profile of the study's workload on this machine, or measure it within its share of the budget.

    What it costs is kept with the study. Studies that do not minimise seconds need none.
    """
    if resolved.objective.minimize != "seconds":
        return ProfiledStudy(resolved)
    limit_seconds = affordable_seconds(budget, replicas=resolved.replicas)
    plan = ProfilePlan.of(resolved, accumulations=_accumulations(resolved), limit_seconds=limit_seconds)
    fingerprint = fingerprint_of(executor)
    profiles = ProfileStore(store.storage)
    part = profiles.find(fingerprint, resolved.replicas)
    if part is not None and covers(part, plan):
        say(console, "Step times: those of the last profile of this workload on this machine")
    elif not limit_seconds:
        say(console, "Step times: from the trials, as 2 % of the budget are too short for a profile")
        return ProfiledStudy(resolved)
    else:
        part = _measure(executor, plan, fingerprint, lease=lease, console=console, stop=stop)
        if part is None:
            return ProfiledStudy(resolved)
        profiles.keep(fingerprint, part)
        spent = store.attribute(PROFILE_DEVICE_SECONDS) or 0.0
        store.keep(PROFILE_DEVICE_SECONDS, spent + part.seconds * resolved.replicas)
    profile = Profile(fingerprint=fingerprint, by_replicas=(part,))
    store.keep("profile", profile_to_json(profile))
    return _with_profile(resolved, profile, part)


def profile_given(
    executor: LocalExecutor, resolved: ResolvedStudy, path: Path, *, store: StudyStore, console: Console
) -> ProfiledStudy:
    """The step times of a profile file, whatever this machine takes. Raises ProfileError if it is of another workload."""
    profile, here = read_profile(path), fingerprint_of(executor)
    check_workload(profile, here, source=str(path))
    if resolved.objective.minimize != "seconds":
        say(console, f"{path} is not needed: the study minimises {resolved.objective.minimize}")
        return ProfiledStudy(resolved)
    hardware = [line for line in here.differences(profile.fingerprint) if line.startswith("hardware")]
    where = f", which is of other hardware ({'; '.join(hardware)})" if hardware else ""
    say(console, f"Step times: those of {path}{where}")
    store.keep("profile", profile_to_json(profile))
    part = profile.of(resolved.replicas)
    if part is not None:
        return _with_profile(resolved, profile, part)
    assumption = model_of(profile).assumption()
    say(console, f"Step times with {resolved.replicas} replicas are not in it: {assumption}")
    return ProfiledStudy(resolved, _step_seconds(resolved, profile))


def _measure(
    executor: LocalExecutor,
    plan: ProfilePlan,
    fingerprint: ProfileFingerprint,
    *,
    lease: Lease,
    console: Console,
    stop: Stop,
) -> ReplicaProfile | None:
    """The profile; None if the user stopped it."""
    with console.status("measuring step times"), closing(measure_profile(executor, plan)) as measuring:
        for news in measuring:
            lease.refresh()
            if isinstance(news, ReplicaProfile):
                sizes = len({p.per_replica_batch_size for p in news.points})
                say(console, f"Step times: measured at {sizes} batch sizes in {words.duration(news.seconds)}")
                return news
            if stop.requested.is_set():
                return None
    return None


def _accumulations(resolved: ResolvedStudy) -> tuple[int, ...]:
    """Besides single micro-batches, what tells the cost of accumulating."""
    accumulation = resolved.space.accumulation
    if isinstance(accumulation, AsFewAsFit):
        return (2,)
    return (accumulation,) if accumulation > 1 else ()


def _with_profile(resolved: ResolvedStudy, profile: Profile, part: ReplicaProfile) -> ProfiledStudy:
    if part.limited_by == "memory":
        resolved = _limited(resolved, part.largest_per_replica_batch_size)
    return ProfiledStudy(resolved, _step_seconds(resolved, profile))


def _limited(resolved: ResolvedStudy, largest_share: int) -> ResolvedStudy:
    """With no more than `largest_share` examples on a replica at a time; none if not even one fits."""
    space, accumulation = resolved.space, resolved.space.accumulation
    if not isinstance(accumulation, AsFewAsFit):
        fits = largest_share * resolved.replicas * accumulation
        return replace(resolved, space=replace(space, largest_that_fits=fits))
    if largest_share == 0:
        return replace(resolved, space=replace(space, largest_that_fits=0))
    space = replace(space, accumulation=accumulation.limited_to(largest_share))
    baseline = space.accumulated(resolved.baseline) if resolved.baseline is not None else None
    return replace(resolved, space=space, baseline=baseline)


def _step_seconds(resolved: ResolvedStudy, profile: Profile) -> Callable[[int], float] | None:
    return step_seconds_of(profile, replicas=resolved.replicas, micro_batches=resolved.space.accumulation_at)
