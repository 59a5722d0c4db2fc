from __future__ import annotations

import math

import numpy as np
import pytest

from scalesearch.core.curve import ScalingCurve, fit_scaling_curve

# Steps to result of Shallue et al. 2018, Figure 1 (Figure 4 for SGD), best of 100 trials at each batch size; digitised
# from the figures, to about 5 %.
PUBLISHED = {
    "Simple CNN on MNIST": (
        {1: 68e3, 2: 31e3, 8: 9.1e3, 32: 2310, 128: 714, 512: 309, 2048: 187, 8192: 210, 32768: 167, 55000: 136},
        163,
        419,
    ),
    "Simple CNN on Fashion-MNIST": (
        {2: 22e3, 8: 5870, 32: 1720, 128: 503, 512: 307, 2048: 166, 8192: 156, 32768: 168, 55000: 165},
        160,
        287,
    ),
    "ResNet-8 on CIFAR-10, SGD": (
        {2: 126e3, 4: 57e3, 8: 30.4e3, 16: 19.3e3, 32: 10e3, 64: 5600, 128: 4680, 256: 3990, 512: 3480, 1024: 3200,
         2048: 3900, 4096: 3500, 8192: 3600},
        3247,
        68,
    ),
    "Transformer on LM1B": (
        {16: 568e3, 32: 281e3, 64: 142e3, 128: 78.5e3, 256: 43.3e3, 512: 25e3, 1024: 19e3, 2048: 13.8e3, 4096: 12.5e3,
         8192: 11.9e3, 16384: 11.4e3, 32768: 10.9e3},
        10.5e3,
        812,
    ),
}  # fmt: skip
POWERS = [2**k for k in range(3, 14)]


@pytest.mark.parametrize("workload", PUBLISHED)
def test_published_results(workload: str) -> None:
    steps, s_min, b_crit = PUBLISHED[workload]
    curve = fit_scaling_curve(steps)
    assert curve is not None
    assert curve.s_min == pytest.approx(s_min, rel=0.1)
    assert curve.b_crit == pytest.approx(b_crit, rel=0.1)
    assert curve.residual < 0.12


@pytest.mark.parametrize("s_min", [10.0, 5000.0])
@pytest.mark.parametrize("b_crit", [20.0, 300.0, 4000.0])
def test_recovers_what_made_the_data(s_min: float, b_crit: float) -> None:
    exact = {b: s_min * (1 + b_crit / b) for b in POWERS}
    curve = fit_scaling_curve(exact)
    assert curve is not None
    assert curve.s_min == pytest.approx(s_min, rel=1e-4)
    assert curve.b_crit == pytest.approx(b_crit, rel=1e-4)
    assert curve.residual < 1e-6
    assert all(curve.steps(b) == pytest.approx(s, rel=1e-4) for b, s in exact.items())


def test_recovers_it_from_noisy_data() -> None:
    """5 % noise on 11 points: the standard error of either parameter is about 5 %; 25 % is five of them."""
    random = np.random.default_rng(0)
    for _ in range(50):
        noisy = {b: 200 * (1 + 300 / b) * math.exp(0.05 * random.standard_normal()) for b in POWERS}
        curve = fit_scaling_curve(noisy)
        assert curve is not None
        assert curve.s_min == pytest.approx(200, rel=0.25)
        assert curve.b_crit == pytest.approx(300, rel=0.25)
        assert 0.01 < curve.residual < 0.1


@pytest.mark.parametrize("sharpness", [1.0, 1.7, 3.0])
def test_recovers_how_sharp_the_knee_is(sharpness: float) -> None:
    exact = {b: 50 * (1 + (300 / b) ** sharpness) ** (1 / sharpness) for b in POWERS}
    curve = fit_scaling_curve(exact)
    assert curve is not None
    assert curve.sharpness == pytest.approx(sharpness, rel=1e-3)
    assert (curve.s_min, curve.b_crit) == (pytest.approx(50, rel=1e-3), pytest.approx(300, rel=1e-3))


def test_four_batch_sizes_cannot_tell_how_sharp_it_is() -> None:
    def fitted(batches: list[int]) -> float:
        curve = fit_scaling_curve({b: 50 * (1 + (300 / b) ** 2) ** 0.5 for b in batches})
        assert curve is not None
        return curve.sharpness

    assert fitted([8, 64, 512, 4096]) == 1.0
    assert fitted([8, 64, 256, 512, 4096]) == pytest.approx(2.0, rel=1e-2)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_fewer_than_four_batch_sizes_are_no_curve(count: int) -> None:
    assert fit_scaling_curve({2**k: 100.0 for k in range(count)}) is None
    assert fit_scaling_curve({2**k: 100.0 for k in range(4)}) is not None


def test_pure_perfect_scaling_has_its_end_far_beyond_the_data() -> None:
    curve = fit_scaling_curve({b: 1e6 / b for b in POWERS})
    assert curve is not None
    assert math.isfinite(curve.s_min)
    assert curve.s_min > 0
    assert POWERS[-1] < curve.perfect_scaling_up_to < math.inf
    assert all(curve.steps(b) == pytest.approx(1e6 / b, rel=0.05) for b in POWERS)


def test_a_pure_plateau_begins_below_the_data() -> None:
    curve = fit_scaling_curve(dict.fromkeys(POWERS, 250.0))
    assert curve is not None
    assert 0 < curve.maximal_data_parallelism_from <= POWERS[0]
    assert curve.s_min == pytest.approx(250, rel=0.02)


def test_steps_that_rise_with_the_batch_are_a_plateau() -> None:
    curve = fit_scaling_curve({b: float(b) for b in POWERS})
    assert curve is not None
    assert math.isfinite(curve.s_min)
    assert curve.maximal_data_parallelism_from <= POWERS[0]
    assert curve.residual > 1


@pytest.mark.parametrize("sharpness", [1.0, 1.7])
@pytest.mark.parametrize("at", ["perfect_scaling_up_to", "maximal_data_parallelism_from"])
def test_regimes_begin_where_the_slope_on_logarithmic_axes_is_near_its_limit(at: str, sharpness: float) -> None:
    curve = ScalingCurve(s_min=100.0, b_crit=512.0, sharpness=sharpness, residual=0.0)
    batch = getattr(curve, at)
    slope = math.log(curve.steps(batch * 1.0001) / curve.steps(batch)) / math.log(1.0001)
    assert slope == pytest.approx({"perfect_scaling_up_to": -0.9, "maximal_data_parallelism_from": -0.1}[at], rel=1e-3)


def test_at_the_critical_batch_size_steps_are_twice_the_fewest() -> None:
    assert ScalingCurve(s_min=100.0, b_crit=512.0, residual=0.0).steps(512) == 200.0
