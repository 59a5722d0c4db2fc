"""A study in Optuna's storage: the truth from which it is resumed, accounted and summed up."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.trial import TrialState
from sqlalchemy import event

from scalesearch.core.parameters import Parameters
from scalesearch.core.planner import Planner
from scalesearch.core.recommend import best_value, cost
from scalesearch.core.results import Cost, Direction, Measurement, Objective, Outcome, TrialResult
from scalesearch.core.space import SearchSpace
from scalesearch.errors import StudyError
from scalesearch.search.pruner import CAP, CappingPruner, incumbent_cost
from scalesearch.search.records import (
    PARAMETERS,
    measurements_from_json,
    measurements_to_json,
    result_from_json,
    result_to_json,
)
from scalesearch.search.sampler import SamplerName, optuna_sampler
from scalesearch.search.scaling import WHY, ScalingSampler, distributions

FLUSH_SECONDS = 1.0
SQLITE_LOCK_SECONDS = 60
FAR_FROM_TARGET = 100.0  # constraint of a trial whose metric means nothing: worse than any distance to the target

# Two processes create one SQLite file at once: the slower one finds half a schema.
_CREATED_BY_ANOTHER_PROCESS = ("already exists", "UNIQUE constraint failed", "database is locked")

_STATES = {
    Outcome.REACHED: TrialState.COMPLETE,
    Outcome.CAPPED: TrialState.PRUNED,
    Outcome.EXHAUSTED: TrialState.PRUNED,
    Outcome.DIVERGED: TrialState.PRUNED,
    Outcome.OUT_OF_MEMORY: TrialState.PRUNED,
    Outcome.INTERRUPTED: TrialState.FAIL,
    Outcome.CRASHED: TrialState.FAIL,
}


@dataclass(frozen=True, kw_only=True)
class OpenTrial:
    """A trial that was asked for and not yet told."""

    number: int
    parameters: Parameters
    seed: int
    is_baseline: bool
    cap: float | None = None
    """The cost, in the goal's unit, after which to stop it; None: no cap of its own."""
    why: str = ""


def open_storage(url: str, *, create: bool = True) -> optuna.storages.BaseStorage:
    """Optuna's storage at `url`. Raises StudyError if it cannot be opened or, without `create`, is not there yet."""
    if not create and is_missing(url):
        raise StudyError(
            f"there is no study storage {url} here ({Path.cwd()}): go to the folder of your studies, or give --storage"
        )
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for attempt in range(5):
        try:
            return _sqlite(url) if url.startswith("sqlite") else optuna.storages.get_storage(url)
        except Exception as error:
            if attempt < 4 and any(sign in str(error) for sign in _CREATED_BY_ANOTHER_PROCESS):
                time.sleep(0.5 * (attempt + 1))
                continue
            reason = str(error).splitlines()[0]
            raise StudyError(f"the study storage {url} cannot be opened: {reason}") from error
    raise AssertionError("unreachable")


def _sqlite(url: str) -> optuna.storages.BaseStorage:
    """An SQLite storage whose commits take a millisecond instead of ten, of which a trial makes twenty.

    In write-ahead mode with `synchronous = NORMAL`, killing any process loses nothing; a power failure may lose the
    last commits but cannot damage the file.
    """
    storage = optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": {"timeout": SQLITE_LOCK_SECONDS}})

    def configure(connection: Any, record: Any) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")

    event.listen(storage.engine, "connect", configure)
    storage.engine.dispose()  # connections made before the listener keep the slow mode
    return optuna.storages.get_storage(storage)  # with its cache of finished trials


def is_missing(url: str) -> bool:
    """Whether `url` is an SQLite file that could be there but is not."""
    path = Path(url.removeprefix("sqlite:///"))
    return url.startswith("sqlite:///") and path.parent.is_dir() and not path.exists()


