from __future__ import annotations

from dataclasses import replace

import numpy as np

from scalesearch.core.memory import Memory
from scalesearch.core.results import TrialResult
from scalesearch.core.surrogate.belief import Belief, believe
from tests.core.simulated import EASY, constant, run

OBJECTIVE = EASY.objective("steps")


class Fit:
    """Fits, and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, results: tuple[TrialResult, ...]) -> Belief:
        self.count += 1
        return believe(results, objective=OBJECTIVE, max_examples=38_400, cost_per_step=lambda _: 1.0, seed=0)


def trial(number: int) -> TrialResult:
    return replace(run(EASY, constant(0.3 + 0.1 * number), max_examples=6_400), number=number)


def test_the_same_results_are_fitted_once_and_others_anew() -> None:
    memory, fit = Memory[Belief](), Fit()
    one, two = (trial(0),), (trial(0), trial(1))
    first = memory.of(one, "a", lambda: fit(one))
    assert memory.of((*one,), "a", lambda: fit(one)) is first
    assert fit.count == 1
    second = memory.of(two, "a", lambda: fit(two))
    assert fit.count == 2
    assert second.model is not None
    assert first.model is not None
    assert not np.array_equal(second.model.coefficients, first.model.coefficients)
    again = memory.of(one, "a", lambda: fit(one))
    assert again.model is not None
    np.testing.assert_array_equal(again.model.coefficients, first.model.coefficients)


def test_other_settings_are_fitted_anew() -> None:
    memory, fit = Memory[Belief](), Fit()
    results = (trial(0),)
    memory.of(results, "a", lambda: fit(results))
    memory.of(results, "b", lambda: fit(results))
    assert fit.count == 2
