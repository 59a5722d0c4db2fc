from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Measurement, TrialResult
from scalesearch.core.simulate.workload import RunNoise
from scalesearch.core.surrogate.cost import Noise
from scalesearch.core.surrogate.loss_curves import Curve, LossCurves, fit_loss_curves
from scalesearch.core.surrogate.modes import Array
from scalesearch.core.surrogate.noise import LOG_COST_RANGE, estimate_noise
from tests.core.simulated import EASY, constant, decaying, run

REPEATED = decaying(1.2, 60)


def trials(
    parameters: Sequence[Parameters], *, speed: float = 0.0, level: float = 0.0, evaluation: float = 0.005
) -> list[TrialResult]:
    workload = replace(EASY, run_noise=RunNoise(speed=speed, level=level, evaluation=evaluation))
    return [run(workload, p, max_examples=2000 * 64, seed=seed) for seed, p in enumerate(parameters)]


def losses_of(results: Sequence[TrialResult]) -> list[Array]:
    return [np.array([m.metrics["val/loss"] for m in r.measurements[1:]]) for r in results]


def fitted(results: Sequence[TrialResult]) -> LossCurves:
    curves = [
        Curve(r.parameters, np.array([m.step for m in r.measurements[1:]], dtype=float), losses)
        for r, losses in zip(results, losses_of(results), strict=True)
    ]
    return fit_loss_curves(
        curves,
        initial_loss=EASY.initial_loss,
        target=EASY.target,
        longest=2000.0,
        members=1,
        rng=np.random.default_rng(0),
    )


def estimated(results: Sequence[TrialResult], *, model: LossCurves | None = None, trust: Array | None = None) -> Noise:
    return estimate_noise(
        results,
        losses_of(results),
        np.ones(len(results)) if trust is None else trust,
        model=model or fitted(results),
        target=EASY.target,
    )


@pytest.mark.parametrize("speed", [0.1, 0.3])
def test_repeats_show_the_noise_of_the_cost(speed: float) -> None:
    results = trials([REPEATED] * 16, speed=speed)
    assert all(r.reached for r in results)
    # Sixteen repeats: a standard error of 18 %, and two degrees of freedom of the first guess.
    assert estimated(results).log_cost == pytest.approx(speed, rel=0.5)


def test_noisier_repeats_are_estimated_to_be_noisier() -> None:
    estimates = [estimated(trials([REPEATED] * 8, speed=s)).log_cost for s in (0.02, 0.1, 0.4)]
    assert estimates == sorted(estimates)
    assert estimates[2] > 4.0 * estimates[0]


def test_the_level_of_runs_is_that_of_their_distance_to_the_model() -> None:
    """Runs of one point whose level differs meet the target where the model is higher, or lower."""
    model = fitted(trials([REPEATED, constant(0.8), decaying(1.2, 200)]))
    quiet, noisy = (estimated(trials([REPEATED] * 12, level=level), model=model) for level in (0.005, 0.12))
    # Twelve runs: a standard error of 20 %, and a prior of three.
    assert noisy.level == pytest.approx(0.12, rel=0.5)
    assert quiet.level < 0.5 * noisy.level


@pytest.mark.parametrize(("factor", "sign"), [(1.15, 1.0), (1 / 1.15, -1.0)])
def test_runs_that_do_better_than_the_model_have_a_bias_above_zero(factor: float, sign: float) -> None:
    results = trials([REPEATED] * 8)
    model = fitted(results)
    off = LossCurves(model.modes, factor * model.coefficients)
    bias = estimated(results, model=off).bias - estimated(results, model=model).bias
    # Shrunk towards none, as eight runs count against a prior.
    assert 0.3 * np.log(1.15) < sign * bias <= 1.1 * np.log(1.15)


def test_without_a_hit_the_fluctuation_of_single_curves_speaks() -> None:
    """Runs that end far above the target, whose evaluations have noise of 9 %: a median of three has two thirds of it."""
    slow = [constant(rate) for rate in (0.003, 0.004, 0.005)]
    results = trials(slow, evaluation=0.09)
    assert not any(r.reached for r in results)
    assert estimated(results).level == pytest.approx(0.06, rel=0.5)
    assert estimated(trials(slow, evaluation=0.01)).level < 0.03


