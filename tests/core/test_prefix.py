"""What runs have in common, against the learning rates of all their steps."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalesearch.core.evaluation import EvaluationPlan
from scalesearch.core.parameters import Parameters
from scalesearch.core.prefix import common_measurements, seed_to_share, shared_steps, steps_alike, trained_before
from scalesearch.core.results import Measurement, Outcome, TrialResult
from scalesearch.core.schedule import Constant, Linear, Piecewise, Schedule, rates

from .trials import SMOOTHED, measurement, trial

STEPS = 64
BATCH = 32
MAX_EXAMPLES = STEPS * BATCH

boundaries = st.lists(st.integers(1, 2 * MAX_EXAMPLES), max_size=3, unique=True).map(lambda b: tuple(sorted(b)))
flat = st.one_of(
    st.builds(lambda r: Constant(learning_rate=r), st.sampled_from([0.1, 0.2])),
    st.builds(
        lambda r, f, b: Piecewise(learning_rate=r, decay_factor=f, boundaries=b),
        st.sampled_from([0.1, 0.2]),
        st.sampled_from([0.1, 0.5, 1.0]),
        boundaries,
    ),
)
linear = st.builds(
    lambda e, f: Linear(learning_rate=0.1, decay_examples=e, end_factor=f),
    st.integers(1, 2 * MAX_EXAMPLES),
    st.sampled_from([0.0, 0.5, 1.0]),
)
batches = st.sampled_from([1, 7, 32, 500])
few = settings(max_examples=40)


def first_different_step(one: Schedule, other: Schedule, batch: int, *, steps: int = 4_100) -> float:
    starts = np.arange(steps) * batch
    differ = np.flatnonzero(rates(one, starts) != rates(other, starts))
    return int(differ[0]) if len(differ) else math.inf


@given(flat, flat, batches)
def test_steps_are_alike_up_to_the_first_whose_rate_differs(one: Schedule, other: Schedule, batch: int) -> None:
    assert steps_alike(one, other, global_batch_size=batch) == first_different_step(one, other, batch)


@given(st.one_of(flat, linear), st.one_of(flat, linear), batches)
def test_never_more_steps_are_said_to_be_alike_than_are(one: Schedule, other: Schedule, batch: int) -> None:
    alike = steps_alike(one, other, global_batch_size=batch)
    assert alike == steps_alike(other, one, global_batch_size=batch)
    assert alike <= first_different_step(one, other, batch)
    assert steps_alike(one, one, global_batch_size=batch) == math.inf


def test_boundaries_within_one_step_are_the_same() -> None:
    one, other, later = (piecewise(b) for b in (65, 96, 97))
    assert shared_steps(one, other) == math.inf
    assert shared_steps(one, later) == 3
    assert shared_steps(one, replace(one, schedule=Constant(learning_rate=0.1))) == 3


@pytest.mark.parametrize("change", [{"global_batch_size": 64}, {"momentum": 0.8}, {"accumulation": 2}])
def test_runs_of_other_settings_share_nothing(change: dict[str, float]) -> None:
    assert shared_steps(piecewise(500), replace(piecewise(500), **change)) == 0


# What was measured


def piecewise(*at: int, learning_rate: float = 0.1) -> Parameters:
    schedule = Piecewise(learning_rate=learning_rate, decay_factor=0.1, boundaries=at)
    return Parameters(global_batch_size=BATCH, schedule=schedule, momentum=0.9)


def plan_of(parameters: Parameters) -> EvaluationPlan:
    return EvaluationPlan(
        objective=SMOOTHED,
        boundaries=parameters.schedule.boundaries,
        first_examples=100,
        max_interval_examples=MAX_EXAMPLES,
        end_examples=MAX_EXAMPLES,
    )


def run(parameters: Parameters) -> tuple[Measurement, ...]:
    """All measurements of a run whose metric follows from the rates of its steps alone."""
    measured = [measurement(0, 1.0, batch=BATCH)]
    while (step := plan_of(parameters).next_step(measured, global_batch_size=BATCH)) is not None:
        progress = rates(parameters.schedule, np.arange(step) * BATCH).sum()
        measured.append(measurement(step, float(np.exp(-0.5 * progress)), batch=BATCH))
    return tuple(measured)


two = st.lists(st.integers(1, MAX_EXAMPLES), min_size=2, max_size=2, unique=True).map(lambda b: piecewise(*sorted(b)))


@few
@given(two, two)
def test_common_measurements_are_those_that_both_make(one: Parameters, other: Parameters) -> None:
    mine, others = run(one), run(other)
    count = common_measurements(mine, of=one, by=other, plan=plan_of(other))
    assert mine[:count] == others[:count]
    assert count >= 1
    assert all(m.step <= shared_steps(one, other) for m in mine[:count])
    if count < min(len(mine), len(others)):
        assert mine[count].step != others[count].step or mine[count].step > shared_steps(one, other)


@few
@given(st.integers(4 * BATCH, MAX_EXAMPLES), st.integers(1, MAX_EXAMPLES), st.booleans())
def test_little_is_lost_by_measuring_at_the_same_steps_only(first: int, more: int, swap: bool) -> None:
    one, other = piecewise(first), piecewise(first + more)
    one, other = (other, one) if swap else (one, other)
    shared = min(shared_steps(one, other), STEPS)
    count = common_measurements(run(one), of=one, by=other, plan=plan_of(other))
    assert run(one)[count - 1].step >= shared / 1.25 - 1


# Seeds


def test_a_new_point_has_the_seed_of_the_first_run_that_begins_alike() -> None:
    earlier = [(piecewise(900, learning_rate=0.2), 1), (piecewise(900), 2), (piecewise(900), 3), (piecewise(1500), 2)]
    assert seed_to_share(piecewise(600), earlier, max_examples=MAX_EXAMPLES) == 2
    assert seed_to_share(piecewise(600, learning_rate=0.3), earlier, max_examples=MAX_EXAMPLES) is None


@pytest.mark.parametrize("again", [piecewise(900), piecewise(897), piecewise(900, MAX_EXAMPLES + 5)])
def test_a_run_that_is_all_the_same_is_a_repeat_and_has_a_seed_of_its_own(again: Parameters) -> None:
    earlier = [(piecewise(600), 1), (piecewise(900), 1)]
    assert seed_to_share(again, earlier, max_examples=MAX_EXAMPLES) is None


def result(number: int, parameters: Parameters, seed: int, *, outcome: Outcome = Outcome.CAPPED) -> TrialResult:
    return replace(
        trial(number, [1.0] * 5, outcome, batch=BATCH), parameters=parameters, seed=seed, measurements=run(parameters)
    )


def test_what_was_trained_before_is_counted_by_seeds() -> None:
    results = [
        result(0, piecewise(960), 5, outcome=Outcome.INTERRUPTED),
        result(1, piecewise(960), 5),
        result(2, piecewise(960), 6),
        result(3, piecewise(640), 5),
        result(4, piecewise(960, 1600), 5),
    ]
    before = [trained_before(r, results[: r.number]) for r in results]
    assert before[:3] == [0, 0, 0], "an interrupted trial does not count, nor does another seed"
    assert before[3] == max(m.step for m in run(piecewise(960)) if m.step <= 20)
    assert before[4] == max(m.step for m in run(piecewise(960)) if m.step <= 50)


def test_all_that_is_said_to_be_trained_before_was_measured_alike() -> None:
    results = [result(n, piecewise(b), 1) for n, b in enumerate((1800, 1200, 700))]
    for later in results[1:]:
        earlier = {m.step: m for r in results[: later.number] for m in r.measurements}
        step = trained_before(later, results[: later.number])
        assert step > 0
        assert all(earlier[m.step] == m for m in later.measurements if m.step <= step)
