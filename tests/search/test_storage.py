from __future__ import annotations

import math

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from scalesearch.core.results import Cost, Objective, Outcome
from scalesearch.errors import StudyError
from scalesearch.search import storage as storage_module
from scalesearch.search.pruner import incumbent_cost
from scalesearch.search.storage import FAR_FROM_TARGET, StudyStore

from .conftest import OpenStore
from .trials import BASELINE, ERROR, RATE_ONLY, SPACE, STEPS, constant, in_optuna, measurements, result, tell

METRIC = Objective(metric=ERROR, direction="minimize", target=None, minimize="metric")
NOTHING_MEASURED = {"measurements": ()}
NOT_FINITE = {"measurements": measurements(0.9, math.nan, loss=math.inf, metrics={"val/x": -math.inf})}


# What is told comes back


def test_what_a_trial_shares_comes_back(store: StudyStore, open_store: OpenStore) -> None:
    told = tell(store, Outcome.CAPPED, shared_steps=100)
    assert [r.shared_steps for r in open_store().results()] == [told.shared_steps]


def test_every_outcome_comes_back_equal_in_a_new_driver(store: StudyStore, open_store: OpenStore) -> None:
    told = [tell(store, outcome) for outcome in Outcome]
    told += [tell(store, outcome, **NOTHING_MEASURED) for outcome in Outcome if outcome is not Outcome.REACHED]
    told += [tell(store, outcome, **NOT_FINITE) for outcome in (Outcome.DIVERGED, Outcome.CRASHED)]
    told.append(tell(store, Outcome.REACHED, test_metrics={"test/loss": 0.25, "test/x": math.nan}))
    # repr, as NaN is not equal to itself; it shows every digit of a float.
    assert [repr(r) for r in open_store().results()] == [repr(r) for r in told]
    assert [repr(r) for r in store.results()] == [repr(r) for r in told]


def test_an_orphan_does_not_pay_for_what_it_shares(store: StudyStore, open_store: OpenStore) -> None:
    trial = store.ask(SPACE, sampler_name="random", seed=0)
    shared, all_of_it = measurements(0.9, 0.5), measurements(0.9, 0.5, 0.4)
    store.share(trial.number, shared)
    [orphan] = open_store().orphans(replicas=2)
    assert (orphan.shared_steps, orphan.cost) == (100, Cost())
    assert repr(orphan.measurements) == repr(shared)

    store.measured(trial.number, all_of_it, STEPS)
    [orphan] = open_store().orphans(replicas=2)
    assert orphan.cost.examples == 6_400
    assert orphan.cost.device_seconds == pytest.approx(2 * 0.9)

    store.share(trial.number, ())
    [orphan] = open_store().orphans(replicas=2)
    assert (orphan.shared_steps, orphan.cost, orphan.measurements) == (0, Cost(), ())


def test_what_must_be_kept_at_once_is(store: StudyStore, open_store: OpenStore) -> None:
    trial = store.ask(SPACE, sampler_name="random", seed=0)
    for count in (1, 2):
        store.measured(trial.number, measurements(0.9, 0.5)[:count], STEPS, at_once=count == 2)
    [orphan] = open_store().orphans(replicas=1)
    assert [m.step for m in orphan.measurements] == [0, 100]


# What Optuna sees


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Outcome.REACHED, TrialState.COMPLETE),
        (Outcome.CAPPED, TrialState.PRUNED),
        (Outcome.EXHAUSTED, TrialState.PRUNED),
        (Outcome.DIVERGED, TrialState.PRUNED),
        (Outcome.OUT_OF_MEMORY, TrialState.PRUNED),
        (Outcome.INTERRUPTED, TrialState.FAIL),
        (Outcome.CRASHED, TrialState.FAIL),
    ],
)
def test_the_state_of_each_outcome(store: StudyStore, storage_url: str, outcome: Outcome, state: TrialState) -> None:
    tell(store, outcome)
    [trial] = in_optuna(storage_url)
    assert trial.state is state
    assert (trial.value == 187.5) if outcome is Outcome.REACHED else (trial.value is None)
    infeasible = any(v > 0 for v in trial.constraints.values())
    assert infeasible == (state is TrialState.PRUNED)