def test_a_run_counts_for_level_and_bias_as_far_as_it_is_trusted() -> None:
    """Those that lie elsewhere, where the model is wrong by 20 %, are not taken for noise of those that matter."""
    runs = trials([REPEATED] * 6 + [constant(0.8 + 0.01 * i) for i in range(6)])
    here, elsewhere = runs[:6], runs[6:]
    model = fitted(here)
    off = [replace(r, measurements=tuple(_raised(m, 1.2) for m in r.measurements), reached=None) for r in elsewhere]
    everything, trust = [*here, *off], np.repeat([1.0, 1e-6], 6)
    near = estimated(here, model=model)
    weighed, alike = estimated(everything, model=model, trust=trust), estimated(everything, model=model)
    assert (weighed.level, weighed.bias) == pytest.approx((near.level, near.bias), rel=1e-3, abs=1e-4)
    assert alike.bias < near.bias - 0.03
    assert alike.level > 1.5 * near.level


def _raised(measurement: Measurement, factor: float) -> Measurement:
    return replace(measurement, metrics={name: factor * value for name, value in measurement.metrics.items()})


def test_a_median_of_evaluations_fluctuates_less_than_one() -> None:
    results = trials([constant(rate) for rate in (0.003, 0.004, 0.005)], evaluation=0.09)
    known = {"losses": losses_of(results), "trust": np.ones(3), "model": fitted(results), "target": EASY.target}
    smoothed, first = (estimate_noise(results, **known, rule=rule) for rule in ("smoothed", "first"))
    assert smoothed.level == pytest.approx(0.67 * first.level, rel=0.01)


def test_runs_that_reached_the_target_tell_the_noise_better_than_those_that_did_not() -> None:
    """Those at rates far too high fluctuate as no run near the target does."""
    hit, wild = (
        trials([REPEATED], evaluation=0.01),
        trials([constant(0.003 + 0.001 * i) for i in range(6)], evaluation=0.2),
    )
    model = fitted(hit)
    alone, among = (estimated(results, model=model).log_cost for results in (hit, [*hit, *wild]))
    assert hit[0].reached
    assert among == pytest.approx(alone)


def test_a_shallow_approach_makes_the_cost_noisier() -> None:
    """The same fluctuation moves the crossing by more steps where the loss falls more slowly."""
    # All rates differ, so that no repeats tell. In log steps, the larger ones slow down on their way to the target.
    steep = trials([constant(0.1 + 0.001 * i) for i in range(8)], evaluation=0.2)
    shallow = trials([constant(1.2 + 0.001 * i) for i in range(8)], evaluation=0.2)
    assert all(r.reached for r in [*steep, *shallow])
    assert estimated(steep).log_cost < 0.9 * estimated(shallow).log_cost


def test_estimates_are_bounded_whatever_the_runs() -> None:
    wild = trials([constant(rate) for rate in (0.5, 0.6, 1.0)], speed=1.0, level=1.0, evaluation=0.5)
    for results in (wild, trials([constant(0.5)], evaluation=0.0)):
        noise = estimated(results)
        assert 0.0 < noise.level <= 0.3
        assert abs(noise.bias) <= 0.3
        assert LOG_COST_RANGE[0] <= noise.log_cost <= LOG_COST_RANGE[1]


def test_a_curve_of_few_points_is_no_evidence() -> None:
    results = trials([constant(0.5)])
    short = [replace(r, measurements=r.measurements[:4], reached=None) for r in results]
    noise = estimated(short, model=fitted(results))
    assert np.isfinite([noise.level, noise.bias, noise.log_cost]).all()


def test_many_forks_of_a_run_are_no_evidence_about_the_level() -> None:
    results = trials([decaying(1.2, late) for late in range(60, 68)], level=0.1)
    model = fitted(trials([REPEATED] * 4))
    forks = [replace(r, seed=results[0].seed) for r in results]
    one, of_forks, independent = (estimated(r, model=model) for r in (results[:1], forks, results))
    assert (of_forks.bias, of_forks.level) == pytest.approx((one.bias, one.level), rel=0.3)
    assert independent.level > 1.5 * of_forks.level
