from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scalesearch.core.curve_evidence import Evidence, weigh
from scalesearch.core.results import TrialResult
from scalesearch.core.simulate.workload import LearningRateMap
from scalesearch.core.surrogate.rate_map import RateMap
from tests.core.simulated import EASY, constant, run

GOAL = EASY.objective("steps")
MAX_EXAMPLES = 100_000


def runs(*sizes: int, exponent: float = 0.0) -> list[TrialResult]:
    """Two at each batch size, whose rates act alike."""
    acts = LearningRateMap(scale=1.0, batch_exponent=exponent, reference_batch=1.0)
    workload = replace(EASY, learning_rate=acts)
    return [
        run(
            workload,
            constant(rate * size**-exponent, global_batch_size=size),
            max_examples=MAX_EXAMPLES,
            goal="steps",
            seed=size,
        )
        for size in sizes
        for rate in (0.05, 0.2)
    ]


def weighed(results: Sequence[TrialResult]) -> Evidence:
    return weigh(results, objective=GOAL, max_examples=MAX_EXAMPLES, seed=0)


def test_costs_are_in_units_of_the_fewest_steps_seen() -> None:
    results = runs(16, 64, 256)
    belief = weighed(results).belief
    best = {
        size: min(r.reached.steps for r in results if r.parameters.global_batch_size == size and r.reached)
        for size in (16, 256)
    }
    assert all(1.0 / belief.cost_per_step(size) == pytest.approx(steps) for size, steps in best.items())
    assert 1.0 / belief.cost_per_step(1024) == pytest.approx(best[256] / 2.0), "half as steep as perfect scaling"
    assert 1.0 / belief.cost_per_step(4) == pytest.approx(best[16] * 2.0)


@pytest.mark.parametrize("exponent", [0.0, 0.5])
def test_results_have_the_rates_at_which_they_acted(exponent: float) -> None:
    results = runs(16, 64, 256, exponent=exponent)
    evidence = weighed(results)
    assert evidence.rates == RateMap(exponent)
    for given, acting in zip(results, evidence.results, strict=True):
        assert acting.parameters == RateMap(exponent).acting(given.parameters)
        assert acting.measurements == given.measurements
