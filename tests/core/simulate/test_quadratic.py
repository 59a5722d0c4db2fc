from __future__ import annotations

import numpy as np
import pytest

from scalesearch.core.simulate.quadratic import Floats, Modes, dynamics

MODES = Modes(
    curvature=np.array([1.0, 0.3, 0.01]),
    multiplicity=np.array([1.0, 2.0, 5.0]),
    gradient_variance=np.array([4.0, 1.0, 0.5]),
    initial=np.array([1.0, 1.0, 2.0]),
    multiplicative=3.0,
)
ADDITIVE = Modes(
    curvature=MODES.curvature,
    multiplicity=MODES.multiplicity,
    gradient_variance=MODES.gradient_variance,
    initial=MODES.initial,
)
BATCH = 8


def second_moments_step_by_step(modes: Modes, rate: float, momentum: float, steps: int) -> Floats:
    """E θ² by the covariance recursion of (θ, v), one mode and one step at a time."""
    result = []
    for h, c, initial in zip(modes.curvature, modes.gradient_variance, modes.initial, strict=True):
        covariance = np.diag([initial, 0.0])
        # v' = μ v − η (h θ + ξ), θ' = θ + v'
        transition = np.array([[1.0 - rate * h, momentum], [-rate * h, momentum]])
        for _ in range(steps):
            variance = (c + modes.multiplicative * h**2 * covariance[0, 0]) / BATCH
            covariance = transition @ covariance @ transition.T + rate**2 * variance
        result.append(covariance[0, 0])
    return np.array(result)


def second_moments(modes: Modes, rate: float, momentum: float, steps: int) -> Floats:
    start = modes.initial_moments(heavy_ball=bool(momentum))
    after = dynamics(modes, np.array(rate), batch=BATCH, momentum=momentum).advance(start, np.array(steps))
    return after[:, 0]


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [0, 1, 2, 7, 100, 1023])
@pytest.mark.parametrize("modes", [ADDITIVE, MODES], ids=["additive", "multiplicative"])
def test_any_number_of_steps_at_once_is_the_recursion(modes: Modes, momentum: float, steps: int) -> None:
    expected = second_moments_step_by_step(modes, 0.4 * (1 - momentum), momentum, steps)
    np.testing.assert_allclose(second_moments(modes, 0.4 * (1 - momentum), momentum, steps), expected, rtol=1e-9)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_leap_is_as_many_steps_for_each_of_many_runs(momentum: float) -> None:
    rates, steps = np.array([0.01, 0.1, 0.05]), np.array([3, 20, 11])
    start = np.stack([MODES.initial_moments(heavy_ball=bool(momentum))] * 3)
    at_constant_rate = dynamics(MODES, rates, batch=BATCH, momentum=momentum)
    for moments in (at_constant_rate.leap(steps)(start), at_constant_rate.advance(start, steps)):
        for i in range(3):
            expected = second_moments(MODES, rates[i], momentum, int(steps[i]))
            np.testing.assert_allclose(moments[i, :, 0], expected, rtol=1e-10)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("modes", [ADDITIVE, MODES], ids=["additive", "multiplicative"])
def test_moments_are_those_of_real_trajectories(modes: Modes, momentum: float) -> None:
    runs, steps, rate = 40_000, 40, 0.5 * (1 - momentum)
    random = np.random.default_rng(0)
    theta = np.sqrt(modes.initial) * random.standard_normal((runs, 3))
    velocity = np.zeros_like(theta)
    for _ in range(steps):
        spread = np.sqrt((modes.gradient_variance + modes.multiplicative * (modes.curvature * theta) ** 2) / BATCH)
        gradient = modes.curvature * theta + spread * random.standard_normal(theta.shape)
        velocity = momentum * velocity - rate * gradient
        theta = theta + velocity
    standard_error = np.std(theta**2, axis=0) / np.sqrt(runs)
    # Five standard errors: a false alarm in 2e-6 of the cases, were the seed not fixed.
    assert np.all(np.abs(np.mean(theta**2, axis=0) - second_moments(modes, rate, momentum, steps)) < 5 * standard_error)


