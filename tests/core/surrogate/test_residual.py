from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Outcome, Reached, TrialResult
from scalesearch.core.surrogate.cost import Costs, Noise
from scalesearch.core.surrogate.residual import Residual, fit_residual
from tests.core.simulated import constant, decaying
from tests.core.trials import trial

PREDICTED = 100.0  # steps, of everything
HERE = decaying(0.3, 100)
NEAR = decaying(0.32, 104)
FAR = decaying(3e-3, 4000, global_batch_size=2048)
FAR_ELSEWHERE = decaying(3e2, 2, global_batch_size=1)


def hit(parameters: Parameters, steps: float) -> TrialResult:
    reached = Reached(steps=steps, examples=64 * steps, seconds=steps, evaluation_step=200, evaluation_examples=12_800)
    return replace(trial(0, [2.0, 0.5, 0.05], Outcome.REACHED), parameters=parameters, reached=reached)


def capped(parameters: Parameters, steps: int, outcome: Outcome = Outcome.CAPPED) -> TrialResult:
    return replace(trial(0, [0.5] * (1 + steps // 10), outcome), parameters=parameters)


def fitted(
    *results: TrialResult, miss: float = 0.0, log_cost: float = 0.03, seeds: Sequence[int] = range(99)
) -> Residual:
    def predicted(parameters: Sequence[Parameters], *, cap: float) -> Costs:
        shape = (3, len(parameters))
        return Costs(np.full(shape, PREDICTED), np.full(shape, miss))

    noise = Noise(level=0.02, bias=0.0, log_cost=log_cost)
    results = tuple(replace(r, seed=seed) for r, seed in zip(results, seeds, strict=False))
    return fit_residual(results, cost_per_step=lambda b: 1.0, belief_costs=predicted, noise=noise)


def mean(residual: Residual, parameters: Parameters) -> float:
    return float(residual.at([parameters])[0][0])


def deviation(residual: Residual, parameters: Parameters) -> float:
    return float(residual.at([parameters])[1][0])


def test_without_data_it_is_zero_and_unsure() -> None:
    means, deviations = Residual().at([HERE, FAR])
    assert (means == 0.0).all()
    assert deviations[0] == deviations[1] > 0.05


@pytest.mark.parametrize("error", [-0.2, 0.25])
def test_the_mean_moves_to_what_was_observed(error: float) -> None:
    residual = fitted(*[hit(HERE, PREDICTED * np.exp(error))] * 3)
    assert mean(residual, HERE) == pytest.approx(error, rel=0.1)
    assert mean(residual, NEAR) == pytest.approx(error, rel=0.25)


def test_far_away_opposite_errors_leave_nothing() -> None:
    residual = fitted(hit(HERE, 80.0), hit(FAR, 125.0))
    assert mean(residual, HERE) < -0.1
    assert mean(residual, FAR) > 0.1
    assert mean(residual, FAR_ELSEWHERE) == pytest.approx(0.0, abs=0.01)


def test_far_away_a_single_error_counts_less_than_where_it_was_seen() -> None:
    residual = fitted(hit(HERE, 130.0))
    assert 0.0 <= mean(residual, FAR) < 0.7 * mean(residual, HERE)


def test_it_is_sure_where_there_are_data() -> None:
    residual = fitted(hit(HERE, 110.0), hit(HERE, 112.0))
    assert deviation(residual, HERE) < 0.5 * deviation(residual, FAR)
    assert deviation(residual, HERE) < deviation(residual, NEAR) < deviation(residual, FAR)
    assert deviation(residual, FAR) <= deviation(Residual(), FAR)


def test_noisy_runs_move_it_less() -> None:
    quiet, noisy = (fitted(hit(HERE, 130.0), log_cost=c) for c in (0.03, 0.4))
    assert 0.0 < mean(noisy, HERE) < 0.5 * mean(quiet, HERE)
    assert deviation(noisy, HERE) > deviation(quiet, HERE)


def test_repeats_of_a_noisy_point_add_up() -> None:
    one, many = (fitted(*[hit(HERE, 130.0)] * n, log_cost=0.3) for n in (1, 9))
    assert mean(one, HERE) < mean(many, HERE)
    assert deviation(many, HERE) < deviation(one, HERE)


@pytest.mark.parametrize("outcome", [Outcome.CAPPED, Outcome.EXHAUSTED])
def test_a_run_that_passed_its_predicted_cost_raises_it(outcome: Outcome) -> None:
    base = fitted(hit(FAR, PREDICTED))
    raised = fitted(hit(FAR, PREDICTED), capped(HERE, 150, outcome))
    assert mean(raised, HERE) > mean(base, HERE) + 0.1


def test_a_run_that_was_stopped_before_its_predicted_cost_says_nothing() -> None:
    base = fitted(hit(FAR, PREDICTED))
    assert fitted(hit(FAR, PREDICTED), capped(HERE, 60)).at([HERE, FAR])[0] == pytest.approx(base.at([HERE, FAR])[0])


def test_a_miss_that_was_expected_says_nothing() -> None:
    base = fitted(hit(FAR, PREDICTED), miss=0.9)
    assert mean(fitted(hit(FAR, PREDICTED), capped(HERE, 300), miss=0.9), HERE) == pytest.approx(mean(base, HERE))


def test_a_gross_error_is_bounded() -> None:
    """A cost of a hundred times the prediction is a fault of the model that no length scale should carry on."""
    assert mean(fitted(*[hit(HERE, 1e4)] * 20), HERE) < 1.0


@pytest.mark.parametrize(("error", "larger"), [(0.02, False), (0.5, True)])
def test_errors_that_differ_from_place_to_place_make_it_unsure_elsewhere(error: float, *, larger: bool) -> None:
    """Where the model has been far off, and not everywhere alike, it may be as far off where nobody has been."""
    places = (HERE, FAR, FAR_ELSEWHERE, constant(30.0, global_batch_size=256))
    residual = fitted(*(hit(p, PREDICTED * np.exp((-1) ** i * error)) for i, p in enumerate(places)))
    elsewhere = constant(1e-2, global_batch_size=8)
    assert (deviation(residual, elsewhere) > 1.5 * deviation(Residual(), elsewhere)) is larger
    assert mean(residual, elsewhere) == pytest.approx(0.0, abs=0.05)


def test_an_error_that_is_the_same_everywhere_leaves_it_sure() -> None:
    places = (HERE, FAR, FAR_ELSEWHERE, constant(30.0, global_batch_size=256))
    residual = fitted(*(hit(p, PREDICTED * np.exp(0.2)) for p in places))
    assert deviation(residual, NEAR) < deviation(Residual(), NEAR)


def test_points_without_decay_and_with_decays_go_together() -> None:
    residual = fitted(hit(constant(0.3), 130.0), hit(decaying(0.3, 50, 80), 80.0))
    assert mean(residual, constant(0.3)) > 0.05
    assert mean(residual, decaying(0.3, 50, 80)) < -0.05


def test_a_run_that_was_stopped_before_its_first_step_is_no_data() -> None:
    residual = fitted(hit(FAR, PREDICTED), capped(HERE, 0))
    assert np.isfinite(residual.at([HERE, FAR])[0]).all()


def test_a_hit_is_not_forgotten_for_the_many_misses_after_it() -> None:
    many = [capped(FAR, 50)] * 320
    alone, among_many = fitted(hit(HERE, 2.0 * PREDICTED)), fitted(hit(HERE, 2.0 * PREDICTED), *many, miss=0.9)
    assert mean(among_many, HERE) == pytest.approx(mean(alone, HERE))


def test_forks_of_one_run_share_their_luck() -> None:
    """Boundaries that differ late: with one seed hardly more than one run, with two seeds two."""
    runs = [hit(decaying(0.3, late), PREDICTED) for late in (95, 98)]
    alone, forks, independent = (
        deviation(fitted(*r, log_cost=0.3, seeds=s), HERE)
        for r, s in ((runs[:1], (1,)), (runs, (1, 1)), (runs, (1, 2)))
    )
    assert independent < forks < alone
    assert alone - forks < 0.2 * (alone - independent)


def test_forks_that_share_little_are_as_good_as_independent() -> None:
    runs = [hit(decaying(0.3, late), PREDICTED) for late in (2, 98)]
    forks, independent = (deviation(fitted(*runs, log_cost=0.3, seeds=s), HERE) for s in ((1, 1), (1, 2)))
    assert forks == pytest.approx(independent, rel=0.01)