def study_names(storage: optuna.storages.BaseStorage) -> list[str]:
    """The names of all studies in a storage."""
    return sorted(optuna.get_all_study_names(storage))


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

    def keep_leader(self, parameters: Parameters | None) -> None:
        """Keep the parameters that the search believes in."""
        self.keep("leader", PARAMETERS.dump_python(parameters, mode="json") if parameters else None)

    # Asking and telling

    def ask(
        self, space: SearchSpace, *, sampler_name: SamplerName, seed: int, planner: Planner | None = None
    ) -> OpenTrial:
        """The next trial: a queued one, or what the sampler proposes; `scaling` needs its planner."""
        position = self._position()
        if sampler_name == "scaling":
            assert planner is not None
            self._study.sampler = ScalingSampler(planner, history=lambda study: self.results())
        else:
            self._study.sampler = optuna_sampler(sampler_name, seed=seed, position=position)
        trial = self._study.ask(distributions(space))
        # From storage: the trial's own copy was made before the sampler wrote its cap.
        attributes = self._storage.get_trial(self._trial_id(trial.number)).user_attrs
        if "parameters" in attributes:
            parameters = PARAMETERS.validate_python(attributes["parameters"])
        else:
            parameters = space.parameters(trial.params)
            trial.set_user_attr("parameters", PARAMETERS.dump_python(parameters, mode="json"))
        trial_seed = attributes.get("seed", _trial_seed(seed, position))
        trial.set_user_attr("seed", trial_seed)
        self._trials[trial.number] = trial
        return OpenTrial(
            number=trial.number,
            parameters=parameters,
            seed=trial_seed,
            is_baseline=attributes.get("is_baseline", False),
            cap=attributes.get(CAP),
            why=attributes.get(WHY, ""),
        )

    def enqueue(self, parameters: Parameters, space: SearchSpace, *, is_baseline: bool = False) -> None:
        """Queue a trial of exactly `parameters`; the sampler sees the nearest point of the space."""
        self._enqueue(parameters, space, {"is_baseline": True} if is_baseline else {})

    def repeat(self, interrupted: TrialResult, space: SearchSpace) -> None:
        """Queue an interrupted trial again, with its seed, unless that was done before."""
        trials = {t.number: t.user_attrs for t in self._study.get_trials(deepcopy=False)}
        if any(attributes.get("repeats") == interrupted.number for attributes in trials.values()):
            return
        proposed = {key: value for key, value in trials[interrupted.number].items() if key in (CAP, WHY)}
        attributes = {
            **proposed,
            "is_baseline": interrupted.is_baseline,
            "seed": interrupted.seed,
            "repeats": interrupted.number,
        }
        self._enqueue(interrupted.parameters, space, attributes)

    def _enqueue(self, parameters: Parameters, space: SearchSpace, attributes: Mapping[str, Any]) -> None:
        exact = {"parameters": PARAMETERS.dump_python(parameters, mode="json")}
        self._study.enqueue_trial(space.coordinates(parameters), user_attrs={**exact, **attributes})

    def _position(self) -> int:
        """How many trials were started so far; repeats do not count, so that an interruption changes no proposal."""
        trials = self._study.get_trials(deepcopy=False)
        return sum("seed" in t.user_attrs and "repeats" not in t.user_attrs for t in trials)

    def measured(self, number: int, measurements: Sequence[Measurement], objective: Objective) -> None:
        """Keep what a running trial has measured so far; written at most once a second."""
        now = time.monotonic()
        if now - self._flushed.get(number, -np.inf) < FLUSH_SECONDS:
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
                if "parameters" in attributes:
                    self._study.enqueue_trial(trial.system_attrs["fixed_params"], user_attrs=attributes)
                continue
            measurements = measurements_from_json(attributes["measurements"]) if "measurements" in attributes else ()
            last = measurements[-1] if measurements else None
            left.append(
                TrialResult(
                    number=trial.number,
                    parameters=PARAMETERS.validate_python(attributes["parameters"]),
                    seed=attributes["seed"],
                    outcome=Outcome.INTERRUPTED,
                    reason="its driver was killed",
                    cost=Cost(examples=last.examples, device_seconds=last.elapsed_seconds * replicas)
                    if last
                    else Cost(),
                    reached=None,
                    measurements=measurements,
                    is_baseline=attributes.get("is_baseline", False),
                )
            )
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


def _trial_seed(study_seed: int, number: int) -> int:
    return int(np.random.SeedSequence((study_seed, number, 1)).generate_state(1)[0] % 2**31)


def _distance_to_target(result: TrialResult, objective: Objective) -> float:
    """How far a trial stayed from the target, relative to it: what ranks trials that did not reach it."""
    value = best_value(result, objective)
    unusable = result.outcome in (Outcome.DIVERGED, Outcome.OUT_OF_MEMORY)
    if unusable or value is None or objective.target is None:
        return FAR_FROM_TARGET
    distance = abs(value - objective.target) / max(abs(objective.target), 1e-12)
    return min(max(distance, 1e-9), FAR_FROM_TARGET)