def test_sgd_decays_to_its_stationary_loss() -> None:
    # E l(t) = (1 − ηh)^2t E l(0) + (1 − (1 − ηh)^2t) η c / (2B (2 − ηh)) for each mode (Zhang et al. 2019).
    rate, steps = 0.4, 30
    h, c = ADDITIVE.curvature, ADDITIVE.gradient_variance
    left = (1 - rate * h) ** (2 * steps)
    expected = left * 0.5 * h * ADDITIVE.initial + (1 - left) * rate * c / (2 * BATCH * (2 - rate * h))
    np.testing.assert_allclose(0.5 * h * second_moments(ADDITIVE, rate, 0.0, steps), expected, rtol=1e-12)


@pytest.mark.parametrize("momentum", [0.5, 0.9, 0.99])
def test_heavy_ball_has_the_known_stationary_loss(momentum: float) -> None:
    rate, h, c = 0.05, ADDITIVE.curvature, ADDITIVE.gradient_variance
    expected = rate * c * (1 + momentum) / (2 * BATCH * (1 - momentum) * (2 + 2 * momentum - rate * h))
    np.testing.assert_allclose(0.5 * h * second_moments(ADDITIVE, rate, momentum, 2**20), expected, rtol=1e-6)


def test_without_noise_heavy_ball_decays_as_its_mean() -> None:
    # θ(t)/θ(0) = [(r₁^(t+1) − r₂^(t+1)) − μ (r₁^t − r₂^t)] / (r₁ − r₂), r the roots of x² − (1 − ηh + μ) x + μ.
    noiseless = Modes(
        curvature=np.array([1.0, 0.1]), multiplicity=np.ones(2), gradient_variance=np.zeros(2), initial=np.ones(2)
    )
    rate, momentum, t = 0.1, 0.9, 37
    for i, h in enumerate(noiseless.curvature):
        r1, r2 = np.roots([1, -(1 - rate * h + momentum), momentum]).astype(complex)
        mean = ((r1 ** (t + 1) - r2 ** (t + 1)) - momentum * (r1**t - r2**t)) / (r1 - r2)
        assert second_moments(noiseless, rate, momentum, t)[i] == pytest.approx(mean.real**2, rel=1e-9)


def test_heavy_ball_without_momentum_is_sgd() -> None:
    tiny = second_moments(MODES, 0.4, 1e-12, 50)
    np.testing.assert_allclose(tiny, second_moments(MODES, 0.4, 0.0, 50), rtol=1e-8)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_multiplicative_noise_limits_the_learning_rate_of_small_batches(momentum: float) -> None:
    modes = Modes(
        curvature=np.ones(1),
        multiplicity=np.ones(1),
        gradient_variance=np.zeros(1),
        initial=np.ones(1),
        multiplicative=100.0,
    )

    def grows(batch: int, rate: float) -> bool:
        at_constant_rate = dynamics(modes, np.array(rate), batch=batch, momentum=momentum)
        start = modes.initial_moments(heavy_ball=bool(momentum))
        return bool(at_constant_rate.advance(start, np.array(10_000))[0, 0] > 1.0)

    # SGD: η h < 2 / (1 + m/B). With momentum the limit of η/(1 − μ) is the same where the noise sets it.
    limit = 2.0 / (1.0 + 100.0 / 4) * (1 - momentum)
    assert not grows(4, 0.8 * limit)
    assert grows(4, 1.3 * limit)
    assert not grows(64, 1.3 * limit)


def test_a_learning_rate_of_zero_changes_nothing() -> None:
    np.testing.assert_array_equal(second_moments(MODES, 0.0, 0.0, 100), MODES.initial)


def test_divergence_ends_in_infinity_without_a_warning() -> None:
    assert not np.isfinite(second_moments(ADDITIVE, 5.0, 0.0, 10_000)[0])
    assert not np.isfinite(second_moments(ADDITIVE, 5.0, 0.9, 10_000)[0])
