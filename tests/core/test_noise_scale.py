"""The estimate against gradients whose noise scale is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scalesearch.core.noise_scale import GradientNoise, gradient_noise, noise_scale, of_second_half

# A quadratic model of 50 directions, as one finds it at some weights: G = h θ, the covariance of examples diag(c).
CURVATURE = 1.0 / np.arange(1, 51)
GRADIENT = CURVATURE * np.linspace(2.0, 0.5, 50)
VARIANCE = 3.0 * CURVATURE
SQUARED_NORM, TRACE = float(GRADIENT @ GRADIENT), float(VARIANCE.sum())


def squared_norms(random: np.random.Generator, *, small: int, groups: int) -> tuple[float, float]:
    """Of batches of `small` examples (mean over `groups` of them) and of all of them together."""
    gradients = GRADIENT + random.normal(size=(groups, 50)) * np.sqrt(VARIANCE / small)
    return float(np.mean(np.sum(gradients**2, axis=1))), float(np.sum(gradients.mean(axis=0) ** 2))


def sampled(random: np.random.Generator, *, blocks: int, small: int = 4, groups: int = 2) -> list[GradientNoise]:
    pairs = [[squared_norms(random, small=small, groups=groups) for _ in range(3)] for _ in range(blocks)]
    made = [gradient_noise(block, small=small, big=small * groups) for block in pairs]
    return [block for block in made if block is not None]


@pytest.mark.parametrize("groups", [2, 8])
@pytest.mark.parametrize("small", [1, 16])
def test_numerator_and_denominator_are_unbiased(small: int, groups: int) -> None:
    blocks = sampled(np.random.default_rng(1), blocks=2000, small=small, groups=groups)
    for name, known in (("trace", TRACE), ("squared_norm", SQUARED_NORM)):
        values = np.array([getattr(block, name) for block in blocks])
        error = values.std() / math.sqrt(len(values))
        assert error < 0.05 * known
        assert values.mean() == pytest.approx(known, abs=4 * error)


def test_exact_expectations_give_the_exact_values() -> None:
    pair = SQUARED_NORM + TRACE / 8, SQUARED_NORM + TRACE / 32
    block = gradient_noise([pair, (math.nan, 1.0), (1.0, math.inf)], small=8, big=32)
    assert block is not None
    assert (block.trace, block.squared_norm, block.samples) == (pytest.approx(TRACE), pytest.approx(SQUARED_NORM), 1)


def test_a_block_without_finite_norms_is_none() -> None:
    assert gradient_noise([(math.nan, 1.0)], small=1, big=2) is None


@pytest.mark.parametrize(("small", "big"), [(4, 4), (8, 4), (0, 4)])
def test_two_batch_sizes_are_needed(small: int, big: int) -> None:
    with pytest.raises(ValueError, match=f"but got {small} and {big}"):
        gradient_noise([(1.0, 1.0)], small=small, big=big)


def test_the_ratio_of_means_is_the_known_scale_and_its_interval_covers_it() -> None:
    random = np.random.default_rng(2)
    known, scales = TRACE / SQUARED_NORM, []
    for _ in range(200):
        scale = noise_scale(sampled(random, blocks=40))
        assert scale is not None
        scales.append(scale)
    assert np.median([s.value for s in scales]) == pytest.approx(known, rel=0.05)
    assert np.mean([s.interval[0] <= known <= s.interval[1] for s in scales]) == pytest.approx(0.9, abs=0.06)
    assert all(s.interval[0] <= s.value <= s.interval[1] for s in scales)
    assert scales[0].samples == 120


def test_the_mean_of_ratios_would_be_wrong() -> None:
    """Why numerator and denominator are averaged apart."""
    blocks = sampled(np.random.default_rng(3), blocks=4000)
    known, scale = TRACE / SQUARED_NORM, noise_scale(blocks)
    assert scale is not None
    assert scale.value == pytest.approx(known, rel=0.02)
    assert abs(float(np.mean([b.trace / b.squared_norm for b in blocks])) / known - 1.0) > 0.06


def test_blocks_count_by_their_samples() -> None:
    one, many = (GradientNoise(trace=t, squared_norm=1.0, samples=n) for t, n in ((10.0, 1), (20.0, 4)))
    scale = noise_scale([one, many, one, many])
    assert scale is not None
    assert scale.value == pytest.approx(18.0)


def block(trace: float, squared_norm: float) -> GradientNoise:
    return GradientNoise(trace=trace, squared_norm=squared_norm, samples=1)


def test_without_a_visible_gradient_there_is_no_upper_end() -> None:
    scale = noise_scale([block(10.0 + 0.1 * i, g) for i, g in enumerate((0.3, -0.2, 0.25, -0.3, 0.2))])
    assert scale is not None
    low, high = scale.interval
    assert scale.value == pytest.approx(10.2 / 0.05)
    assert 10.0 < low < scale.value
    assert high == math.inf
    # Fieller's set by its definition: the lower end is where the difference is just within the quantile of zero.
    pairs = np.array([(10.0 + 0.1 * i, g) for i, g in enumerate((0.3, -0.2, 0.25, -0.3, 0.2))])
    differences = pairs[:, 0] - low * pairs[:, 1]
    assert differences.mean() / (differences.std(ddof=1) / math.sqrt(5)) == pytest.approx(2.132, abs=1e-3)


def test_a_negative_denominator_is_an_infinite_scale() -> None:
    scale = noise_scale([block(10.0, g) for g in (-0.3, -0.2, -0.25, 0.1)])
    assert scale is not None
    assert scale.value == math.inf
    assert scale.interval[0] > 0.0
    assert scale.interval[1] == math.inf


def test_no_noise_at_all_is_a_scale_of_zero() -> None:
    scale = noise_scale([block(0.0, 1.0)] * 4)
    assert scale is not None
    assert (scale.value, scale.interval) == (0.0, (0.0, 0.0))


def test_few_blocks_are_no_estimate() -> None:
    assert noise_scale([block(1.0, 1.0)] * 3) is None


def test_the_second_half_counts() -> None:
    early, late = [block(10.0, 1.0)] * 4, [block(30.0, 1.0)] * 4
    second = of_second_half([*early, *late])
    assert second is not None
    assert second.value == pytest.approx(30.0)
    assert of_second_half([*early, *late[:2]]) is None
