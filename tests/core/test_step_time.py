from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from scalesearch.core.results import Outcome, TrialResult
from scalesearch.core.step_time import fit_step_times
from tests.core.trials import trial

SIZES = (8, 32, 128, 1024)


def timed(batch: int, step_seconds: float, *, steps: int = 20) -> TrialResult:
    """A trial of `steps` steps that took `step_seconds` each."""
    result = trial(0, [1.0, 0.9, 0.8], Outcome.CAPPED, batch=batch)
    last = replace(result.measurements[-1], step=steps, train_seconds=steps * step_seconds)
    return replace(result, measurements=(*result.measurements[:-1], last))


@pytest.mark.parametrize(("fixed", "per_example"), [(0.01, 2e-4), (3.0, 1e-3), (0.0, 1e-3), (0.5, 0.0)])
def test_affine_times_are_recovered(fixed: float, per_example: float) -> None:
    times = fit_step_times([timed(b, fixed + per_example * b) for b in SIZES])
    for size in (8, 64, 4096):
        assert times(size) == pytest.approx(fixed + per_example * size, rel=1e-6)


def test_noise_averages_out() -> None:
    """Relative errors: small batches count as much as large ones."""
    random = np.random.default_rng(0)

    def true(batch: int) -> float:
        return 0.01 + 2e-4 * batch

    times = fit_step_times([timed(b, true(b) * float(np.exp(0.1 * random.normal()))) for b in SIZES * 8])
    for size in SIZES:
        assert times(size) == pytest.approx(true(size), rel=0.1)


def test_one_slow_trial_does_not_matter() -> None:
    trials = [timed(b, 0.01 + 2e-4 * b) for b in SIZES * 3]
    times = fit_step_times([*trials[:-1], timed(1024, 40.0)])
    for size in SIZES:
        assert times(size) == pytest.approx(0.01 + 2e-4 * size, rel=1e-6)


def test_neither_part_is_negative() -> None:
    """Larger batches that happened to be faster, and times that rise more than in proportion."""
    for shape in (lambda b: 1.0 / b, lambda b: b**1.5):
        assert _least(shape) >= 0.0


def _least(shape: Callable[[int], float]) -> float:
    times = fit_step_times([timed(b, shape(b)) for b in SIZES])
    assert times(64) > 0.0
    return min(times.fixed, times.per_example)


def test_with_one_batch_size_half_of_its_time_is_fixed() -> None:
    times = fit_step_times([timed(64, 0.2), timed(64, 0.2), timed(64, 0.2)])
    assert times(64) == pytest.approx(0.2)
    assert times(128) == pytest.approx(0.3)
    assert times(1) == pytest.approx(0.1, rel=0.1)


def test_without_measured_trials_every_step_costs_the_same() -> None:
    nothing = replace(trial(0, [], Outcome.OUT_OF_MEMORY), measurements=())
    at_start = trial(1, [1.0], Outcome.CRASHED)
    for trials in ([], [nothing], [nothing, at_start], [timed(64, 9.0, steps=1)]):
        times = fit_step_times(trials)
        assert times(1) == times(4096) > 0.0


def test_trials_that_measured_nothing_are_passed_over() -> None:
    nothing = replace(trial(0, [], Outcome.OUT_OF_MEMORY, batch=8192), measurements=())
    measured = [timed(b, 0.01 + 2e-4 * b) for b in SIZES]
    assert fit_step_times([nothing, *measured]) == fit_step_times(measured)
