from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalesearch.core.schedule import Constant, Linear, Piecewise, Schedule, first_step_from, rate, rates

PIECEWISE = Piecewise(learning_rate=0.4, decay_factor=0.1, boundaries=(1000, 1001, 6400))
LINEAR = Linear(learning_rate=0.4, decay_examples=1000, end_factor=0.01)


@pytest.mark.parametrize(
    ("examples", "expected"),
    [(0, 0.4), (999, 0.4), (1000, 0.04), (1001, 0.004), (6399, 0.004), (6400, 0.0004), (10**9, 0.0004)],
)
def test_piecewise_multiplies_at_each_boundary(examples: int, expected: float) -> None:
    assert rate(PIECEWISE, examples) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("examples", "expected"), [(0, 0.4), (250, 0.301), (999, 0.004396), (1000, 0.004), (1001, 0.004), (10**9, 0.004)]
)
def test_linear_falls_to_its_end_and_stays(examples: int, expected: float) -> None:
    assert rate(LINEAR, examples) == pytest.approx(expected, rel=1e-12)


def test_constant_is_constant() -> None:
    assert {rate(Constant(learning_rate=0.3), e) for e in (0, 1, 10**12)} == {0.3}


learning_rates = st.floats(1e-6, 1e3)
boundaries = st.lists(st.integers(1, 10**9), min_size=1, max_size=3, unique=True).map(lambda b: tuple(sorted(b)))


@given(learning_rates, st.floats(1e-3, 1.0), boundaries, st.integers(-2, 2))
def test_piecewise_is_the_factor_to_the_number_of_boundaries_passed(
    learning_rate: float, factor: float, at: tuple[int, ...], offset: int
) -> None:
    schedule = Piecewise(learning_rate=learning_rate, decay_factor=factor, boundaries=at)
    for boundary in at:
        examples = max(boundary + offset, 0)
        passed = sum(b <= examples for b in at)
        assert rate(schedule, examples) == pytest.approx(learning_rate * factor**passed, rel=1e-12)


@given(learning_rates, st.floats(0.0, 1.0), st.integers(1, 10**9), st.integers(0, 2 * 10**9))
def test_linear_is_the_papers_formula(learning_rate: float, alpha: float, decay_examples: int, examples: int) -> None:
    """Shallue et al. 2018: η(t) = η0 − (1 − α) η0 t/T for t ≤ T, then α η0."""
    schedule = Linear(learning_rate=learning_rate, decay_examples=decay_examples, end_factor=alpha)
    progress = min(examples / decay_examples, 1.0)
    expected = learning_rate - (1 - alpha) * learning_rate * progress
    assert rate(schedule, examples) == pytest.approx(expected, abs=1e-9 * learning_rate)


@pytest.mark.parametrize("schedule", [Constant(learning_rate=0.4), PIECEWISE, LINEAR])
def test_rates_are_rate_at_each_point(schedule: Schedule) -> None:
    at = np.array([[0, 1, 999], [1000, 1001, 7000]])
    result = rates(schedule, at)
    assert result.shape == at.shape
    assert result.dtype == np.float64
    assert result.tolist() == [[rate(schedule, int(e)) for e in row] for row in at]


@given(st.integers(0, 10**12), st.integers(1, 10**6))
def test_first_step_from_is_the_first_that_starts_there_or_later(examples: int, size: int) -> None:
    step = first_step_from(examples, global_batch_size=size)
    assert step * size >= examples
    assert step == 0 or (step - 1) * size < examples


def test_a_boundary_inside_a_batch_takes_effect_with_the_next_step() -> None:
    schedule = Piecewise(learning_rate=1.0, decay_factor=0.5, boundaries=(100,))
    assert first_step_from(100, global_batch_size=64) == 2
    assert [rate(schedule, step * 64) for step in range(4)] == [1.0, 1.0, 0.5, 0.5]


@pytest.mark.parametrize("bad", [(0,), (-1,), (5, 5), (5, 4), (1, 3, 2)])
def test_boundaries_must_be_positive_and_increasing(bad: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must hold"):
        Piecewise(learning_rate=1.0, decay_factor=0.1, boundaries=bad)


@pytest.mark.parametrize("bad", [0, -10])
def test_linear_decay_needs_room(bad: int) -> None:
    with pytest.raises(ValueError, match="decay_examples > 0"):
        Linear(learning_rate=1.0, decay_examples=bad, end_factor=0.1)


def test_boundaries_of_each_kind() -> None:
    assert Constant(learning_rate=1.0).boundaries == ()
    assert PIECEWISE.boundaries == (1000, 1001, 6400)
    assert LINEAR.boundaries == (1000,)
