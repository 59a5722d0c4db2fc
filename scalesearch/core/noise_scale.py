"""Gradient noise scale tr(Σ)/|G|², a cheap predictor of the critical batch size (McCandlish et al. 2018, appendix A.1).

G is the expected gradient and Σ the covariance of the gradients of single examples. The squared norm of the mean gradient
of B examples is |G|² + tr(Σ)/B in expectation, so two batch sizes at the same weights give both without bias. Their ratio is
not unbiased, so numerator and denominator are averaged apart, and divided last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

MIN_BLOCKS = 4
COVERAGE = 0.9


@dataclass(frozen=True, kw_only=True)
class GradientNoise:
    """Means over a block of samples that were taken together: tr(Σ), and |G|², which noise can make negative."""

    trace: float
    squared_norm: float
    samples: int


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """tr(Σ)/|G|² in examples, with its 90 % interval; infinite where |G|² cannot be told from zero."""

    value: float
    interval: tuple[float, float]
    samples: int


def gradient_noise(squared_norms: Iterable[tuple[float, float]], *, small: int, big: int) -> GradientNoise | None:
    """A block from pairs of squared gradient norms (of `small` examples, of `big` ones); None if no pair is finite.

    The first of a pair may itself be a mean over several batches of `small` examples.
    """
    if not 0 < small < big:
        raise ValueError(f"two batch sizes must be positive and differ, but got {small} and {big}")
    pairs = [pair for pair in squared_norms if all(map(math.isfinite, pair))]
    if not pairs:
        return None
    of_small, of_big = np.mean(pairs, axis=0)
    return GradientNoise(
        trace=float((of_small - of_big) / (1.0 / small - 1.0 / big)),
        squared_norm=float((big * of_big - small * of_small) / (big - small)),
        samples=len(pairs),
    )


def noise_scale(blocks: Sequence[GradientNoise]) -> NoiseScale | None:
    """The ratio of the blocks' means; None below MIN_BLOCKS of them.

    The interval is that of Fieller for a ratio of means. What the scale itself changes from block to block counts as
    noise in it.
    """
    if len(blocks) < MIN_BLOCKS:
        return None
    weights = np.array([block.samples for block in blocks], dtype=float)
    weights /= weights.sum()
    values = np.array([(block.trace, block.squared_norm) for block in blocks])
    trace, squared_norm = means = weights @ values
    deviations = weights[:, None] * (values - means)
    covariance = deviations.T @ deviations * (len(blocks) / (len(blocks) - 1))
    return NoiseScale(
        value=float(trace / squared_norm) if squared_norm > 0.0 else math.inf,
        interval=_fieller(means, covariance, quantile=float(stdtrit(len(blocks) - 1, 0.5 + COVERAGE / 2))),
        samples=sum(block.samples for block in blocks),
    )


def of_second_half(blocks: Iterable[GradientNoise | None]) -> NoiseScale | None:
    """The scale over the second half of a run's blocks: it grows in training, and this is what most of the steps see."""
    sampled = [block for block in blocks if block is not None]
    return noise_scale(sampled[len(sampled) // 2 :])


def _fieller(means: NDArray[np.float64], covariance: NDArray[np.float64], *, quantile: float) -> tuple[float, float]:
    """All ratios r ≥ 0 for which the mean of numerator − r · denominator is within the quantile of zero.

    They are the roots of a r² − 2 b r + c and what lies between, or what lies above where a denominator of zero is
    within the noise.
    """
    numerator, denominator = means
    a = denominator**2 - quantile**2 * covariance[1, 1]
    b = numerator * denominator - quantile**2 * covariance[0, 1]
    c = numerator**2 - quantile**2 * covariance[0, 0]
    discriminant = b**2 - a * c
    if a > 0.0 and denominator > 0.0:
        root = math.sqrt(max(discriminant, 0.0))
        return max(float((b - root) / a), 0.0), max(float((b + root) / a), 0.0)
    if a == 0.0 or discriminant < 0.0 or c <= 0.0:
        return 0.0, math.inf
    return max(float((b - math.sqrt(discriminant)) / a), 0.0), math.inf