def test_the_violation_is_the_relative_distance_to_the_target(store: StudyStore, storage_url: str) -> None:
    tell(store, Outcome.EXHAUSTED, measurements=measurements(0.9, 0.15, 0.16))
    tell(store, Outcome.CAPPED, measurements=measurements(0.9, 0.4))
    tell(store, Outcome.CAPPED, measurements=measurements(0.1))  # met but not strictly: still a miss
    tell(store, Outcome.DIVERGED, measurements=measurements(0.9, 0.11, math.inf))
    tell(store, Outcome.OUT_OF_MEMORY)
    violations = [t.constraints["target"] for t in in_optuna(storage_url)]
    assert violations == pytest.approx([0.5, 3.0, 1e-9, FAR_FROM_TARGET, FAR_FROM_TARGET])


def test_optuna_never_holds_a_number_that_is_not_finite(store: StudyStore, storage_url: str) -> None:
    for measured in (measurements(0.9, math.inf), measurements(math.nan), measurements(-math.inf, 0.5)):
        trial = store.ask(SPACE, sampler_name="random", seed=0)
        store.measured(trial.number, measured, STEPS)
        store.tell(result(trial.number, trial.parameters, Outcome.DIVERGED, measurements=measured), STEPS)
    for trial in in_optuna(storage_url):
        numbers = [*trial.intermediate_values.values(), *trial.constraints.values(), *(trial.values or [])]
        assert all(math.isfinite(n) for n in numbers)


def test_what_a_pruned_trial_reported_is_never_taken_for_a_cost(store: StudyStore, storage_url: str) -> None:
    trial = store.ask(SPACE, sampler_name="random", seed=0)
    store.measured(trial.number, measurements(0.9, 0.3), STEPS)
    store.tell(result(trial.number, trial.parameters, Outcome.CAPPED), STEPS)
    assert not store.can_no_longer_win(1e9), "there is no incumbent"
    with pytest.raises(ValueError, match=r"No feasible trials|Record does not exist"):
        _ = optuna.load_study(study_name="s", storage=storage_url).best_trial


def test_the_best_trial_is_the_cheapest_that_reached_the_target(store: StudyStore, storage_url: str) -> None:
    for outcome in Outcome:
        tell(store, outcome)
    best = optuna.load_study(study_name="s", storage=storage_url).best_trial
    assert (best.number, best.value) == (list(Outcome).index(Outcome.REACHED), 187.5)


def test_a_metric_at_full_length_is_the_value_itself(store: StudyStore, storage_url: str) -> None:
    tell(store, Outcome.EXHAUSTED, METRIC, measurements=measurements(0.9, 0.2, 0.25))
    tell(store, Outcome.DIVERGED, METRIC)
    complete, diverged = in_optuna(storage_url)
    assert (complete.state, complete.value) == (TrialState.COMPLETE, 0.25)
    assert (diverged.state, diverged.constraints) == (TrialState.PRUNED, {"target": FAR_FROM_TARGET})


def test_a_trial_can_no_longer_win_once_it_has_cost_more_than_the_incumbent(
    store: StudyStore, open_store: OpenStore
) -> None:
    assert not store.can_no_longer_win(1e9)
    tell(store, Outcome.REACHED)
    for driver in (store, open_store()):
        assert not driver.can_no_longer_win(187.5)
        assert driver.can_no_longer_win(187.6)


