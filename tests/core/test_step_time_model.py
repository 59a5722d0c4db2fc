from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from scalesearch.core.accumulation import AsFewAsFit
from scalesearch.core.step_time_model import (
    StepTimeFormula,
    fit_step_time_model,
    model_of,
)

from .profiles import AFFINE, MACHINE, point, points, profile

SHARES = (8, 32, 128, 512, 2048)
BETWEEN = (16, 64, 256, 1024)
REPLICAS = (1, 2, 4)
SATURATING = replace(AFFINE, saturation=3.0, synchronisation=1e-3, accumulating=2e-4)
SHARED_CORES = replace(AFFINE, saturation=1.5, contention=0.8, synchronisation=5e-4, growth="star", accumulating=1e-4)
MACHINES = pytest.mark.parametrize("truth", [AFFINE, SATURATING, SHARED_CORES], ids=["affine", "gpus", "cpus"])


def measured(truth: StepTimeFormula, *, noise: float = 0.0, seed: int = 0) -> list:
    return [
        *points(truth, shares=SHARES, replicas=REPLICAS, noise=noise, seed=seed),
        *points(truth, shares=[64], replicas=REPLICAS, accumulations=(2, 4), noise=noise, seed=seed + 1),
    ]


@MACHINES
@pytest.mark.parametrize("seed", range(4))
def test_sizes_that_were_left_out_are_within_five_percent(truth: StepTimeFormula, seed: int) -> None:
    model = fit_step_time_model(measured(truth, noise=0.03, seed=seed), growth=truth.growth)
    for replicas in REPLICAS:
        for share in BETWEEN:
            expected = truth.seconds(share=share, replicas=replicas, accumulation=1)
            assert model.seconds(share * replicas, replicas=replicas) == pytest.approx(expected, rel=0.05)


@MACHINES
def test_without_noise_the_formula_is_recovered(truth: StepTimeFormula) -> None:
    model = fit_step_time_model(measured(truth), growth=truth.growth)
    assert model.error == pytest.approx(0.0, abs=1e-3)
    for replicas, share, accumulation in ((1, 3, 1), (2, 1024, 8), (8, 100, 1), (16, 1000, 4)):
        expected = truth.seconds(share=share, replicas=replicas, accumulation=accumulation)
        batch = share * replicas * accumulation
        assert model.seconds(batch, replicas=replicas, accumulation=accumulation) == pytest.approx(expected, rel=0.01)


def test_one_slow_measurement_does_not_matter() -> None:
    good = points(AFFINE, shares=(8, 16, 32, 64, 128, 256, 512))
    model = fit_step_time_model([*good, point(0.5, share=1024)])
    for share in (8, 64, 256):
        assert model.seconds(share, replicas=1) == pytest.approx(1e-3 + 5e-6 * share, rel=0.05)
    assert model.formula.per_example == pytest.approx(5e-6, rel=0.1)
    assert model.formula.launch == pytest.approx(1e-3, rel=0.1)


def test_what_the_formula_cannot_say_is_learnt_from_the_sizes_nearby() -> None:
    """A step of 64 examples and more takes 30 % longer here, as where a cache is full."""

    def true(share: int) -> float:
        return AFFINE.seconds(share=share, replicas=1, accumulation=1) * (1.3 if share >= 64 else 1.0)

    model = fit_step_time_model([point(true(m), share=m) for m in (2**k for k in range(2, 13))])
    for share in (4, 16, 256, 2048):
        assert model.seconds(share, replicas=1) == pytest.approx(true(share), rel=0.03)


def test_the_error_at_left_out_sizes_is_found() -> None:
    assert fit_step_time_model(points(AFFINE, shares=(8, 64, 512))).error is None
    small, large = (fit_step_time_model(points(AFFINE, shares=SHARES, noise=noise)).error for noise in (0.01, 0.2))
    assert small is not None
    assert large is not None
    assert small < 0.05 < large


def test_intervals_cover_the_truth() -> None:
    inside = []
    for seed in range(8):
        model = fit_step_time_model(points(AFFINE, shares=SHARES, noise=0.1, seed=seed))
        for share in BETWEEN:
            low, high = model.interval(share, replicas=1)
            inside.append(low <= 1e-3 + 5e-6 * share <= high)
    assert sum(inside) >= 0.85 * len(inside)


def test_intervals_are_wider_for_replicas_that_were_not_measured() -> None:
    model = fit_step_time_model(measured(SATURATING, noise=0.01))
    widths = []
    for replicas in (4, 8, 16):
        low, high = model.interval(128 * replicas, replicas=replicas)
        widths.append(high / low)
        assert model.is_measured(replicas) == (replicas == 4)
    assert all(more > 1.2 * less for less, more in pairwise(widths))


def test_what_was_not_measured_is_assumed_in_words() -> None:
    alone = fit_step_time_model(points(AFFINE, shares=SHARES))
    assert alone.formula.synchronisation_seconds(8) == 0.0
    assert "was not measured" in alone.assumption()
    pair = fit_step_time_model(points(SATURATING, shares=SHARES, replicas=(1, 2)))
    assert "from its cost with 2 replicas alone" in pair.assumption()
    assert "ring" in fit_step_time_model(measured(SATURATING)).assumption()
    assert "one device" in fit_step_time_model(measured(SHARED_CORES), growth="star").assumption()


@pytest.mark.parametrize("share", [1, 64])
def test_one_point_is_enough(share: int) -> None:
    model = fit_step_time_model([point(0.2, share=share)])
    assert model.seconds(share, replicas=1) == pytest.approx(0.2, rel=0.1)
    assert 0.2 < model.seconds(4 * share, replicas=1) < 0.8


def test_no_point_is_not() -> None:
    with pytest.raises(ValueError, match="at least one"):
        fit_step_time_model([])


def test_two_replicas_alone_are_described_as_they_were_measured() -> None:
    model = fit_step_time_model(points(SATURATING, shares=SHARES, replicas=(2,)))
    expected = SATURATING.seconds(share=64, replicas=2, accumulation=1)
    assert model.seconds(128, replicas=2) == pytest.approx(expected, rel=0.05)


def test_a_batch_that_does_not_fit_takes_as_many_micro_batches_as_it_needs() -> None:
    model = fit_step_time_model(measured(SATURATING))
    space = AsFewAsFit(replicas=2, largest_share=64)
    seconds = model.on(2, micro_batches=space.at)
    assert seconds(64) == model.seconds(64, replicas=2)
    assert seconds(1024) == model.seconds(1024, replicas=2, accumulation=8)
    assert seconds == model.on(
        2, micro_batches=space.at
    )  # a planner remembers what it believed for the same step times


def test_gpus_are_taken_to_synchronise_around_a_ring_and_logical_cpus_through_one() -> None:
    of_gpus = profile(measured(AFFINE))
    on_cpus = replace(of_gpus, fingerprint=replace(MACHINE, hardware={"kind": "CPU"}))
    assert model_of(of_gpus).formula.growth == "ring"
    assert model_of(on_cpus).formula.growth == "star"
