"""How trials end, from the executor to what is in an SQLite file afterwards."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any

import optuna
import pytest

from scalesearch.core.axis import Interval
from scalesearch.core.budget import Budget
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Objective, Outcome
from scalesearch.core.schedule import Constant
from scalesearch.core.space import BatchSizes
from scalesearch.definition import ResolvedStudy
from scalesearch.errors import StudyError
from scalesearch.search.database import open_storage
from scalesearch.study import MAX_CRASHES_IN_A_ROW, TrialEnded, TrialMeasured, TrialStarted

from .scripted import (
    BASELINE,
    ERROR,
    EXAMPLES_TO_TARGET,
    METRIC,
    REPLICAS,
    SECONDS_PER_EXAMPLE,
    SECONDS_TO_TARGET,
    STEPS_TO_TARGET,
    TRAIN_EXAMPLES,
    Clock,
    Fate,
    ScriptedExecutor,
    Session,
    resolved,
    states,
)

Storage = optuna.storages.BaseStorage
ONE = Budget(trials=1)


def at_rate(learning_rate: float, **fields: object) -> ResolvedStudy:
    """A study whose baseline, and all else, is of one learning rate and a global batch of 64."""
    what = resolved(**fields)
    space = replace(
        what.space,
        learning_rate=Interval(learning_rate, learning_rate * 1.0001),
        batch_sizes=BatchSizes(low=64, high=64, multiple_of=None, divisor=1),
    )
    parameters = Parameters(global_batch_size=64, schedule=Constant(learning_rate=learning_rate))
    return replace(what, space=space, baseline=parameters)


def examples_needed(learning_rate: float, *, target: float = 0.1) -> float:
    return -1_000 * (1 + abs(math.log10(learning_rate / 0.1))) * math.log(target / 0.9)


# Each outcome


@pytest.mark.parametrize("objective", [EXAMPLES_TO_TARGET, STEPS_TO_TARGET, SECONDS_TO_TARGET])
def test_reached_with_the_interpolated_cost(storage: Storage, objective: Objective) -> None:
    session = Session(storage, budget=ONE, what=at_rate(0.1, objective=objective))
    ended = session.run()
    [result] = session.results
    assert result.outcome is Outcome.REACHED
    expected = examples_needed(0.1)
    assert result.reached is not None
    # The line between two evaluations lies above the convex curve, by less than an interval.
    assert expected <= result.reached.examples <= result.measurements[-1].examples
    unit = {"examples": 1.0, "steps": 1 / 64, "seconds": SECONDS_PER_EXAMPLE}[objective.minimize]
    assert result.reached.cost(objective.minimize) == pytest.approx(unit * result.reached.examples)
    assert result.test_metrics == {"test/classification_error": 0.11}
    assert [m.metrics[ERROR] < 0.1 for m in result.measurements[-3:]] == [False, True, True], "the last one confirms it"
    assert result.reached.examples < result.measurements[-2].examples
    assert result.first_reached == replace(
        result.reached,
        evaluation_step=result.measurements[-2].step,
        evaluation_examples=result.measurements[-2].examples,
    )
    assert ended.findings.recommendation is not None
    assert states(storage) == ["COMPLETE"]


def test_exhausted_at_full_length(storage: Storage) -> None:
    what = at_rate(0.001)  # 3 e-folds of 3,000 examples are 0.1 of what it starts with, but 8,000 is the end
    session = Session(storage, budget=ONE, what=replace(what, max_examples=5_000))
    ended = session.run()
    [result] = session.results
    assert (result.outcome, result.reached) == (Outcome.EXHAUSTED, None)
    assert 5_000 <= result.cost.examples < 5_064
    assert ended.findings.recommendation is None
    assert ended.findings.closest == result
    assert states(storage) == ["PRUNED"]


def test_capped_at_the_first_evaluation_above_the_incumbent(storage: Storage) -> None:
    session = Session(storage, budget=Budget(trials=6))
    session.run()
    capped = [r for r in session.results if r.outcome is Outcome.CAPPED]
    assert capped
    for result in capped:
        before = [r.reached.examples for r in session.results[: result.number] if r.reached is not None]
        assert result.measurements[-1].examples > min(before) >= result.measurements[-2].examples


def test_a_baseline_is_never_capped(storage: Storage) -> None:
    fast, slow = (Parameters(global_batch_size=64, schedule=Constant(learning_rate=rate)) for rate in (0.1, 0.01))
    session = Session(storage, budget=Budget(trials=3), what=resolved(baseline=fast))
    session.store.enqueue(fast, resolved().space)
    session.store.enqueue(slow, resolved().space, is_baseline=True)
    session.store.enqueue(slow, resolved().space)
    session.run()
    assert [r.outcome for r in session.results] == [Outcome.REACHED, Outcome.REACHED, Outcome.CAPPED]


def test_diverged_within_one_evaluation(storage: Storage) -> None:
    session = Session(storage, budget=ONE, what=at_rate(5.0))
    session.run()
    [result] = session.results
    assert result.outcome is Outcome.DIVERGED
    assert "training loss is inf" in result.reason
    assert [m.train_loss for m in result.measurements][-1] == math.inf
    assert all(math.isfinite(m.train_loss) for m in result.measurements[1:-1])
    [trial] = optuna.load_study(study_name="s", storage=storage).get_trials()
    assert trial.state.name == "PRUNED"
    assert trial.value is None or math.isfinite(trial.value)


@pytest.mark.parametrize("at", [0, 1, 3])
def test_out_of_memory_and_crashes_are_charged_with_the_interval_they_were_in(storage: Storage, at: int) -> None:
    fates = {0: Fate(at=at, failure=Outcome.OUT_OF_MEMORY), 1: Fate(at=at, failure=Outcome.CRASHED)}
    session = Session(storage, budget=Budget(trials=3), fates=fates)
    session.run()
    memory, crashed, other = session.results
    assert (memory.outcome, crashed.outcome) == (Outcome.OUT_OF_MEMORY, Outcome.CRASHED)
    assert "it was its fate" in crashed.reason
    for result in (memory, crashed):
        assert len(result.measurements) == at
        last = result.measurements[-1].examples if at else 0
        assert (result.cost.examples > last) == (at > 0)
    assert sum(r.cost.examples for r in session.results) == session.executor.examples
    assert other.outcome is not Outcome.CRASHED
    assert states(storage)[:2] == ["PRUNED", "FAIL"]


def test_a_target_that_was_reached_stays_reached_if_the_test_then_fails(storage: Storage) -> None:
    session = Session(storage, budget=ONE, what=at_rate(0.1))

    def fail(number: int) -> None:
        trial = session.executor._trial
        session.executor.fates = {number: Fate(at=len(trial.measured))}
        trial.stopped = False

    meeting = 0
    for event in session.events():
        if isinstance(event, TrialMeasured) and event.measurement.metrics[ERROR] < 0.1:
            meeting += 1
            if meeting == 2:  # the one that confirms it
                fail(event.trial.number)
    [result] = session.results
    assert result.outcome is Outcome.REACHED
    assert result.reached is not None
    assert result.cost.examples == result.measurements[-1].examples, "it was not in an interval any more"


# Events, tracker


def test_events_and_tracker_tell_the_same_story(storage: Storage) -> None:
    session = Session(storage, budget=Budget(trials=2))
    kinds = {TrialStarted: "started", TrialMeasured: "measured", TrialEnded: "ended"}
    seen = []
    for event in session.events():
        if type(event) in kinds:
            number = event.result.number if isinstance(event, TrialEnded) else event.trial.number
            seen.append((kinds[type(event)], number))
    assert seen == session.tracker.told
    assert [r.number for r in session.tracker.results] == [0, 1]


def test_the_account_is_the_sum_of_what_was_used(storage: Storage) -> None:
    session = Session(storage, budget=Budget(trials=5), fates={2: Fate(at=2)})
    ended = session.run()
    assert ended.spent.examples == session.executor.examples
    assert ended.spent.epochs == session.executor.examples / TRAIN_EXAMPLES
    assert ended.spent.device_seconds == pytest.approx(REPLICAS * session.executor.seconds)
    assert ended.spent.wall_clock_seconds == pytest.approx(session.clock.now - 1_000.0)
    assert ended.spent.trials == 5


# Objectives


def test_the_baseline_sets_the_target(storage: Storage, storage_url: str) -> None:
    what = at_rate(0.1, objective=replace(EXAMPLES_TO_TARGET, target=None), target_from_baseline=True)
    session = Session(storage, budget=Budget(trials=3), what=what)
    session.run()
    baseline = session.results[0]
    held = statistics.median(m.metrics[ERROR] for m in baseline.measurements[-3:])
    assert baseline.is_baseline
    assert baseline.outcome is Outcome.REACHED
    assert baseline.reached is not None
    assert baseline.reached.evaluation_examples == baseline.measurements[-1].examples
    assert session.study.objective.target == math.nextafter(held, 1.0)
    assert len(baseline.measurements) > len(session.results[1].measurements) - 1

    again = Session(open_storage(storage_url), budget=Budget(trials=4), what=what)
    assert again.study.objective.target == session.study.objective.target
    again.run()
    assert [r.is_baseline for r in again.results] == [True, False, False, False]


@pytest.mark.parametrize("failure", [Outcome.DIVERGED, Outcome.CRASHED, Outcome.OUT_OF_MEMORY])
def test_a_baseline_that_fails_sets_no_target_and_is_run_again(storage: Storage, failure: Outcome) -> None:
    what = at_rate(0.1, objective=replace(EXAMPLES_TO_TARGET, target=None), target_from_baseline=True)
    session = Session(storage, budget=Budget(trials=9), what=what, fates={0: Fate(at=2, failure=failure)})
    with pytest.raises(StudyError, match=rf"the baseline did not run to its end \({failure}\): it was its fate"):
        session.run()
    assert "RUNNING" not in states(storage)
    again = Session(storage, budget=Budget(trials=2), what=what)
    again.run()
    assert [(r.is_baseline, r.outcome) for r in again.results] == [(True, failure), (True, Outcome.REACHED)]
    assert again.study.objective.target is not None


def test_the_metric_at_full_length_can_be_the_objective(storage: Storage) -> None:
    session = Session(storage, budget=Budget(trials=4), what=resolved(METRIC))
    ended = session.run()
    finished = [r for r in session.results if r.outcome is Outcome.EXHAUSTED]
    assert finished
    assert {r.outcome for r in session.results} <= {Outcome.EXHAUSTED, Outcome.DIVERGED}
    best = ended.findings.recommendation
    assert best is not None
    assert best.cost == min(r.measurements[-1].metrics[ERROR] for r in finished)
    assert optuna.load_study(study_name="s", storage=storage).best_value == best.cost


def test_a_target_that_is_met_before_training_is_refused(storage: Storage) -> None:
    what = resolved(replace(EXAMPLES_TO_TARGET, target=0.95))
    session = Session(storage, budget=Budget(trials=3), what=what)
    with pytest.raises(StudyError, match=r"`objective.target = 0.95` is met before any training: .* is 0.9 at init"):
        session.run()
    assert states(storage) == ["FAIL"]
    [result] = session.results
    assert (result.outcome, result.cost.examples) == (Outcome.INTERRUPTED, 0)
    assert session.executor.is_idle


# What ends a study


def test_many_crashes_in_a_row_end_the_study(storage: Storage) -> None:
    fates = {n: Fate(at=1) for n in (1, 2, 4, 5, 6, 7, 8, 9)}
    session = Session(storage, budget=Budget(trials=50), fates=fates)
    ended = session.run()
    assert MAX_CRASHES_IN_A_ROW == 5
    assert [r.outcome is Outcome.CRASHED for r in session.results] == [False, True, True, False, *[True] * 5]
    assert "5 trials crashed one after another: it was its fate: CRASHED" in ended.stopped_by
    assert not ended.by_user


def test_out_of_memory_never_ends_a_study(storage: Storage) -> None:
    fates = {n: Fate(at=1, failure=Outcome.OUT_OF_MEMORY) for n in range(7)}
    session = Session(storage, budget=Budget(trials=8), fates=fates)
    ended = session.run()
    assert len(session.results) == 8
    assert ended.stopped_by == "the budget is spent (number of trials)"


@pytest.mark.parametrize("sampler_name", ["scaling", "random", "tpe", "qmc", "cmaes"])
def test_what_does_not_fit_is_not_tried_again_nor_what_is_larger(storage: Storage, sampler_name: str) -> None:
    class Small(ScriptedExecutor):
        def next_event(self, *, timeout_seconds: float) -> Any:
            trial = self._trial
            assert trial is not None
            if trial.measured and not trial.waiting and trial.request.parameters.global_batch_size > 32:
                return self._end(trial, failure=Outcome.OUT_OF_MEMORY, reason="it does not fit")
            return super().next_event(timeout_seconds=timeout_seconds)

    session = Session(storage, budget=Budget(trials=15), sampler_name=sampler_name, executor=Small(Clock()))
    session.run()
    sizes = [r.parameters.global_batch_size for r in session.results if r.outcome is Outcome.OUT_OF_MEMORY]
    assert sizes, "the space reaches beyond"
    assert sizes == sorted(set(sizes), reverse=True)
    assert len(session.results) == 15


def test_the_baseline_is_exactly_what_was_given(storage: Storage) -> None:
    session = Session(storage, budget=Budget(trials=2))
    session.run()
    assert [r.is_baseline for r in session.results] == [True, False]
    assert session.results[0].parameters == BASELINE
    assert session.executor.requests[0].parameters == BASELINE


def test_without_a_baseline_the_sampler_begins(storage: Storage) -> None:
    session = Session(storage, budget=Budget(trials=2), what=resolved(baseline=None))
    session.run()
    assert [r.is_baseline for r in session.results] == [False, False]
