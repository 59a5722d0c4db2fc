from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalesearch.core.budget import (
    Budget,
    Spent,
    measured_cost,
    spent,
    unit_that_ends_a_trial,
    unit_that_forbids_a_trial,
)
from scalesearch.core.results import Cost, Measurement, Outcome

from .trials import trial

TRAIN_EXAMPLES = 1000

limits = st.builds(
    Budget,
    examples=st.none() | st.floats(1, 1e5),
    epochs=st.none() | st.floats(0.001, 100),
    device_seconds=st.none() | st.floats(0.001, 1e4),
    wall_clock_seconds=st.none() | st.floats(0.001, 1e4),
    trials=st.integers(1, 5),  # bounds the test itself
)
interval = st.tuples(st.integers(1, 20_000), st.floats(0, 1000), st.floats(0, 1000))
"""Examples, device seconds and wall-clock seconds between two evaluations."""
plans = st.lists(st.lists(interval, min_size=1, max_size=6), min_size=6, max_size=6)


@given(limits, plans)
def test_no_sequence_of_events_overspends_by_more_than_one_evaluation_interval(
    budget: Budget, trials: list[list[tuple[int, float, float]]]
) -> None:
    finished: list[Cost] = []
    clock, last_interval = 0.0, (0, 0.0, 0.0)

    def so_far(running: Cost | None) -> Spent:
        in_flight = [running] if running else []
        return spent(finished, in_flight=in_flight, wall_clock_seconds=clock, train_examples=TRAIN_EXAMPLES)

    for intervals in trials:
        if unit_that_forbids_a_trial(budget, so_far(None)) is not None:
            break
        running = Cost()
        for last_interval in intervals:
            examples, device_seconds, seconds = last_interval
            running = Cost(examples=running.examples + examples, device_seconds=running.device_seconds + device_seconds)
            clock += seconds
            if unit_that_ends_a_trial(budget, so_far(running)) is not None:
                break
        finished.append(running)
    else:
        pytest.fail("the limit on trials should have ended the study")

    total = so_far(None)
    examples, device_seconds, seconds = last_interval
    allowed = Spent(
        examples=examples,
        epochs=examples / TRAIN_EXAMPLES,
        device_seconds=device_seconds,
        wall_clock_seconds=seconds,
        trials=0,
    )
    for unit, limit in budget.limits().items():
        assert getattr(total, unit) <= (limit + getattr(allowed, unit)) * (1 + 1e-9), unit


@pytest.mark.parametrize("unit", ["examples", "epochs", "device_seconds", "wall_clock_seconds", "trials"])
def test_each_limit_forbids_a_trial_when_nothing_is_left_of_it(unit: str) -> None:
    budget = Budget(**{unit: 10})
    assert unit_that_forbids_a_trial(budget, Spent(**{unit: 9})) is None
    assert unit_that_forbids_a_trial(budget, Spent(**{unit: 10})) == unit
    ends = None if unit == "trials" else unit
    assert unit_that_ends_a_trial(budget, Spent(**{unit: 10})) == ends


def test_the_number_of_trials_does_not_end_the_last_one() -> None:
    assert unit_that_ends_a_trial(Budget(trials=3), Spent(trials=3)) is None
    assert unit_that_ends_a_trial(Budget(trials=3, examples=5), Spent(trials=3, examples=5)) == "examples"


def test_without_limits_nothing_is_forbidden() -> None:
    much = Spent(examples=10**15, epochs=1e9, device_seconds=1e9, wall_clock_seconds=1e9, trials=10**6)
    assert Budget().limits() == {}
    assert unit_that_forbids_a_trial(Budget(), much) is None
    assert unit_that_ends_a_trial(Budget(), much) is None


def test_limits_are_those_that_are_set() -> None:
    assert Budget(examples=5, trials=2).limits() == {"examples": 5, "trials": 2}


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_counts(outcome: Outcome) -> None:
    ended = trial(0, [0.9, 0.5, 0.05], outcome)
    total = spent([ended], in_flight=[Cost(examples=6, device_seconds=2.5)], wall_clock_seconds=7, train_examples=100)
    assert asdict(total) == {
        "examples": 20 * 64 + 6,
        "epochs": (20 * 64 + 6) / 100,
        "device_seconds": 3.5,
        "wall_clock_seconds": 7,
        "trials": 1 if outcome is Outcome.INTERRUPTED else 2,
    }


def test_an_interrupted_trial_and_what_continues_it_count_once() -> None:
    trials = [trial(0, [0.9, 0.5], Outcome.CAPPED), *(trial(n, [0.9, 0.5], Outcome.INTERRUPTED) for n in (1, 2))]

    def count(*in_flight: Cost) -> int:
        return spent(trials, in_flight=in_flight, wall_clock_seconds=0, train_examples=100).trials

    assert count() == 1, "it is not over"
    assert count(Cost()) == 2, "it goes on"
    trials.append(trial(3, [0.9, 0.5], Outcome.CAPPED))
    assert count() == 2


def test_what_a_trial_shares_costs_nothing() -> None:
    measured = [
        Measurement(step=s, examples=8 * s, train_seconds=0.0, elapsed_seconds=1.0 + s, train_loss=0.0, metrics={})
        for s in (0, 10, 30)
    ]
    assert measured_cost(measured, shared_steps=0, replicas=2) == Cost(examples=240, device_seconds=62.0)
    assert measured_cost(measured, shared_steps=10, replicas=2) == Cost(examples=160, device_seconds=40.0)
    assert measured_cost(measured, shared_steps=30, replicas=2) == Cost()
    assert measured_cost([], shared_steps=0, replicas=2) == Cost()


def test_the_profile_of_a_study_counts() -> None:
    cost = Cost(examples=10, device_seconds=2.0)
    found = spent([cost], wall_clock_seconds=0.0, train_examples=10, profile_device_seconds=3.0)
    assert (found.device_seconds, found.examples, found.trials) == (5.0, 10, 1)
