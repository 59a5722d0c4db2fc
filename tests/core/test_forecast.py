"""Forecasts from a curve S(B) and step times that are given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from scalesearch.core.curve import CurvePoint
from scalesearch.core.forecast import Forecast, Source, StepsToTarget, forecasts, pays_up_to, well_tuned
from scalesearch.core.parameters import Parameters
from scalesearch.core.schedule import Piecewise
from scalesearch.core.step_time_model import StepTimeFormula, fit_step_time_model

from .profiles import points

FORMULA = StepTimeFormula(
    launch=1e-3, per_example=1e-5, saturation=1.0, contention=0.0, synchronisation=1e-3, growth="ring", accumulating=0.0
)
MODEL = fit_step_time_model(points(FORMULA, shares=[8, 16, 32, 64, 128, 256, 512], replicas=[1, 2, 4]))


def at(size: int, steps: float, *, rate: float = 0.1, boundary: float = 0.5, wide: float = 1.05) -> CurvePoint:
    schedule = Piecewise(learning_rate=rate, decay_factor=0.1, boundaries=(round(boundary * steps * size),))
    parameters = Parameters(global_batch_size=size, schedule=schedule, momentum=0.9)
    return CurvePoint(parameters=parameters, steps=steps, interval=(steps / wide, steps * wide))


def scaling(size: int) -> float:
    """S(B) with a critical batch size of 256."""
    return 100.0 * (1.0 + 256 / size)


CURVE = StepsToTarget({b: at(b, scaling(b)) for b in (16, 64, 256, 1024)})


def sizes(replicas: int) -> Sequence[int]:
    return [replicas * 2**k for k in range(12) if 16 <= replicas * 2**k <= 2048]


def rows(*replicas: int, largest_share: int | None = None, steps: StepsToTarget = CURVE) -> list[Forecast]:
    return forecasts(steps, MODEL, replicas=replicas, sizes=sizes, largest_share=largest_share)


def test_more_replicas_take_larger_batches_and_less_time_for_more_examples() -> None:
    one, two, four = rows(4, 1, 2)
    assert [r.replicas for r in (one, two, four)] == [1, 2, 4]
    assert (one.speed_up, one.efficiency, one.examples_ratio) == (1.0, 1.0, 1.0)
    assert one.parameters.global_batch_size <= two.parameters.global_batch_size <= four.parameters.global_batch_size
    assert one.seconds > two.seconds > four.seconds
    assert four.examples_ratio >= two.examples_ratio >= 1.0
    assert four.speed_up == pytest.approx(one.seconds / four.seconds)
    assert four.efficiency == pytest.approx(four.speed_up / 4)
    assert four.device_seconds == pytest.approx(4 * four.seconds)


def test_the_best_batch_is_that_of_the_least_time() -> None:
    [row] = rows(2)
    times = {b: CURVE.at(b).steps * MODEL.seconds(b, replicas=2) for b in sizes(2) if CURVE.at(b)}
    assert row.parameters.global_batch_size == min(times, key=times.__getitem__)
    assert row.seconds == pytest.approx(min(times.values()))


def test_what_is_measured_and_what_is_not_is_told_apart() -> None:
    assert CURVE.at(64).source is Source.MEASURED
    assert CURVE.at(128).source is Source.INTERPOLATED
    assert CURVE.at(2048) is None
    beyond = StepsToTarget(CURVE.points, lambda size: at(size, 110.0))
    assert beyond.at(2048).source is Source.EXTRAPOLATED
    assert [r.is_profiled for r in rows(2, 3, 4, 8)] == [True, False, True, False]


def test_between_measured_sizes_everything_is_interpolated_in_its_logarithm() -> None:
    curve = StepsToTarget({16: at(16, 800.0, rate=0.1, boundary=0.4), 256: at(256, 200.0, rate=0.4, boundary=0.9)})
    known = curve.at(64)
    assert known.steps == pytest.approx(400.0)
    assert known.parameters.learning_rate == pytest.approx(0.2)
    assert known.parameters.momentum == pytest.approx(0.9)
    [boundary] = known.parameters.schedule.boundaries
    assert boundary / (known.steps * 64) == pytest.approx(math.sqrt(0.4 * 0.9), rel=1e-3)
    assert known.interval[1] / known.steps > 1.05  # less is known than where it was measured


def test_a_number_of_replicas_that_was_not_timed_has_a_wider_interval() -> None:
    [four, eight] = forecasts(CURVE, MODEL, replicas=[4, 8], sizes=lambda n: [256], largest_share=None)
    assert eight.interval[1] / eight.seconds > 1.2 * four.interval[1] / four.seconds
    assert four.interval[0] < four.seconds < four.interval[1]


def test_a_batch_that_does_not_fit_is_not_recommended() -> None:
    [free], [limited] = rows(2), rows(2, largest_share=32)
    assert free.parameters.global_batch_size > 64
    assert limited.parameters.global_batch_size == 64


def test_accumulation_reaches_it_where_it_is_asked_for() -> None:
    [row] = forecasts(CURVE, MODEL, replicas=[2], sizes=lambda n: [1024], largest_share=128, accumulates=True)
    assert row.parameters.accumulation == 4
    assert not forecasts(CURVE, MODEL, replicas=[2], sizes=lambda n: [1024], largest_share=128)


def test_more_replicas_stop_paying_where_nothing_is_gained() -> None:
    flat = StepsToTarget({b: at(b, 1000.0) for b in (16, 2048)})
    assert pays_up_to(rows(1, 2, 4, steps=flat)) == 1
    costly = fit_step_time_model(
        points(replace(FORMULA, per_example=1e-3), shares=[8, 32, 128, 512], replicas=[1, 2, 4])
    )
    paying = forecasts(CURVE, costly, replicas=[1, 2, 4], sizes=sizes, largest_share=None)
    assert pays_up_to(paying) == 4
    assert pays_up_to(rows(4)) == 4


def test_a_batch_size_that_others_prove_badly_tuned_is_not_gone_by() -> None:
    points = {16: at(16, 1000.0), 32: at(32, 900.0), 64: at(64, 300.0), 128: at(128, 380.0)}
    # 32 examples need at most twice the steps of 64; 128 no more than 64.
    assert set(well_tuned(points)) == {16, 64}
