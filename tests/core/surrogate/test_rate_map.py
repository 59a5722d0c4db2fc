from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scalesearch.core.parameters import Parameters
from scalesearch.core.simulate import SimulatedWorkload
from scalesearch.core.simulate.workload import LearningRateMap
from scalesearch.core.surrogate.belief import curve_of, losses_of
from scalesearch.core.surrogate.rate_map import RateMap, fit_rate_map
from tests.core.simulated import EASY, constant, decaying, run

SIZES = (8, 32, 128, 512)


def fitted(workload: SimulatedWorkload, *, scale: float, exponent: float, sizes: tuple[int, ...] = SIZES) -> RateMap:
    """From two runs at each batch size, at rates that act alike and as far as the target or nearly so."""
    objective = workload.objective("steps")
    curves = []
    for size in sizes:
        for rate in (0.1, 0.3):
            parameters = decaying(scale * rate * size**-exponent, 60, global_batch_size=size)
            result = run(workload, parameters, max_examples=200 * size, goal="steps", seed=size)
            curve = curve_of(result, losses_of(result, objective))
            assert curve is not None
            curves.append(curve)
    initial = float(np.max(curves[0].losses))
    return fit_rate_map(curves, initial_loss=initial, target=workload.target, max_examples=100_000)


def test_rates_that_act_as_they_are_set() -> None:
    assert fitted(EASY, scale=1.0, exponent=0.0) == RateMap(0.0)


@pytest.mark.parametrize("exponent", [-0.25, 0.5, 1.0])
def test_the_exponent_of_rates_that_do_not(exponent: float) -> None:
    acts = replace(EASY, learning_rate=LearningRateMap(scale=0.1, batch_exponent=exponent, reference_batch=1.0))
    assert fitted(acts, scale=10.0, exponent=exponent) == RateMap(exponent)


def test_two_batch_sizes_tell_too_little() -> None:
    acts = replace(EASY, learning_rate=LearningRateMap(batch_exponent=0.5, reference_batch=1.0))
    assert fitted(acts, scale=1.0, exponent=0.5, sizes=(8, 512)) == RateMap(0.0)


@pytest.mark.parametrize(
    "parameters", [constant(0.3, global_batch_size=64), decaying(0.2, 10, 20, global_batch_size=8)]
)
def test_rates_are_set_and_act_by_a_power_of_the_batch_size(parameters: Parameters) -> None:
    rates, size = RateMap(0.5), parameters.global_batch_size
    acting = rates.acting(parameters)
    assert acting.learning_rate == pytest.approx(parameters.learning_rate * size**0.5)
    assert acting.schedule.boundaries == parameters.schedule.boundaries
    assert rates.as_set(acting).learning_rate == pytest.approx(parameters.learning_rate)
    assert RateMap().acting(parameters) is parameters