@pytest.mark.parametrize("outcome", [Outcome.REACHED, Outcome.CAPPED])
def test_the_incumbent_is_read_once_per_trial(
    store: StudyStore, monkeypatch: pytest.MonkeyPatch, outcome: Outcome
) -> None:
    """The worker waits for it at every evaluation, also while there is no incumbent yet."""
    reads: list[None] = []

    def read(study: optuna.Study) -> float | None:
        reads.append(None)
        return incumbent_cost(study)

    monkeypatch.setattr(storage_module, "incumbent_cost", read)
    for trials in (1, 2):
        tell(store, outcome)
        for _ in range(5):
            store.can_no_longer_win(1.0)
        assert len(reads) == trials


def test_tpe_learns_from_trials_that_all_missed_the_target(store: StudyStore) -> None:
    """The error falls towards a rate of 0.01, but no trial reaches the target.

    Under random search, log10(rate) is uniform on [-4, 0]: the distance to -2 has mean 1.0 and standard deviation
    0.577, so the mean of 20 such distances falls below 0.6 with a probability of 0.1 % (3.1 standard errors of 0.129).
    """
    distances = []
    for _ in range(50):
        trial = store.ask(RATE_ONLY, sampler_name="tpe", seed=0)
        distance = abs(math.log10(trial.parameters.learning_rate) + 2)
        distances.append(distance)
        measured = measurements(0.9, 0.2 + 0.3 * distance)
        store.tell(result(trial.number, trial.parameters, Outcome.EXHAUSTED, measurements=measured), STEPS)
    assert np.mean(distances[-20:]) < 0.6


# The definition


def test_a_changed_definition_is_refused_with_the_differences(store: StudyStore, open_store: OpenStore) -> None:
    store.check_definition({"objective.target": 0.1, "run.seed": 0, "search.sampler": "tpe"})
    open_store().check_definition({"search.sampler": "tpe", "run.seed": 0, "objective.target": 0.1})
    with pytest.raises(StudyError) as refused:
        open_store().check_definition({"objective.target": 0.2, "run.seed": 0, "trial.new": [1, 2]})
    lines = str(refused.value).splitlines()
    assert "study s was started with another definition" in lines[0]
    assert lines[1:4] == [
        "  objective.target: was 0.1, now 0.2",
        "  search.sampler: was 'tpe', now None",
        "  trial.new: was None, now [1, 2]",
    ]
    open_store().check_definition({"objective.target": 0.1, "run.seed": 0, "search.sampler": "tpe"})


def test_a_study_from_before_there_were_two_rules_of_crossing_goes_on_with_the_first(
    store: StudyStore, open_store: OpenStore
) -> None:
    store.check_definition({"objective.target": 0.1})
    open_store().check_definition({"objective.target": 0.1, "objective.crossing": "first"})
    with pytest.raises(StudyError, match=r"objective\.crossing: was 'first', now 'smoothed'"):
        open_store().check_definition({"objective.target": 0.1, "objective.crossing": "smoothed"})
    open_store().check_definition({"objective.target": 0.1})


def test_a_tuple_is_the_list_that_json_makes_of_it(store: StudyStore, open_store: OpenStore) -> None:
    store.check_definition({"baseline.boundaries": ("5 epochs", "8 epochs")})
    open_store().check_definition({"baseline.boundaries": ("5 epochs", "8 epochs")})


# Resuming


def test_a_trial_that_a_killed_driver_left_is_an_interrupted_one(store: StudyStore, open_store: OpenStore) -> None:
    trial = store.ask(SPACE, sampler_name="random", seed=0)
    measured = measurements(0.9, 0.5)
    store.measured(trial.number, measured, STEPS)
    [orphan] = open_store().orphans(replicas=4)
    assert (orphan.number, orphan.parameters, orphan.seed) == (trial.number, trial.parameters, trial.seed)
    assert orphan.outcome is Outcome.INTERRUPTED
    assert repr(orphan.measurements) == repr(measured)
    assert orphan.cost == Cost(examples=6_400, device_seconds=4.0)


