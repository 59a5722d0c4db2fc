from __future__ import annotations

import numpy as np
import pytest

from scalesearch.core.parameters import Parameters
from scalesearch.core.schedule import Constant, Linear, Piecewise, rate
from scalesearch.core.surrogate.modes import Array, features, runs_of
from tests.core.simulated import constant, decaying

MODES = np.array([1.9, 1.0, 0.3, 0.02, 1e-4])


def recursion(parameters: Parameters, steps: int) -> Array:
    """P ← (1 − e λ)² P + e² c / B, step by step: from (P, c) = (1, 0), then from (0, 1)."""
    decay, noise = np.ones(len(MODES)), np.zeros(len(MODES))
    for step in range(steps):
        batch = parameters.global_batch_size
        e = rate(parameters.schedule, step * batch) / (1.0 - (parameters.momentum or 0.0))
        factor = (1.0 - e * MODES) ** 2
        decay, noise = factor * decay, factor * noise + e**2 / batch
    return np.concatenate([decay, noise])


def at(parameters: Parameters, *steps: float) -> Array:
    [values] = features(MODES, runs_of([parameters]), np.array([steps], dtype=float))
    return np.asarray(values)


@pytest.mark.parametrize(
    "parameters",
    [
        constant(0.5),
        constant(0.05, momentum=0.9),
        decaying(1.0, 40),
        decaying(0.9, 15, 16, 60, factor=0.3),
        decaying(0.1, 30, factor=4.0),  # a rate may also rise
    ],
    ids=["constant", "momentum", "one decay", "three decays", "rise"],
)
def test_features_are_the_recursion_step_by_step(parameters: Parameters) -> None:
    steps = (0, 1, 2, 14, 15, 16, 17, 29, 30, 31, 39, 40, 41, 90)
    for n, row in zip(steps, at(parameters, *steps), strict=True):
        np.testing.assert_allclose(row, recursion(parameters, n), rtol=1e-9, atol=1e-14)


def test_momentum_acts_as_the_effective_rate() -> None:
    np.testing.assert_allclose(at(constant(0.05, momentum=0.9), 3, 50), at(constant(0.5), 3, 50), rtol=1e-9)


def test_a_larger_batch_gathers_less_noise_in_proportion() -> None:
    small, large = at(constant(0.5, global_batch_size=8), 20)[0], at(constant(0.5, global_batch_size=32), 20)[0]
    np.testing.assert_allclose(large[: len(MODES)], small[: len(MODES)])
    np.testing.assert_allclose(4.0 * large[len(MODES) :], small[len(MODES) :])


@pytest.mark.parametrize("end_factor", [0.5, 0.01])
def test_a_linear_schedule_is_close_to_the_recursion(end_factor: float) -> None:
    """Its pieces follow the rate to within 1/24 of its range."""
    schedule = Linear(learning_rate=0.5, decay_examples=240 * 64, end_factor=end_factor)
    parameters = Parameters(global_batch_size=64, schedule=schedule)
    rows = at(parameters, 60, 240, 300)[:, [2, 3, 4, 7, 8, 9]]  # the slower modes are not yet at rest
    expected = np.array([recursion(parameters, n) for n in (60, 240, 300)])[:, [2, 3, 4, 7, 8, 9]]
    seen = expected > 1e-6
    assert seen.sum() >= 14
    np.testing.assert_allclose(rows[seen], expected[seen], rtol=0.12)


def test_the_integral_of_a_linear_schedule_is_kept() -> None:
    """What a slow mode sees, and all that it sees."""
    schedule = Linear(learning_rate=0.5, decay_examples=240 * 64, end_factor=0.1)
    slow = at(Parameters(global_batch_size=64, schedule=schedule), 240)[0, 4]
    assert np.log(slow) == pytest.approx(-2.0 * MODES[4] * 0.5 * 0.55 * 240, rel=1e-3)


def test_nothing_jumps_at_a_boundary() -> None:
    before, on, after = at(decaying(1.0, 40), 40 - 1e-7, 40, 40 + 1e-7)
    np.testing.assert_allclose(before, on, rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(after, on, rtol=1e-5, atol=1e-12)


def test_boundaries_beyond_the_end_change_nothing() -> None:
    np.testing.assert_allclose(at(decaying(0.5, 1000, 2000), 1, 50, 999), at(constant(0.5), 1, 50, 999))


def test_runs_with_fewer_pieces_are_unaffected_by_those_with_more() -> None:
    runs = [constant(0.5), decaying(1.0, 10, 20, 30), decaying(0.2, 15, global_batch_size=8)]
    together = features(MODES, runs_of(runs), np.tile([5.0, 12.0, 33.0], (3, 1)))
    for row, parameters in zip(together, runs, strict=True):
        np.testing.assert_allclose(row, at(parameters, 5, 12, 33))


def test_no_overflow_where_a_mode_grows_or_a_run_is_long() -> None:
    for parameters in (constant(1e3), constant(1.0 / MODES[1]), decaying(1e3, 10), constant(1e-9)):
        values = at(parameters, 1.0, 1e5, 1e12)
        assert np.isfinite(values).all()
        assert (values >= 0.0).all()


def test_no_mode_grows_at_rates_beyond_those_of_the_fit() -> None:
    """Stability is judged by runs: a fastest mode that may not be there must not forbid what no run has tried yet."""
    remaining = at(constant(1.5 * 2.0 / MODES[0]), 10, 100, 1000)[:, : len(MODES)]
    assert (np.diff(remaining, axis=0) <= 0.0).all()
    assert (remaining <= 1.0).all()


def test_a_whole_schedule_in_steps() -> None:
    schedule = Piecewise(learning_rate=0.2, decay_factor=0.1, boundaries=(640, 1280))
    runs = runs_of([Parameters(global_batch_size=32, schedule=schedule, momentum=0.9)])
    np.testing.assert_allclose(runs.starts[0], [0, 20, 40])
    np.testing.assert_allclose(runs.rates[0], [2.0, 0.2, 0.02])
    constant_runs = runs_of([Parameters(global_batch_size=32, schedule=Constant(learning_rate=0.2))])
    np.testing.assert_allclose(constant_runs.rates, [[0.2]])
