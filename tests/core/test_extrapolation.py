from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from scalesearch.core.extrapolation import misses_target
from scalesearch.core.results import Measurement, Objective

LOSS = Objective(metric="loss", direction="minimize", target=0.1, minimize="steps")
ACCURACY = Objective(metric="loss", direction="maximize", target=0.9, minimize="steps")
CAP = 10_000


def measured(curve: Callable[[float], float], *, until: int = 5_000, noise: float = 0.0) -> list[Measurement]:
    """Forty evaluations up to `until` examples, after one at the start."""
    random = np.random.default_rng(0)
    return [
        Measurement(
            step=int(examples) // 64,
            examples=int(examples),
            train_seconds=0.0,
            elapsed_seconds=0.0,
            train_loss=math.nan,
            metrics={"loss": curve(float(examples)) * math.exp(noise * random.standard_normal())},
        )
        for examples in (0, *np.linspace(until / 40, until, 40))
    ]


def stops(
    points: Sequence[Measurement], *, objective: Objective = LOSS, boundaries: Sequence[int] = (), cap: float = CAP
) -> bool:
    return misses_target(points, objective, boundaries=boundaries, cap_examples=cap)


def flat(examples: float) -> float:
    return 0.3 + 2.0 * math.exp(-examples / 300)


def on_its_way(examples: float) -> float:
    """At 0.1 after 7,000 examples."""
    return 2.0 * math.exp(-examples * math.log(20.0) / 7_000)


def too_slow(examples: float) -> float:
    """At 0.1 after 20,000 examples."""
    return 2.0 * math.exp(-examples * math.log(20.0) / 20_000)


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_a_flat_curve_is_stopped(noise: float) -> None:
    assert stops(measured(flat, noise=noise))


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_a_curve_on_its_way_is_not(noise: float) -> None:
    assert not stops(measured(on_its_way, noise=noise))


def test_a_curve_that_would_arrive_after_the_cap_is_stopped_only_if_there_is_one() -> None:
    assert stops(measured(too_slow))
    assert not stops(measured(too_slow), cap=40_000)


def test_a_rising_curve_is_stopped() -> None:
    assert stops(measured(lambda e: 0.3 + e / 50_000))


def test_a_curve_just_above_the_target_is_not_stopped_for_its_noise() -> None:
    assert not stops(measured(lambda e: 0.102, noise=0.03))


@pytest.mark.parametrize("boundary", [5_001, 7_000, CAP - 1])
def test_never_while_a_decay_is_ahead(boundary: int) -> None:
    assert not stops(measured(flat), boundaries=(1_000, boundary))


def test_a_decay_after_the_cap_does_not_help() -> None:
    assert stops(measured(flat), boundaries=(CAP + 1,))


def test_only_what_came_after_the_last_decay_counts() -> None:
    """Steep before the boundary, flat since; and flat before, falling since."""

    def settled(examples: float) -> float:
        return 2.0 * math.exp(-examples / 2_000) if examples < 3_500 else 0.3

    def falling(examples: float) -> float:
        return 0.5 if examples < 3_500 else 0.5 * math.exp(-(examples - 3_500) / 2_500)

    assert stops(measured(settled), boundaries=(3_500,))
    assert not stops(measured(falling), boundaries=(3_500,))


def test_right_after_a_decay_it_is_too_early_to_tell() -> None:
    assert not stops(measured(flat), boundaries=(4_800,))


def test_a_few_evaluations_are_not_enough() -> None:
    assert stops(measured(flat))
    assert not stops(measured(flat)[:6])


def test_of_a_metric_of_which_more_is_better_a_flat_low_one_is_stopped() -> None:
    assert stops(measured(lambda e: 0.6), objective=ACCURACY)
    assert not stops(measured(lambda e: 0.5 + 0.3 * e / 5_000), objective=ACCURACY)
    assert stops(measured(lambda e: 0.8 - 0.1 * e / 5_000), objective=ACCURACY)


def test_what_cannot_be_judged_is_left_alone() -> None:
    without = Objective(metric="loss", direction="minimize", target=None, minimize="metric")
    assert not stops(measured(flat), objective=without)
    negative = Objective(metric="loss", direction="minimize", target=-1.0, minimize="steps")
    assert not stops(measured(lambda e: -0.5), objective=negative)
    assert not stops(measured(lambda e: 0.0 if e > 4_000 else 0.3), objective=LOSS)
