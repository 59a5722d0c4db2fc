from __future__ import annotations

from scalesearch.core.planner import Planner
from scalesearch.core.results import Outcome
from scalesearch.search.storage import StudyStore

from .conftest import OpenStore
from .trials import BASELINE, SPACE, STEPS, in_optuna, result, tell


def test_an_enqueued_baseline_runs_exactly_as_given_while_the_sampler_sees_a_point_of_the_space(
    store: StudyStore, open_store: OpenStore, storage_url: str
) -> None:
    store.enqueue(BASELINE, SPACE, is_baseline=True)
    asked = open_store().ask(SPACE, sampler_name="tpe", seed=0)
    assert (asked.parameters, asked.is_baseline) == (BASELINE, True)
    assert in_optuna(storage_url)[0].params == SPACE.coordinates(BASELINE)
    for axis in SPACE.axes():
        assert axis.low <= in_optuna(storage_url)[0].params[axis.name] <= axis.high


def test_a_repeat_has_the_parameters_and_the_seed_of_what_was_interrupted(store: StudyStore) -> None:
    store.enqueue(BASELINE, SPACE, is_baseline=True)
    first = store.ask(SPACE, sampler_name="tpe", seed=0)
    cut = result(first.number, first.parameters, Outcome.INTERRUPTED, seed=first.seed, is_baseline=True)
    store.tell(cut, STEPS)
    store.repeat(cut)
    again = store.ask(SPACE, sampler_name="tpe", seed=0)
    assert (again.parameters, again.seed, again.is_baseline) == (first.parameters, first.seed, True)
    assert again.number != first.number
    assert (first.repeats, first.origin) == ((), first.number)
    assert (again.repeats, again.origin) == ((first.number,), first.number)


def test_a_repeat_of_a_repeat_is_of_the_same_origin(store: StudyStore) -> None:
    tell(store, Outcome.CAPPED)
    first = store.ask(SPACE, sampler_name="random", seed=0)
    for _ in range(2):
        number = len(store.results())
        store.tell(result(number, first.parameters, Outcome.INTERRUPTED), STEPS)
        store.repeat(store.results()[-1])
        assert store.waiting_origins() == {first.number}
        again = store.ask(SPACE, sampler_name="random", seed=0)
        assert again.number == number + 1
        assert store.waiting_origins() == set()
    assert (again.repeats, again.origin) == ((2, 1), 1)


def test_what_was_interrupted_is_repeated_once(store: StudyStore, open_store: OpenStore) -> None:
    cut = tell(store, Outcome.INTERRUPTED)
    tell(store, Outcome.CAPPED)
    store.repeat(cut)
    again = open_store()
    assert repr(again.results()[0]) == repr(cut)
    again.repeat(cut)
    assert again.ask(SPACE, sampler_name="random", seed=3).parameters == cut.parameters
    assert again.ask(SPACE, sampler_name="random", seed=3).parameters != cut.parameters


def test_a_proposal_of_the_planner_keeps_its_cap_also_when_it_is_repeated(open_store: OpenStore) -> None:
    planner = Planner(space=SPACE, objective=STEPS, max_examples=100_000)
    store = open_store()
    asked = store.ask(SPACE, sampler_name="scaling", seed=0, planner=planner)
    assert asked.cap is not None
    assert asked.why
    interrupted = result(asked.number, asked.parameters, Outcome.INTERRUPTED, seed=asked.seed)
    store.tell(interrupted, STEPS)
    store.repeat(interrupted)
    again = open_store().ask(SPACE, sampler_name="scaling", seed=0, planner=planner)
    assert (again.cap, again.why, again.parameters) == (asked.cap, asked.why, asked.parameters)
