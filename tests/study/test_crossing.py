"""Where a trial's target counts as reached, and how that decides when it ends."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from optuna.storages import BaseStorage as Storage

from scalesearch.core.budget import Budget
from scalesearch.core.results import Direction, Measurement, Outcome
from scalesearch.search.database import open_storage

from .scripted import BASELINE, ERROR, EXAMPLES_TO_TARGET, Clock, ScriptedExecutor, Session, resolved

FIRST = replace(EXAMPLES_TO_TARGET, crossing="first")
STEADY = [0.9, 0.6, 0.5, 0.4, 0.05, 0.04]
LUCKY_ONCE = [0.9, 0.6, 0.05, 0.4, 0.3, 0.2]


class Dictated(ScriptedExecutor):
    """Trials measure the errors that are given by their number; after the last of them they stay there."""

    def __init__(self, clock: Clock, errors: Mapping[int, Sequence[float]]) -> None:
        super().__init__(clock)
        self._errors = errors

    def _measurement(self, trial: Any, step: int) -> Measurement:
        errors = self._errors[trial.request.number]
        error = errors[min(len(trial.measured), len(errors) - 1)]
        return replace(super()._measurement(trial, step), metrics={ERROR: error, "val/loss": 2 * error})


def session(storage: Storage, errors: Mapping[int, Sequence[float]], *, budget: Budget, **fields: Any) -> Session:
    clock = Clock()
    executor = Dictated(clock, errors)
    # Trial 0 is the baseline, which is never capped; those after it have the same parameters.
    run = Session(storage, budget=budget, what=resolved(**fields), clock=clock, executor=executor)
    for number in errors:
        run.store.enqueue(BASELINE, resolved().space, is_baseline=number == 0)
    return run


def baseline_and(errors: Sequence[float]) -> dict[int, Sequence[float]]:
    return {0: STEADY, 1: errors}


def test_a_lucky_evaluation_ends_no_trial_but_is_recorded(storage: Storage, storage_url: str) -> None:
    run = session(storage, {0: LUCKY_ONCE}, budget=Budget(trials=1))
    run.run()
    [result] = run.results
    assert (result.outcome, result.reached, result.test_metrics) == (Outcome.EXHAUSTED, None, {})
    assert result.reason == (
        "it ran its full length; the target was met by val/classification_error once, but by no median of three evaluations"
    )
    assert result.first_reached is not None
    assert result.first_reached.evaluation_step == result.measurements[2].step
    again = Session(open_storage(storage_url), budget=Budget(trials=1))
    assert again.results[0].first_reached == result.first_reached


def test_by_the_papers_rule_it_does(storage: Storage) -> None:
    run = session(storage, {0: LUCKY_ONCE}, budget=Budget(trials=1), objective=FIRST)
    run.run()
    [result] = run.results
    assert (result.outcome, len(result.measurements)) == (Outcome.REACHED, 3)
    assert result.reached == result.first_reached
    assert result.reason == "val/classification_error 0.05 is better than 0.1"


def test_what_is_about_to_be_confirmed_is_not_capped(storage: Storage) -> None:
    """Its evaluation lies beyond the incumbent's cost, where it crossed the target does not."""
    better = [*STEADY[:4], 0.02, 0.02]
    run = session(storage, baseline_and(better), budget=Budget(trials=2))
    run.run()
    first, second = run.results
    assert first.reached is not None
    assert second.reached is not None
    assert [r.outcome for r in (first, second)] == [Outcome.REACHED] * 2
    assert second.measurements[-2].examples > first.reached.examples > second.reached.examples
    assert second.cost.examples == second.measurements[-1].examples, "the confirming evaluation counts"
    assert run.executor.tested == [0, 1]


def test_what_is_not_confirmed_is_capped_then(storage: Storage) -> None:
    run = session(storage, baseline_and([*STEADY[:4], 0.05, 0.2, 0.05]), budget=Budget(trials=2))
    run.run()
    result = run.results[1]
    assert (result.outcome, len(result.measurements)) == (Outcome.CAPPED, 6)
    assert result.reached is None
    assert result.first_reached is not None
    assert "once, but by no median of three" in result.reason


def test_the_budget_waits_for_no_confirmation(storage: Storage) -> None:
    session(storage, {0: STEADY}, budget=Budget(trials=1)).run()
    [whole] = Session(storage, budget=Budget(trials=1)).results
    met = whole.measurements[-2].examples
    short = session(storage, {0: STEADY}, budget=Budget(examples=met), name="short")
    short.run()
    [result] = short.results
    assert (result.outcome, result.cost.examples, result.reached) == (Outcome.INTERRUPTED, met, None)
    assert result.first_reached is not None


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
@pytest.mark.parametrize(
    "errors",
    [[0.9 * 0.9**i for i in range(99)], [0.9, 0.2, *(0.2 + 0.01 * i for i in range(99))], [0.9, 0.6, 0.2]],
    ids=["steady", "overfitting", "plateau"],
)
def test_a_baseline_reaches_the_target_that_it_sets(
    storage: Storage, errors: list[float], direction: Direction
) -> None:
    values = errors if direction == "minimize" else [1.0 - e for e in errors]
    objective = replace(EXAMPLES_TO_TARGET, target=None, direction=direction)
    run = session(storage, {0: values}, budget=Budget(trials=1), objective=objective, target_from_baseline=True)
    run.run()
    [result] = run.results
    assert (result.outcome, result.is_baseline) == (Outcome.REACHED, True)
    assert result.reached is not None
    held = statistics.median(m.metrics[ERROR] for m in result.measurements[-3:])
    assert run.study.objective.target == pytest.approx(held, rel=1e-15)
