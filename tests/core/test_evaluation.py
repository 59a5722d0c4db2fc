from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalesearch.core.evaluation import COARSE_RATIO, EvaluationPlan
from scalesearch.core.results import Direction
from scalesearch.core.schedule import first_step_from

from .trials import OBJECTIVE, SMOOTHED, measurement

FAR, NEAR = 0.9, 0.11  # from the target 0.1
TRAIN_EXAMPLES = 10_000

PLAN = EvaluationPlan(
    objective=OBJECTIVE,
    boundaries=(),
    first_examples=1000,
    max_interval_examples=TRAIN_EXAMPLES,
    end_examples=300_000,
)


def steps(plan: EvaluationPlan, batch: int, value: Callable[[int], float] = lambda examples: FAR) -> list[int]:
    """All evaluation points of a run whose metric is `value(examples)`."""
    measured = [measurement(0, value(0), batch=batch)]
    while (step := plan.next_step(measured, global_batch_size=batch)) is not None:
        assert len(measured) < 5000
        measured.append(measurement(step, value(step * batch), batch=batch))
    return [m.step for m in measured]


plans = st.builds(
    EvaluationPlan,
    objective=st.sampled_from([OBJECTIVE, replace(OBJECTIVE, target=None)]),
    boundaries=st.lists(st.integers(1, 120_000), max_size=3, unique=True).map(lambda b: tuple(sorted(b))),
    first_examples=st.integers(1, 20_000),
    max_interval_examples=st.just(TRAIN_EXAMPLES),
    end_examples=st.integers(1, 100_000),
    ratio=st.floats(1.01, 2.0),
)
batches = st.integers(1, 40_000)  # larger than the data set, too
values = st.sampled_from([FAR, NEAR, float("nan")])


@given(plans, batches, values)
def test_laws_of_every_plan(plan: EvaluationPlan, batch: int, value: float) -> None:
    evaluated = steps(plan, batch, lambda examples: value)
    last = first_step_from(plan.end_examples, global_batch_size=batch)
    assert evaluated[0] == 0
    assert evaluated[-1] == last
    assert all(a < b for a, b in pairwise(evaluated))
    for boundary in plan.boundaries:
        assert min(first_step_from(boundary, global_batch_size=batch), last) in evaluated
    first = first_step_from(plan.first_examples, global_batch_size=batch)
    assert min(first, last) in evaluated
    assert all(s >= first for s in evaluated[1:] if s * batch not in near_boundaries(plan, batch) and s != last)
    for a, b in pairwise(s for s in evaluated if s >= first):
        assert (b - a) * batch <= max(plan.max_interval_examples, batch)
        fine = plan.objective.target is not None and value == NEAR
        ratio = plan.ratio if fine else max(plan.ratio, COARSE_RATIO)
        assert b == a + 1 or b <= a * ratio * (1 + 1e-12)


def near_boundaries(plan: EvaluationPlan, batch: int) -> set[int]:
    return {first_step_from(b, global_batch_size=batch) * batch for b in plan.boundaries}


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_near_the_target_a_crossing_is_known_to_five_percent(batch: int) -> None:
    evaluated = steps(PLAN, batch, lambda examples: NEAR)
    for a, b in pairwise(s for s in evaluated if s * batch >= 1000):
        assert b == a + 1 or b / a <= 1.05
    assert len(evaluated) < 150


def test_far_from_the_target_evaluations_are_few() -> None:
    assert len(steps(PLAN, 64)) < len(steps(PLAN, 64, lambda examples: NEAR)) / 1.5


def test_near_means_within_a_quarter_of_the_target() -> None:
    measured = [measurement(0, FAR, batch=1), measurement(4000, 0.126, batch=1)]
    assert PLAN.next_step(measured, global_batch_size=1) == 5000
    for near in (0.124, 0.076):
        measured[-1] = measurement(4000, near, batch=1)
        assert PLAN.next_step(measured, global_batch_size=1) == 4200


@pytest.mark.parametrize(("direction", "target", "far_beyond"), [("minimize", 0.1, 0.01), ("maximize", 0.1, 0.9)])
def test_the_evaluation_that_confirms_a_met_target_is_near(
    direction: Direction, target: float, far_beyond: float
) -> None:
    plan = replace(PLAN, objective=replace(SMOOTHED, direction=direction, target=target))
    measured = [measurement(0, FAR, batch=1), measurement(4000, far_beyond, batch=1)]
    assert plan.next_step(measured, global_batch_size=1) == 4200


def test_after_a_boundary_evaluations_are_fine_for_a_while() -> None:
    plan = replace(PLAN, boundaries=(20_000,))
    evaluated = steps(plan, 10)
    fine = [(a, b) for a, b in pairwise(evaluated) if 2000 <= a < 2400]
    assert fine[0][0] == 2000
    assert all(b / a <= 1.05 for a, b in fine)
    assert evaluated[evaluated.index(fine[-1][1]) + 1] - fine[-1][1] > 1.2 * 0.05 * 2400


def test_a_boundary_is_evaluated_with_the_last_step_before_it() -> None:
    evaluated = steps(replace(PLAN, boundaries=(20_001,)), 10)
    assert 2001 in evaluated  # the step that starts at 20,010 is the first with the new rate


def test_a_coarser_ratio_than_the_coarse_one_holds_everywhere() -> None:
    measured = [measurement(0, FAR, batch=1), measurement(4000, FAR, batch=1)]
    assert replace(PLAN, ratio=2.0).next_step(measured, global_batch_size=1) == 8000


def test_the_first_evaluation() -> None:
    start = [measurement(0, FAR)]
    assert PLAN.next_step(start, global_batch_size=64) == 16  # 1,024 examples
    assert replace(PLAN, boundaries=(130,)).next_step(start, global_batch_size=64) == 3
    assert replace(PLAN, end_examples=130).next_step(start, global_batch_size=64) == 3


def test_a_batch_larger_than_the_data_set_is_evaluated_at_every_step() -> None:
    assert steps(PLAN, 3 * TRAIN_EXAMPLES) == list(range(11))


def test_the_plan_depends_on_what_was_measured_alone() -> None:
    """A resumed run evaluates where the uninterrupted one does."""
    measured = [measurement(s, NEAR) for s in (0, 16, 20)]
    step = PLAN.next_step(measured, global_batch_size=64)
    assert step == PLAN.next_step(list(measured), global_batch_size=64) == 21
