"""Which trial a study in Optuna's storage runs next: what is queued, and what a trial carries that was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from optuna.trial import TrialState, create_trial

from scalesearch.core.parameters import Parameters
from scalesearch.core.prefix import seed_to_share
from scalesearch.core.results import TrialResult
from scalesearch.core.space import SearchSpace
from scalesearch.search.pruner import CAP
from scalesearch.search.records import PARAMETERS, WHY
from scalesearch.search.scaling import suggest


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
    repeats: tuple[int, ...] = ()
    """The interrupted trials that it runs again: the last one, which may be a repeat itself, and so on to the first."""

    @property
    def origin(self) -> int:
        """The number under which it was run first."""
        return self.repeats[-1] if self.repeats else self.number


def position(study: optuna.Study) -> int:
    """How many trials were started so far; repeats do not count, so that an interruption changes no proposal."""
    trials = study.get_trials(deepcopy=False)
    return sum("seed" in t.user_attrs and "repeats" not in t.user_attrs for t in trials)


def ask(study: optuna.Study, space: SearchSpace, *, seed: int, max_examples: float) -> tuple[optuna.Trial, OpenTrial]:
    """The next trial: a queued one, or what the study's sampler proposes.

    `seed` is the study's. A trial that begins as an earlier one did, but decays elsewhere, has the seed of that one, so
    that it can go on from there; any other, a repeat of the same parameters too, has one of its own.
    """
    own_seed = _trial_seed(seed, position(study))
    trial = study.ask()
    suggested = suggest(trial, space)
    # From storage: the trial's own copy was made before the sampler wrote its cap.
    attributes = study._storage.get_trial(trial._trial_id).user_attrs
    if "parameters" in attributes:
        parameters = PARAMETERS.validate_python(attributes["parameters"])
    else:
        parameters = suggested
        trial.set_user_attr("parameters", PARAMETERS.dump_python(parameters, mode="json"))
    if "seed" in attributes:
        own_seed = attributes["seed"]
    elif (
        shared := seed_to_share(parameters, _started_before(study, trial.number), max_examples=max_examples)
    ) is not None:
        own_seed = shared
    trial.set_user_attr("seed", own_seed)
    return trial, OpenTrial(
        number=trial.number,
        parameters=parameters,
        seed=own_seed,
        is_baseline=attributes.get("is_baseline", False),
        cap=attributes.get(CAP),
        why=attributes.get(WHY, ""),
        repeats=_repeated_by(study, trial.number),
    )


def _started_before(study: optuna.Study, number: int) -> Iterator[tuple[Parameters, int]]:
    """Parameters and seeds of the trials before this one, those that were interrupted too."""
    for trial in study.get_trials(deepcopy=False)[:number]:
        if "seed" in trial.user_attrs:
            yield PARAMETERS.validate_python(trial.user_attrs["parameters"]), trial.user_attrs["seed"]


def enqueue(study: optuna.Study, parameters: Parameters, space: SearchSpace, *, is_baseline: bool) -> None:
    """Queue a trial of exactly `parameters`; the sampler sees the nearest point of the space."""
    exact = {"parameters": PARAMETERS.dump_python(parameters, mode="json")}
    attributes = {**exact, "is_baseline": True} if is_baseline else exact
    queue(study, space.coordinates(parameters), attributes, {})


def repeat(study: optuna.Study, interrupted: TrialResult) -> None:
    """Queue an interrupted trial again, with its seed, unless that was done before."""
    trials = {t.number: t for t in study.get_trials(deepcopy=False)}
    if any(t.user_attrs.get("repeats") == interrupted.number for t in trials.values()):
        return
    cut = trials[interrupted.number]
    attributes = {
        **{key: value for key, value in cut.user_attrs.items() if key in (CAP, WHY)},
        "parameters": PARAMETERS.dump_python(interrupted.parameters, mode="json"),
        "is_baseline": interrupted.is_baseline,
        "seed": interrupted.seed,
        "repeats": interrupted.number,
    }
    queue(study, cut.params, attributes, cut.system_attrs)


def queue(
    study: optuna.Study,
    coordinates: Mapping[str, float],
    attributes: Mapping[str, Any],
    sampler_attributes: Mapping[str, Any],
) -> None:
    """What `optuna.Study.enqueue_trial` does, and with what a sampler keeps in its trials (CMA-ES: the generation)."""
    study.add_trial(
        create_trial(
            state=TrialState.WAITING,
            user_attrs=dict(attributes),
            system_attrs={**sampler_attributes, "fixed_params": dict(coordinates)},
        )
    )


def waiting_origins(study: optuna.Study) -> set[int]:
    """The numbers under which the interrupted trials that are queued were run first."""
    waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
    return {repeated[-1] for t in waiting if (repeated := _repeated_by(study, t.number))}


def _repeated_by(study: optuna.Study, number: int) -> tuple[int, ...]:
    repeats = {t.number: t.user_attrs.get("repeats") for t in study.get_trials(deepcopy=False)}
    repeated = []
    while (before := repeats[number]) is not None:
        repeated.append(before)
        number = before
    return tuple(repeated)


def _trial_seed(study_seed: int, number: int) -> int:
    return int(np.random.SeedSequence((study_seed, number, 1)).generate_state(1)[0] % 2**31)
