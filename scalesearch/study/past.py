"""A study that was run before, read from its storage as far as another command can go on from it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from scalesearch.core.known_steps import KnownSteps
from scalesearch.core.parameters import Parameters
from scalesearch.core.profile import Profile, ProfilePoint
from scalesearch.core.recommend import findings
from scalesearch.core.results import Outcome, TrialResult
from scalesearch.core.step_time import MIN_STEPS
from scalesearch.core.step_time_model import StepTimeModel, fit_step_time_model, model_of
from scalesearch.definition import ResolvedStudy, StudyDefinition, resolve
from scalesearch.definition.profile_file import profile_from_json
from scalesearch.definition.stored import definition_from_fingerprint
from scalesearch.errors import StudyError
from scalesearch.search.profiles import ProfileStore
from scalesearch.search.storage import StudyStore

OFTEN_PROFILED = (1, 2, 4, 8, 16)


@dataclass(frozen=True, kw_only=True)
class PastStudy:
    """What a study was of, and all that it measured. `profile` is None if it measured no step times of its own."""

    name: str
    workload: str
    definition: StudyDefinition
    resolved: ResolvedStudy
    results: tuple[TrialResult, ...]
    leader: Parameters
    profile: Profile | None

    @staticmethod
    def of(store: StudyStore) -> PastStudy:
        """Raises StudyError if there is nothing to go on from."""
        context, stored = store.attribute("context"), store.attribute("definition")
        if context is None or stored is None:
            raise StudyError(f"study {store.name!r} was not made by scalesearch, or has not been started")
        definition = definition_from_fingerprint(stored)
        metric = context["objective"]["metric"]
        resolved = resolve(
            definition,
            replicas=context["replicas"],
            train_examples=context["train_examples"],
            metrics=[metric],
            maximize=[metric] if context["objective"]["direction"] == "maximize" else [],
        )
        resolved = replace(resolved, objective=replace(resolved.objective, target=store.attribute("target")))
        results = tuple(r for r in store.results() if r.outcome is not Outcome.INTERRUPTED)
        best = findings(
            results,
            resolved.objective,
            leader=store.leader(),
            recommends_accumulated=resolved.space.recommends_accumulated,
        ).recommendation
        if best is None or best.best.reached is None:
            raise StudyError(
                f"study {store.name}: no trial reached the target, so there is no optimum to go on from; continue it with "
                "a larger --budget"
            )
        profile = store.attribute("profile")
        return PastStudy(
            name=store.name,
            workload=definition.workload.name,
            definition=definition,
            resolved=resolved,
            results=results,
            leader=best.parameters,
            profile=profile_from_json(profile, source=f"the profile of {store.name}") if profile else None,
        )

    def known_steps(self) -> KnownSteps:
        """What it tells of other batch sizes."""
        return KnownSteps(
            results=self.results,
            space=self.resolved.space,
            objective=self.resolved.objective,
            max_examples=self.resolved.max_examples,
        )

    def profile_with(self, store: StudyStore, replicas: Collection[int]) -> Profile | None:
        """Its profile, with what else was measured on the same machine, also with some of these numbers of replicas."""
        if self.profile is None:
            return None
        counts = sorted({*OFTEN_PROFILED, *replicas, self.resolved.replicas})
        return ProfileStore(store.storage).profile(self.profile.fingerprint, counts) or self.profile

    def step_time_model(self, profile: Profile | None) -> StepTimeModel:
        """That of a profile; without one, of the step times of its trials, on as many replicas as it had."""
        return model_of(profile) if profile is not None else fit_step_time_model(_points(self))


def _points(study: PastStudy) -> list[ProfilePoint]:
    """The median step times of the trials as if they had been profiled, each known as well as the trials agree."""
    by_share: dict[tuple[int, int], list[float]] = {}
    for result in study.results:
        last = result.measurements[-1] if result.measurements else None
        if last is not None and last.step >= MIN_STEPS and last.train_seconds > 0:
            p = result.parameters
            key = p.per_replica_batch_size(study.resolved.replicas), p.accumulation
            by_share.setdefault(key, []).append(last.train_seconds / last.step)
    if not by_share:
        raise StudyError(
            f"study {study.name} has no step times to go by: give a file of `profile --export` as --profile"
        )
    return [_point(study.resolved.replicas, *key, seconds) for key, seconds in sorted(by_share.items())]


def _point(replicas: int, share: int, accumulation: int, seconds: list[float]) -> ProfilePoint:
    median = float(np.median(seconds))
    spread = float(np.subtract(*np.quantile(seconds, [0.75, 0.25])) / median) if len(seconds) > 1 else 0.1
    return ProfilePoint(
        replicas=replicas,
        per_replica_batch_size=share,
        accumulation=accumulation,
        step_seconds=median,
        interval=(min(seconds), max(seconds)),
        undisturbed_seconds=median,
        undisturbed_error=spread,
        spread=spread,
        blocks=len(seconds),
        steps=len(seconds),
        input_share=0.0,
        memory_bytes=None,
    )
