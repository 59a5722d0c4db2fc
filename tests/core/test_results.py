from __future__ import annotations

import math
from dataclasses import replace

import pytest

from scalesearch.core.results import OUTCOME_MEANING, Measurement, Objective, Outcome, Reached, crossing

from .trials import METRIC, OBJECTIVE, measurement

ACCURACY = replace(OBJECTIVE, direction="maximize", target=0.9)


def measured(*values: float) -> list[Measurement]:
    return [measurement(10 * i, v) for i, v in enumerate(values)]


def test_crossing_is_interpolated_in_all_units_and_keeps_the_evaluation() -> None:
    reached = crossing(measured(0.9, 0.3, 0.05, 0.01), OBJECTIVE)
    assert reached is not None
    assert reached.steps == pytest.approx(18)  # 0.3 → 0.05 passes 0.1 at four fifths of the way
    assert reached.examples == pytest.approx(18 * 64)
    assert reached.seconds == pytest.approx(9.0)
    assert (reached.evaluation_step, reached.evaluation_examples) == (20, 20 * 64)


def test_the_target_itself_is_not_enough() -> None:
    assert crossing(measured(0.9, 0.1, 0.1), OBJECTIVE) is None
    reached = crossing(measured(0.9, 0.1, 0.0999), OBJECTIVE)
    assert reached is not None
    assert reached.steps == 10
    assert reached.evaluation_step == 20


def test_the_first_crossing_counts_even_if_it_does_not_last() -> None:
    reached = crossing(measured(0.5, 0.0, 0.5, 0.0), OBJECTIVE)
    assert reached is not None
    assert reached.steps == pytest.approx(8)


@pytest.mark.parametrize(
    ("objective", "before", "value"),
    [(OBJECTIVE, math.nan, 0.05), (OBJECTIVE, math.inf, 0.05), (ACCURACY, math.nan, 0.95), (ACCURACY, -math.inf, 0.95)],
)
def test_nothing_is_interpolated_from_what_is_not_finite(objective: Objective, before: float, value: float) -> None:
    reached = crossing(measured(0.5, before, value), objective)
    assert reached is not None
    assert (reached.steps, reached.seconds) == (20, 10.0)


def test_nan_never_meets_a_target() -> None:
    assert crossing(measured(math.nan, math.nan), OBJECTIVE) is None
    assert crossing(measured(math.nan, math.nan), ACCURACY) is None


def test_met_at_the_first_measurement() -> None:
    reached = crossing(measured(0.05, 0.01), OBJECTIVE)
    assert reached is not None
    assert (reached.steps, reached.examples, reached.seconds, reached.evaluation_step) == (0, 0, 0, 0)


def test_a_target_that_initialisation_equals_costs_at_least_a_step() -> None:
    """Classification error 0.9 of ten classes: a cost of nothing would break every ratio and logarithm after it."""
    reached = crossing(measured(0.9, 0.5), replace(OBJECTIVE, target=0.9))
    assert reached is not None
    assert reached.steps == pytest.approx(1)
    assert reached.examples == pytest.approx(64)
    assert reached.seconds == pytest.approx(0.5)


def test_more_is_better() -> None:
    reached = crossing(measured(0.1, 0.8, 0.9, 1.0), ACCURACY)
    assert reached is not None
    assert reached.steps == pytest.approx(20)
    assert reached.evaluation_step == 30
    assert crossing(measured(0.1, 0.05), ACCURACY) is None


def test_without_a_target_nothing_is_crossed() -> None:
    assert crossing(measured(0.9, 0.0), replace(OBJECTIVE, target=None)) is None
    assert crossing([], OBJECTIVE) is None


@pytest.mark.parametrize(("goal", "cost"), [("steps", 7.5), ("examples", 480.0), ("seconds", 3.0)])
def test_cost_is_in_the_unit_of_the_goal(goal: str, cost: float) -> None:
    reached = Reached(steps=7.5, examples=480.0, seconds=3.0, evaluation_step=8, evaluation_examples=512)
    assert reached.cost(goal) == cost  # type: ignore[arg-type]


def test_a_metric_has_no_cost_to_target() -> None:
    reached = Reached(steps=7.5, examples=480.0, seconds=3.0, evaluation_step=8, evaluation_examples=512)
    with pytest.raises(ValueError, match="no cost to target"):
        reached.cost("metric")


@pytest.mark.parametrize(("direction", "better", "worse"), [("minimize", 0.1, 0.2), ("maximize", 0.2, 0.1)])
def test_better_is_strict_and_never_nan(direction: str, better: float, worse: float) -> None:
    objective = Objective(metric=METRIC, direction=direction, target=None, minimize="metric")  # type: ignore[arg-type]
    assert objective.better(better, worse)
    assert not objective.better(worse, better)
    assert not objective.better(better, better)
    assert not objective.better(math.nan, worse)


def test_every_outcome_has_a_meaning() -> None:
    assert OUTCOME_MEANING.keys() == set(Outcome)