def test_the_trials_of_this_driver_and_finished_ones_are_no_orphans(store: StudyStore, open_store: OpenStore) -> None:
    tell(store, Outcome.CAPPED)
    store.ask(SPACE, sampler_name="random", seed=0)
    store.enqueue(BASELINE, SPACE)
    assert store.orphans(replicas=1) == []
    driver = open_store()
    [orphan] = driver.orphans(replicas=1)
    driver.tell(orphan, STEPS)
    assert open_store().orphans(replicas=1) == []


def test_a_baseline_whose_driver_was_killed_before_it_began_is_queued_again(
    store: StudyStore, open_store: OpenStore, storage_url: str
) -> None:
    store.enqueue(BASELINE, SPACE, is_baseline=True)
    # What a driver does first: the queued trial becomes a running one, and nothing else is written yet.
    optuna.load_study(study_name="s", storage=storage_url).ask()
    driver = open_store()
    assert driver.orphans(replicas=1) == []
    assert driver.results() == []
    again = driver.ask(SPACE, sampler_name="tpe", seed=0)
    assert (again.number, again.parameters, again.is_baseline) == (1, BASELINE, True)
    assert [t.state for t in in_optuna(storage_url)] == [TrialState.FAIL, TrialState.RUNNING]


def test_a_proposal_whose_driver_was_killed_before_it_was_written_is_ended(store: StudyStore, storage_url: str) -> None:
    optuna.load_study(study_name="s", storage=storage_url).ask()
    assert store.orphans(replicas=1) == []
    [trial] = in_optuna(storage_url)
    assert trial.state is TrialState.FAIL
    assert store.results() == []


def test_a_result_that_was_written_is_kept_although_its_driver_was_killed_before_it_told_optuna(
    store: StudyStore, open_store: OpenStore, storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    outcomes = (Outcome.REACHED, Outcome.CAPPED)
    told = []
    for outcome in outcomes:
        trial = store.ask(SPACE, sampler_name="random", seed=3)
        told.append(result(trial.number, trial.parameters, outcome, seed=trial.seed))
        with monkeypatch.context() as patched:
            patched.setattr(optuna.Study, "tell", kill)
            with pytest.raises(KeyboardInterrupt):
                store.tell(told[-1], STEPS)
    driver = open_store()
    assert [repr(r) for r in driver.orphans(replicas=1)] == [repr(r) for r in told]
    for left in driver.orphans(replicas=1):
        driver.tell(left, STEPS)
    reached, capped = in_optuna(storage_url)
    assert (reached.state, reached.value) == (TrialState.COMPLETE, 187.5)
    assert (capped.state, capped.constraints) == (TrialState.PRUNED, {"target": pytest.approx(2.0)})


def test_the_wall_clock_is_the_sum_over_sessions(store: StudyStore, open_store: OpenStore) -> None:
    assert store.wall_clock_seconds() == 0.0
    store.session_lasted("a", 10.0)
    store.session_lasted("a", 12.5)
    open_store().session_lasted("b", 30.0)
    assert open_store().wall_clock_seconds() == 42.5


def test_measurements_are_written_at_most_once_a_second(
    store: StudyStore, storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr(storage_module.time, "monotonic", lambda: now)
    trial = store.ask(RATE_ONLY, sampler_name="random", seed=0)
    seen = []
    for i, at in enumerate((0.0, 0.4, 0.9, 1.1, 1.3, 2.2)):
        now = 1_000.0 + at
        store.measured(trial.number, measurements(*[0.9] * (i + 1)), STEPS)
        [kept] = in_optuna(storage_url)
        seen.append(len(kept.user_attrs["measurements"]["step"]))
    assert seen == [1, 1, 1, 4, 4, 6]
    # The end of a trial writes all of them.
    store.tell(result(trial.number, constant(0.1), Outcome.CAPPED, measurements=measurements(*[0.9] * 7)), STEPS)
    [kept] = in_optuna(storage_url)
    assert len(kept.user_attrs["measurements"]["step"]) == 7
