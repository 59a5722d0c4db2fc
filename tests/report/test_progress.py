from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from scalesearch.core.axis import Interval
from scalesearch.core.budget import Budget, Spent
from scalesearch.core.results import Outcome
from scalesearch.core.schedule import Constant, Linear, Piecewise
from scalesearch.core.schedule_space import ConstantSpace
from scalesearch.core.space import BatchSizes, SearchSpace
from scalesearch.report.progress import StudyProgress

from .trials import OBJECTIVE, TRAIN_EXAMPLES, found, trial

BUDGET = Budget(wall_clock_seconds=100, examples=1e6)
SPACE = SearchSpace(
    batch_sizes=BatchSizes(low=16, high=8192, multiple_of=None, divisor=1),
    learning_rate=Interval(0.01, 1.0),
    momentum=Interval(0.9, 0.9),
    schedule=ConstantSpace(),
)
SPENT = Spent(examples=610_000, epochs=2, device_seconds=10, wall_clock_seconds=39, trials=3)


def shown(*results: object, terminal: bool = False, budget: Budget = BUDGET, space: SearchSpace = SPACE) -> str:
    """What is written while trials start, measure and end."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=200, color_system=None)
    ended = []
    with StudyProgress(
        console, budget=budget, objective=OBJECTIVE, space=space, train_examples=TRAIN_EXAMPLES
    ) as progress:
        for result in results:
            progress.trial_started(result.number, result.parameters, SPENT)  # type: ignore[attr-defined]
            for measurement in result.measurements:  # type: ignore[attr-defined]
                progress.trial_measured(measurement, SPENT)
            ended.append(result)
            progress.trial_ended(result, found(*ended), SPENT)  # type: ignore[arg-type]
    return text.getvalue()


def test_without_a_terminal_there_is_one_plain_line_for_each_trial() -> None:
    results = [
        trial(0, is_baseline=True),
        replace(trial(1, Outcome.CAPPED, batch=128), why="improvement"),
        trial(2, Outcome.DIVERGED, (0.9,), batch=8192, reason="training loss is nan after 3 steps"),
        trial(3, Outcome.CRASHED, [], reason="[Errno 5] the worker died"),
    ]
    assert shown(*results).splitlines() == [
        " 61% baseline 0   batch 64, lr 0.25, decay at 2.4 ep       REACHED     1.9 s to target, 1,280 examples, 4.5 s",
        " 61%    trial 1   batch 128, lr 0.26, decay at 2.4 ep      CAPPED      best 0.12, 2,560 examples, 4.5 s"
        " · improvement",
        " 61%    trial 2   batch 8192, lr 0.27, decay at 2.4 ep     DIVERGED    best 0.9, 0 examples, 4.5 s: "
        "training loss is nan after 3 steps",
        " 61%    trial 3   batch 64, lr 0.28, decay at 2.4 ep       CRASHED     nothing measured, 0 examples, 4.5 s: "
        "[Errno 5] the worker died",
    ]


def test_a_line_shows_all_that_tells_trials_apart() -> None:
    constant = trial(0, schedule=Constant(learning_rate=0.5))
    assert "batch 64, lr 0.5, no decay " in shown(constant)
    twice = Piecewise(learning_rate=0.5, decay_factor=0.1, boundaries=(55_000, 82_500))
    assert "lr 0.5, decay at 1 and 1.5 ep " in shown(trial(0, schedule=twice))
    falling = Linear(learning_rate=0.5, decay_examples=110_000, end_factor=0.1)
    assert "lr 0.5, linear until 2 ep " in shown(trial(0, schedule=falling))
    accumulated = replace(constant, parameters=replace(constant.parameters, accumulation=4))
    assert "batch 64 in 4 micro-batches, lr 0.5, " in shown(accumulated)
    searched = replace(SPACE, momentum=Interval(0.5, 0.99))
    assert "lr 0.5, momentum 0.9, no decay " in shown(constant, space=searched)


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_has_a_line(outcome: Outcome) -> None:
    assert outcome.value in shown(trial(0, outcome))


def test_on_a_terminal_the_bar_shows_budget_incumbent_and_running_trial() -> None:
    text = shown(trial(0), trial(1, Outcome.CAPPED), terminal=True)
    assert "61 %" in text
    assert "1m 01s left · trial 1 (batch 64, lr 0.26, decay at 2.4 ep): 0.12 → 0.1 · best 1.9 s · 1 reached" in text
    assert "1 reached, 1 capped" in text


def test_the_bar_follows_the_limit_that_runs_out_first() -> None:
    assert "39 %" in shown(trial(0), terminal=True, budget=Budget(wall_clock_seconds=100, examples=1e9))
    assert "100 %" in shown(trial(0), terminal=True, budget=Budget(trials=2))
    assert shown(trial(0), budget=Budget()).startswith("  0% ")


def test_nothing_is_left_of_the_bar() -> None:
    assert shown(terminal=False) == ""
