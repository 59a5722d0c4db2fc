from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Cost, Outcome, Reached, TrialResult
from scalesearch.core.surrogate.cost import Noise
from scalesearch.core.surrogate.modes import Array
from scalesearch.core.surrogate.scalar import Scalar, fit_scalar, log_steps, points_of
from scalesearch.core.surrogate.stability import Stability, log_point
from tests.core.crossing_curves import BEST_RATE, steps_to_target
from tests.core.simulated import constant, decaying
from tests.core.trials import measurement

TARGET = 0.1
MAX_EXAMPLES = 64_000
STABILITY = Stability(stable=((float(np.log(64.0)), float(np.log(1.5))),), unstable=((float(np.log(64.0)), 1.0),))
NOISE = Noise(level=0.02, bias=0.0, log_cost=0.03)
LAW = np.array([4.0, np.log(64.0), -1.0, 0.8, np.log(0.75), np.log(0.5), np.log(1.1), np.log(0.15)])


def trial(parameters: Parameters, steps: float, outcome: Outcome = Outcome.REACHED) -> TrialResult:
    batch, last = parameters.global_batch_size, round(steps)
    reached = Reached(
        steps=steps, examples=steps * batch, seconds=steps, evaluation_step=last, evaluation_examples=last * batch
    )
    return TrialResult(
        number=0,
        parameters=parameters,
        seed=0,
        outcome=outcome,
        reason="",
        cost=Cost(),
        reached=reached if outcome is Outcome.REACHED else None,
        measurements=(measurement(0, 1.0, batch=batch), measurement(last, TARGET, batch=batch)),
    )


def fitted(results: Sequence[TrialResult], losses: Sequence[float] | None = None, *, members: int = 10) -> Scalar:
    curves: list[Array] = [np.array([loss]) for loss in losses or [TARGET] * len(results)]
    return fit_scalar(results, curves, target=TARGET, stability=STABILITY, noise=NOISE, members=members)


def predicted(scalar: Scalar, *parameters: Parameters, cap: float = 1e6) -> Array:
    """Steps to target."""
    costs = scalar.costs(parameters, cost_per_step=lambda b: 1.0, cap=cap, max_examples=1e9)
    return np.asarray(costs.hit.mean(axis=0))


def law_of(*parameters: Parameters) -> Array:
    return np.exp(log_steps(LAW, points_of(parameters, STABILITY)))


def hits(*parameters: Parameters) -> list[TrialResult]:
    return [trial(p, steps_to_target(p)) for p in parameters]


def several() -> list[TrialResult]:
    rates = (0.1, 0.2, 0.35, 0.5, 0.8, 1.2)
    decays = [decaying(0.35, b) for b in (30, 60, 90, 200)]
    return hits(*[constant(r) for r in rates], *[constant(0.3, global_batch_size=b) for b in (16, 256)], *decays)


def test_small_batches_scale_perfectly_and_large_ones_do_not() -> None:
    def best(batch: int) -> float:
        return min(law_of(*[constant(r, global_batch_size=batch) for r in np.geomspace(0.001, 1.2, 200)]))

    assert best(1) / best(2) == pytest.approx(2.0, rel=0.05)
    assert best(4096) / best(8192) == pytest.approx(1.0, abs=0.05)


def test_a_low_rate_takes_longer_in_proportion_and_a_high_one_more() -> None:
    slow, slower, best, high, higher = law_of(*[constant(r, global_batch_size=8192) for r in (0.01, 0.005, 0.37, 1, 2)])
    assert slower / slow == pytest.approx(2.0, rel=0.02)
    assert best < min(slow, high)
    assert higher / high == pytest.approx(4.0, rel=0.1)


def test_the_best_rate_is_within_what_is_stable() -> None:
    strict = replace(STABILITY, unstable=((float(np.log(8192.0)), float(np.log(0.05))),))
    points = points_of([constant(r, global_batch_size=8192) for r in (0.04, 0.2)], strict)
    low, high = log_steps(LAW, points)
    assert low < high


def test_a_boundary_has_a_best_place_and_a_late_one_is_no_decay() -> None:
    none, early, good, late, never = law_of(constant(0.2), *[decaying(0.2, b) for b in (12, 100, 150, 100_000)])
    assert good < late < none
    assert early > 1.5 * good
    assert never == pytest.approx(none)


