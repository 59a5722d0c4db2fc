from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from scalesearch.core.results import Outcome, TrialResult
from scalesearch.core.surrogate.belief import Belief, believe
from scalesearch.core.surrogate.cost import Costs
from scalesearch.core.surrogate.switch import JUDGED, LARGEST, LEAST_JUDGED, forecast_error
from tests.core.simulated import EASY, constant, decaying, run

MAX_EXAMPLES = 1000 * 64
RIGHT = [constant(r) for r in (0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)]


def believed(results: Sequence[TrialResult]) -> Belief:
    return believe(
        results, objective=EASY.objective("steps"), max_examples=MAX_EXAMPLES, cost_per_step=lambda b: 1.0, seed=0
    )


def right(count: int = len(RIGHT)) -> list[TrialResult]:
    """Hits of rising rate, that the loss curves forecast well."""
    return [run(EASY, p, max_examples=MAX_EXAMPLES, goal="steps", seed=i) for i, p in enumerate(RIGHT[:count])]


def stuck(number: int) -> TrialResult:
    """A run that the loss curves had promised a hit, and that missed it by far: its curve is that of a lower rate."""
    like = run(EASY, constant(0.05 + 0.001 * number), max_examples=150 * 64, goal="steps", seed=number)
    assert like.reached is None
    return replace(like, parameters=decaying(0.9 + 0.01 * number, 40 + number), outcome=Outcome.CAPPED)


def test_the_loss_curves_are_in_charge_at_first_and_while_they_are_right() -> None:
    for count in (1, LEAST_JUDGED, len(RIGHT)):
        belief = believed(right(count))
        assert belief.model_in_charge == "loss curves"
        assert belief.scalar is None
        assert belief.attributed("improvement") == "improvement"


def test_the_scalar_model_takes_over_after_misses() -> None:
    """Once it has seen the first of them, it forecasts the others."""
    belief = believed([*right(5), *[stuck(i) for i in range(5)]])
    assert belief.model_in_charge == "scalar"
    assert belief.attributed("improvement") == "improvement (scalar model)"
    points = [constant(0.5), decaying(0.93, 43)]
    hit, miss = belief.expected_costs(points, cap=1e4).hit.mean(axis=0)
    assert miss > 1.5 * hit, "as it was observed"
    few = believed([*right(5), stuck(0), stuck(1)])
    assert few.model_in_charge == "loss curves", "of these, the scalar model did not know the first beforehand either"


def test_the_loss_curves_are_in_charge_again_once_the_misses_are_long_ago() -> None:
    misses = [stuck(i) for i in range(5)]
    later = [run(EASY, constant(0.31 + 0.05 * i), max_examples=MAX_EXAMPLES, goal="steps") for i in range(JUDGED)]
    assert believed([*right(5), *misses, *later]).model_in_charge == "loss curves"


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": Outcome.DIVERGED},
        {"outcome": Outcome.INTERRUPTED},
        {"parameters": RIGHT[0]},
        {"measurements": ()},
    ],
    ids=["diverged", "interrupted", "repeated", "empty"],
)
def test_what_tells_nothing_about_forecasts_is_not_judged(change: dict[str, object]) -> None:
    results = [*right(5), *[replace(stuck(i), **change) for i in range(5)]]
    assert believed(results).model_in_charge == "loss curves"


def test_repeats_do_not_hide_misses() -> None:
    misses = [stuck(i) for i in range(5)]
    assert believed([*right(5), *misses, *right(5), *right(5)]).model_in_charge == "scalar"


def test_the_error_of_a_forecast() -> None:
    def error(spent: float, *, miss: float = 0.0, reached: bool = True) -> float:
        return forecast_error(spent, Costs(np.full((2, 1), 100.0), np.full((2, 1), miss)), reached=reached)

    assert error(150.0) == pytest.approx(np.log(1.5))
    assert error(100.0 / 1.5) == pytest.approx(np.log(1.5))
    assert error(1e6) == error(100.0, miss=0.9) == LARGEST, "a hit that was said to be out of reach"
    assert error(150.0, reached=False) == pytest.approx(np.log(1.5)), "promised too soon"
    assert error(50.0, reached=False) == 0.0, "stopped before it was promised"
    assert error(150.0, reached=False, miss=0.9) == 0.0, "said to be out of reach, and it was"


def test_before_the_first_hit_nothing_is_judged() -> None:
    belief = believed([stuck(i) for i in range(8)])
    assert belief.model_in_charge == "loss curves"
    assert believed([*[stuck(i) for i in range(8)], *right(1)]).model_in_charge == "loss curves"


def test_who_is_in_charge_also_leads() -> None:
    belief = believed([*right(5), *[stuck(i) for i in range(5)]])
    assert belief.incumbent is not None
    assert belief.incumbent.parameters in RIGHT
    gains, costs = belief.gains([decaying(0.93, 43), constant(0.45)], cap=belief.cap_factor * belief.incumbent.cost)
    assert np.isfinite(gains).all()
    assert np.isfinite(costs).all()
