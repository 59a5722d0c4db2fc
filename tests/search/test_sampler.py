from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from optuna.trial import FrozenTrial

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Outcome, Reached, TrialResult
from scalesearch.core.space import SearchSpace
from scalesearch.search.database import open_storage
from scalesearch.search.queue import OpenTrial
from scalesearch.search.sampler import SamplerName
from scalesearch.search.storage import StudyStore

from .trials import BASELINE, RATE_ONLY, SPACE, STEPS, result

SAMPLERS: tuple[SamplerName, ...] = ("tpe", "random", "qmc", "cmaes")
OpenFile = Callable[[str], StudyStore]
TRIALS = 14  # TPE's first 10 are random


def outcome_of(trial: OpenTrial) -> TrialResult:
    """What a trial comes to, as a pure function of its parameters."""
    if trial.parameters.learning_rate > 0.1:
        return result(trial.number, trial.parameters, Outcome.DIVERGED)
    return result(trial.number, trial.parameters, Outcome.REACHED)


def run(store: StudyStore, sampler_name: SamplerName, *, seed: int, trials: int) -> list[OpenTrial]:
    asked = []
    for _ in range(trials):
        asked.append(store.ask(SPACE, sampler_name=sampler_name, seed=seed))
        store.tell(outcome_of(asked[-1]), STEPS)
    return asked


@pytest.fixture
def open_file(tmp_path: Path, new_database: Callable[[Path], str]) -> OpenFile:
    """(name) -> the study in the file of that name, as a new driver finds it."""

    def open_it(name: str) -> StudyStore:
        path = tmp_path / name
        url = f"sqlite:///{path}" if path.exists() else new_database(path)
        return StudyStore(open_storage(url), "s", direction="minimize")

    return open_it


GENERATIONS = 22  # CMA-ES in five dimensions: eight hits to a generation


def trials_in(store: StudyStore) -> list[FrozenTrial]:
    return store._study.get_trials(deepcopy=False)


def points(trials: list[OpenTrial]) -> list[tuple[Parameters, int]]:
    return [(trial.parameters, trial.seed) for trial in trials]


@pytest.fixture(params=SAMPLERS)
def sampler_name(request: pytest.FixtureRequest) -> SamplerName:
    name: SamplerName = request.param
    return name


def test_one_seed_is_one_sequence_of_distinct_points(sampler_name: SamplerName, open_file: OpenFile) -> None:
    first = points(run(open_file("a.db"), sampler_name, seed=7, trials=TRIALS))
    second = points(run(open_file("b.db"), sampler_name, seed=7, trials=TRIALS))
    assert first == second
    assert len(set(first)) == TRIALS


def test_two_seeds_differ(sampler_name: SamplerName, open_file: OpenFile) -> None:
    first = points(run(open_file("a.db"), sampler_name, seed=7, trials=3))
    second = points(run(open_file("b.db"), sampler_name, seed=8, trials=3))
    assert not set(first) & set(second)


def test_a_continued_study_gives_the_points_of_an_uninterrupted_one(
    sampler_name: SamplerName, open_file: OpenFile
) -> None:
    uninterrupted = points(run(open_file("a.db"), sampler_name, seed=7, trials=TRIALS))
    continued: list[tuple[Parameters, int]] = []
    for trials in (1, 3, TRIALS - 4):
        continued += points(run(open_file("b.db"), sampler_name, seed=7, trials=trials))
    assert continued == uninterrupted


def test_a_trial_that_was_interrupted_and_repeated_changes_nothing_after_it(
    sampler_name: SamplerName, open_file: OpenFile
) -> None:
    uninterrupted = points(run(open_file("a.db"), sampler_name, seed=7, trials=TRIALS))

    store = open_file("b.db")
    before = run(store, sampler_name, seed=7, trials=11)
    cut = store.ask(SPACE, sampler_name=sampler_name, seed=7)
    interrupted = result(cut.number, cut.parameters, Outcome.INTERRUPTED, seed=cut.seed)
    store.tell(interrupted, STEPS)
    store.repeat(interrupted)
    after = run(open_file("b.db"), sampler_name, seed=7, trials=TRIALS - 11)

    assert (after[0].parameters, after[0].seed) == (cut.parameters, cut.seed)
    assert points(before + after) == uninterrupted


def test_a_crash_in_the_first_trial_does_not_make_the_second_the_same(
    sampler_name: SamplerName, open_file: OpenFile
) -> None:
    store = open_file("a.db")
    asked = []
    for _ in range(3):
        asked.append(store.ask(SPACE, sampler_name=sampler_name, seed=7))
        store.tell(result(asked[-1].number, asked[-1].parameters, Outcome.CRASHED), STEPS)
    assert len({trial.parameters for trial in asked}) == 3
    assert len({trial.seed for trial in asked}) == 3


def test_a_queued_baseline_comes_first_and_has_a_seed_of_its_own(
    sampler_name: SamplerName, open_file: OpenFile
) -> None:
    store = open_file("a.db")
    store.enqueue(BASELINE, SPACE, is_baseline=True)
    asked = run(store, sampler_name, seed=7, trials=4)
    assert [trial.is_baseline for trial in asked] == [True, False, False, False]
    assert asked[0].parameters == BASELINE
    assert len({trial.seed for trial in asked}) == 4


def test_cma_es_keeps_its_generations_over_interruptions(open_file: OpenFile) -> None:
    """An interrupted trial that is repeated belongs to the generation that it was drawn for."""
    uninterrupted = points(run(open_file("a.db"), "cmaes", seed=7, trials=GENERATIONS))
    continued = []
    for _ in range(GENERATIONS):
        store = open_file("b.db")
        cut = store.ask(SPACE, sampler_name="cmaes", seed=7)
        interrupted = result(cut.number, cut.parameters, Outcome.INTERRUPTED, seed=cut.seed)
        store.tell(interrupted, STEPS)
        store.repeat(interrupted)
        continued += points(run(open_file("b.db"), "cmaes", seed=7, trials=1))
    assert continued == uninterrupted
    generations = {t.system_attrs.get("cma:generation") for t in trials_in(open_file("b.db"))}
    assert {0, 1} <= generations


@pytest.mark.parametrize("space", [RATE_ONLY, replace(RATE_ONLY, batch_sizes=SPACE.batch_sizes)])
def test_cma_es_draws_near_what_was_good(space: SearchSpace, open_file: OpenFile) -> None:
    """Also on a single axis. Cost is the distance from a rate of 0.002, in decades."""
    store, rates = open_file("a.db"), []
    for _ in range(40):
        trial = store.ask(space, sampler_name="cmaes", seed=0)
        rates.append(trial.parameters.learning_rate)
        steps = 100.0 * (1.0 + abs(math.log10(rates[-1] / 0.002)))
        reached = Reached(steps=steps, examples=1.0, seconds=1.0, evaluation_step=1, evaluation_examples=1)
        store.tell(result(trial.number, trial.parameters, Outcome.REACHED, reached=reached), STEPS)
    assert np.median(np.abs(np.log10(np.array(rates[-10:]) / 0.002))) < 0.3
    assert all(1e-4 <= rate <= 1.0 for rate in rates)