def test_the_fit_predicts_what_it_was_not_shown() -> None:
    unseen = [constant(0.25), constant(0.7), decaying(0.35, 75), constant(0.3, global_batch_size=128)]
    truth = [steps_to_target(p) for p in unseen]
    np.testing.assert_allclose(np.log(predicted(fitted(several()), *unseen)), np.log(truth), atol=0.2)


def test_one_hit_is_enough() -> None:
    [hit] = hits(constant(0.2))
    assert predicted(fitted([hit]), hit.parameters) == pytest.approx(steps_to_target(hit.parameters), rel=0.3)


def test_a_run_without_a_hit_tells_how_long_it_would_have_taken() -> None:
    """At the least as long as it ran, and longer the more it lacked."""
    [hit] = hits(constant(0.35))
    missed = trial(constant(0.02), 300.0, Outcome.CAPPED)
    alone, near, far = (
        predicted(model, missed.parameters)[0]
        for model in (
            fitted([hit]),
            fitted([hit, missed], [TARGET, 1.1 * TARGET]),
            fitted([hit, missed], [TARGET, 9.0]),
        )
    )
    assert near > 290.0
    assert far > near
    assert far > alone
    ruled_out = replace(missed, ruled_out_steps=3000.0)
    assert predicted(fitted([hit, ruled_out], [TARGET, 1.1 * TARGET]), missed.parameters)[0] > 2500.0


def test_what_a_run_has_spent_in_vain_counts_for_more_than_what_it_seemed_to_need() -> None:
    [hit] = hits(constant(0.3))
    steps = steps_to_target(hit.parameters)
    missed = trial(constant(0.35), 2.5 * steps, Outcome.CAPPED)
    assert predicted(fitted([hit, missed], [TARGET, TARGET]), missed.parameters)[0] > 1.6 * steps


def test_diverged_runs_and_those_that_measured_nothing_do_not_count() -> None:
    diverged = trial(constant(0.02), 3.0, Outcome.DIVERGED)
    empty = replace(trial(constant(0.02), 3.0, Outcome.CAPPED), measurements=())
    losses = [*[TARGET] * len(several()), np.inf, np.inf]
    np.testing.assert_array_equal(fitted([*several(), diverged, empty], losses).law, fitted(several()).law)


def test_what_is_far_from_any_run_is_less_certain() -> None:
    costs = fitted(several()).costs(
        [constant(0.35), constant(0.35, global_batch_size=4096)], cost_per_step=lambda b: 1.0, cap=1e6, max_examples=1e9
    )
    near, far = np.log(costs.hit).std(axis=0)
    assert far > 2.0 * near


def test_a_cap_or_the_length_of_a_trial_is_missed_by_what_takes_longer() -> None:
    scalar, point = fitted(several()), constant(0.35)
    steps = predicted(scalar, point)[0]
    for cap, max_examples in ((0.5 * steps, 1e9), (1e6, 0.5 * steps * 64)):
        costs = scalar.costs([point], cost_per_step=lambda b: 1.0, cap=cap, max_examples=max_examples)
        assert costs.miss.mean() > 0.9
        assert costs.hit.max() <= 0.5 * steps * 1.001
    assert scalar.costs([point], cost_per_step=lambda b: 1.0, cap=2.0 * steps, max_examples=1e9).miss.mean() < 0.1


def test_costs_are_in_the_unit_of_a_step() -> None:
    scalar, points = fitted(several()), [constant(0.35), constant(0.35, global_batch_size=128)]
    costs = scalar.costs(points, cost_per_step=lambda b: 0.01 * b, cap=1e6, max_examples=1e9)
    np.testing.assert_allclose(costs.hit.mean(axis=0), predicted(scalar, *points) * np.array([0.64, 1.28]))


def test_a_fit_may_begin_with_another_one() -> None:
    first = fitted(several())
    curves: list[Array] = [np.array([TARGET])] * len(several())
    again = fit_scalar(several(), curves, target=TARGET, stability=STABILITY, noise=NOISE, members=1, start=first)
    np.testing.assert_allclose(again.law, first.law, atol=0.05)


def test_the_best_rate_is_found() -> None:
    scalar = fitted(several())
    rates = np.geomspace(0.05, 1.4, 60)
    best = rates[np.argmin(predicted(scalar, *[constant(r) for r in rates]))]
    assert best == pytest.approx(BEST_RATE * 2.0 ** (-0.8 / 1.5), rel=0.35), "at the critical batch size"
    assert log_point(constant(best))[1] < np.log(1.5)
