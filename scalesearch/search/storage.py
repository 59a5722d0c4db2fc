"""A study in Optuna's storage: the truth from which it is resumed, accounted and summed up."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import optuna
from optuna.trial import TrialState

from scalesearch.core.curve import CurvePoint
from scalesearch.core.parameters import Parameters
from scalesearch.core.proposal import space_that_fits
from scalesearch.core.recommend import best_value, cost
from scalesearch.core.results import Direction, Measurement, Objective, Outcome, TrialResult
from scalesearch.core.retune import AnyPlanner
from scalesearch.core.space import SearchSpace
from scalesearch.errors import StudyError
from scalesearch.search import queue
from scalesearch.search.database import study_names
from scalesearch.search.pruner import CappingPruner, incumbent_cost
from scalesearch.search.queue import OpenTrial
from scalesearch.search.records import (
    CURVE,
    PARAMETERS,
    interrupted_from_json,
    measurements_to_json,
    result_from_json,
    result_to_json,
)
from scalesearch.search.sampler import SamplerName, optuna_sampler
from scalesearch.search.scaling import ScalingSampler

FLUSH_SECONDS = 1.0
FAR_FROM_TARGET = 100.0  # constraint of a trial whose metric means nothing: worse than any distance to the target

# Keys that definitions did not always have, and how studies went before they had them.
_BEFORE = {"objective.crossing": "first"}

_STATES = {
    Outcome.REACHED: TrialState.COMPLETE,
    Outcome.CAPPED: TrialState.PRUNED,
    Outcome.EXHAUSTED: TrialState.PRUNED,
    Outcome.DIVERGED: TrialState.PRUNED,
    Outcome.OUT_OF_MEMORY: TrialState.PRUNED,
    Outcome.INTERRUPTED: TrialState.FAIL,
    Outcome.CRASHED: TrialState.FAIL,
}


class StudyStore:
    """One study. Trials are told with everything that they measured; what is here is all that is needed to go on."""

    def __init__(self, storage: optuna.storages.BaseStorage, name: str, *, direction: Direction | None = None) -> None:
        """Open the study `name`, or with a `direction` create it if it is not there."""
        self.name = name
        self._storage = storage
        if direction is None:
            try:
                self._study = optuna.load_study(study_name=name, storage=storage)
            except KeyError:
                known = ", ".join(study_names(storage)) or "none"
                raise StudyError(f"there is no study {name!r} in this storage; it holds: {known}") from None
        else:
            self._study = optuna.create_study(
                study_name=name, storage=storage, direction=direction, load_if_exists=True
            )
        self._study_id = storage.get_study_id_from_name(name)
        self._capping = CappingPruner()
        self._incumbent: float | None = None
        self._incumbent_is_known = False
        self._trials: dict[int, optuna.Trial] = {}
        self._flushed: dict[int, float] = {}

    @property
    def storage(self) -> optuna.storages.BaseStorage:
        """Where it is kept, with other studies."""
        return self._storage

    # What the study is

    def attribute(self, key: str) -> Any:
        """A value that was kept with the study, or None."""
        return self._study.user_attrs.get(key)

    def keep(self, key: str, value: Any) -> None:
        """Keep a JSON value with the study."""
        self._study.set_user_attr(key, value)

    def check_definition(self, fingerprint: Mapping[str, Any]) -> None:
        """Keep the fingerprint of a new study; raise StudyError with the differences if it is another one's."""
        stored = self.attribute("definition")
        if stored is None:
            self.keep("definition", dict(fingerprint))
            return
        now = json.loads(json.dumps(dict(fingerprint)))
        stored = {**{k: v for k, v in _BEFORE.items() if k in now}, **stored}
        keys = sorted(k for k in stored.keys() | now.keys() if stored.get(k) != now.get(k))
        if keys:
            differences = "\n".join(f"  {k}: was {stored.get(k)!r}, now {now.get(k)!r}" for k in keys)
            raise StudyError(
                f"study {self.name} was started with another definition:\n{differences}\n"
                "Undo the change to continue it, or start a new study: give the definition another `name`. "
                "(The budget may always be changed.)"
            )

    @property
    def has_trials(self) -> bool:
        """Whether any trial was ever asked for or queued."""
        return bool(self._study.get_trials(deepcopy=False))

    def leader(self) -> Parameters | None:
        """The parameters that the search believes in, if it said so."""
        stored = self.attribute("leader")
        return PARAMETERS.validate_python(stored) if stored is not None else None

    def edges(self) -> list[str]:
        """What the edge rule says about the leader (`core.edges`)."""
        return self.attribute("edges") or []

    def keep_edges(self, sentences: Sequence[str]) -> None:
        """Keep what the edge rule says, since it depends on the space, of which reading a study knows nothing."""
        self.keep("edges", list(sentences))

    def keep_leader(self, parameters: Parameters | None) -> None:
        """Keep the parameters that the search believes in."""
        self.keep("leader", PARAMETERS.dump_python(parameters, mode="json") if parameters else None)

    def curve(self) -> dict[int, CurvePoint]:
        """What the search believes of each global batch size that reached the target, if that is its aim."""
        return CURVE.validate_python(self.attribute("curve") or {})

    def keep_curve(self, points: Mapping[int, CurvePoint]) -> None:
        """Keep what the search believes of each global batch size."""
        self.keep("curve", CURVE.dump_python(dict(points), mode="json"))

    # Asking and telling

    def ask(
        self,
        space: SearchSpace,
        *,
        sampler_name: SamplerName,
        seed: int,
        planner: AnyPlanner | None = None,
        max_examples: float = math.inf,
    ) -> OpenTrial:
        """The next trial: a queued one, or what the sampler proposes; `scaling` needs its planner.

        Two trials whose schedules differ after `max_examples` only, their full length, are the same.
        """
        if sampler_name == "scaling":
            assert planner is not None
            self._study.sampler = ScalingSampler(planner, history=lambda study: self.results())
        else:
            position = queue.position(self._study)
            self._study.sampler = optuna_sampler(sampler_name, seed=seed, position=position)
            if not self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):  # else it is given
                space = space_that_fits(space, self.results())
        trial, asked = queue.ask(self._study, space, seed=seed, max_examples=max_examples)
        self._trials[asked.number] = trial
        return asked

    def enqueue(self, parameters: Parameters, space: SearchSpace, *, is_baseline: bool = False) -> None:
        """Queue a trial of exactly `parameters`; the sampler sees the nearest point of the space."""
        queue.enqueue(self._study, parameters, space, is_baseline=is_baseline)

    def repeat(self, interrupted: TrialResult) -> None:
        """Queue an interrupted trial again, with its seed, unless that was done before."""
        queue.repeat(self._study, interrupted)

    def waiting_origins(self) -> set[int]:
        """The numbers under which the interrupted trials that are queued were run first."""
        return queue.waiting_origins(self._study)

    def share(self, number: int, measurements: Sequence[Measurement]) -> None:
        """Keep what a trial has, before it runs, of the measurements of the trial that it repeats."""
        # In this order: a record that is cut short here must not make the trial pay for what it shares.
        self._set_trial_attribute(number, "measurements", measurements_to_json(()))
        self._set_trial_attribute(number, "shared_steps", measurements[-1].step if measurements else 0)
        self._set_trial_attribute(number, "measurements", measurements_to_json(measurements))

    def measured(
        self, number: int, measurements: Sequence[Measurement], objective: Objective, *, at_once: bool = False
    ) -> None:
        """Keep what a running trial has measured so far; written at most once a second, or `at_once`."""
        now = time.monotonic()
        if not at_once and now - self._flushed.get(number, -np.inf) < FLUSH_SECONDS:
            return
        self._flushed[number] = now
        self._set_trial_attribute(number, "measurements", measurements_to_json(measurements))
        value = measurements[-1].metrics[objective.metric]
        if math.isfinite(value):  # Optuna makes the last report of a pruned trial its value
            self._trials[number].report(value, step=measurements[-1].examples)

    def can_no_longer_win(self, cost_so_far: float) -> bool:
        """Whether capping stops a trial that has cost so much, in the unit that the study minimises.

        Asked at every evaluation while the worker waits, so the incumbent is read from storage once per trial only.
        """
        if not self._incumbent_is_known:
            self._incumbent = incumbent_cost(self._study)
            self._incumbent_is_known = True
        return self._capping.is_beaten(cost_so_far, by=self._incumbent)

    def tell(self, result: TrialResult, objective: Objective) -> None:
        """End a trial with all that it measured."""
        state = _STATES[result.outcome]
        value = cost(result, objective)
        if objective.minimize == "metric" and value is not None:
            state = TrialState.COMPLETE
        trial = self._trials.pop(result.number, None)
        if trial is not None and state is TrialState.PRUNED:
            # A censored trial gets no invented cost: Optuna ranks it by how far it violates "target reached".
            trial.set_constraint("target", _distance_to_target(result, objective))
        self._set_trial_attribute(result.number, "measurements", measurements_to_json(result.measurements))
        # With its result a trial is complete, whatever happens to this process before it has told Optuna.
        self._set_trial_attribute(result.number, "result", result_to_json(result))
        self._study.tell(result.number, value if state is TrialState.COMPLETE else None, state=state)
        self._results[result.number] = result
        self._incumbent_is_known = False

    def results(self) -> list[TrialResult]:
        """All finished trials, in order of their number; read from storage once, as a study has one driver."""
        return [self._results[number] for number in sorted(self._results)]

    @cached_property
    def _results(self) -> dict[int, TrialResult]:
        return {
            trial.number: result_from_json(trial.number, trial.user_attrs)
            for trial in self._study.get_trials(deepcopy=False)
            if trial.state.is_finished() and "result" in trial.user_attrs
        }

    # Resuming

    def orphans(self, *, replicas: int) -> list[TrialResult]:
        """The trials that a killed driver left running, as INTERRUPTED with what they are known to have cost.

        They still have to be told. One whose result was written keeps it; one that had not begun is ended here, and
        queued again if it came from the queue.
        """
        left = []
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            attributes = trial.user_attrs
            if trial.number in self._trials:
                continue
            if "result" in attributes:
                left.append(result_from_json(trial.number, attributes))
                continue
            if "seed" not in attributes:
                self._study.tell(trial.number, state=TrialState.FAIL)
                if "fixed_params" in trial.system_attrs:
                    queue.queue(self._study, trial.system_attrs["fixed_params"], attributes, trial.system_attrs)
                continue
            left.append(interrupted_from_json(trial.number, attributes, replicas=replicas))
        return left

    # Time

    def wall_clock_seconds(self) -> float:
        """How long the study has run, over all its sessions."""
        return float(sum(v for k, v in self._study.user_attrs.items() if k.startswith("session:")))

    def session_lasted(self, session: str, seconds: float) -> None:
        """Keep how long the present session has lasted."""
        self.keep(f"session:{session}", seconds)

    def _set_trial_attribute(self, number: int, key: str, value: Any) -> None:
        self._storage.set_trial_user_attr(self._trial_id(number), key, value)

    def _trial_id(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)


def _distance_to_target(result: TrialResult, objective: Objective) -> float:
    """How far a trial stayed from the target, relative to it: what ranks trials that did not reach it."""
    value = best_value(result, objective)
    unusable = result.outcome in (Outcome.DIVERGED, Outcome.OUT_OF_MEMORY)
    if unusable or value is None or objective.target is None:
        return FAR_FROM_TARGET
    distance = abs(value - objective.target) / max(abs(objective.target), 1e-12)
    return min(max(distance, 1e-9), FAR_FROM_TARGET)
