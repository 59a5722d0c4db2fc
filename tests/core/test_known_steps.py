"""S(B) from the trials of a simulated study."""

from __future__ import annotations

import pytest

from scalesearch.core.axis import Interval
from scalesearch.core.curve import CurvePoint
from scalesearch.core.forecast import Source
from scalesearch.core.known_steps import KnownSteps
from scalesearch.core.schedule_space import ConstantSpace
from scalesearch.core.simulate import Decays, true_curve
from scalesearch.core.space import BatchSizes, SearchSpace

from .simulated import EASY, constant, run

MAX_EXAMPLES = 400_000
SPACE = SearchSpace(
    batch_sizes=BatchSizes(low=16, high=256, multiple_of=None, divisor=1),
    learning_rate=Interval(1e-3, 2.0),
    momentum=None,
    schedule=ConstantSpace(),
)
TRUE = {o.parameters.global_batch_size: o for o in true_curve(EASY, (16, 64, 128, 256), decays=Decays(number=0))}


@pytest.fixture(scope="module")
def known() -> KnownSteps:
    results = tuple(
        run(
            EASY,
            constant(share * TRUE[size].parameters.learning_rate, global_batch_size=size),
            max_examples=MAX_EXAMPLES,
        )
        for size in (16, 64)
        for share in (0.7, 1.0)
    )
    return KnownSteps(results=results, space=SPACE, objective=EASY.objective("seconds"), max_examples=MAX_EXAMPLES)


def test_what_was_tuned_is_measured(known: KnownSteps) -> None:
    steps = known.steps_to_target()
    for size in (16, 64):
        found = steps.at(size)
        assert found is not None
        assert found.source is Source.MEASURED
        assert found.steps == pytest.approx(TRUE[size].steps, rel=0.25)


def test_beyond_it_the_model_forecasts_with_an_interval_that_holds_the_truth(known: KnownSteps) -> None:
    found = known.steps_to_target().at(128)
    assert found is not None
    assert found.source is Source.EXTRAPOLATED
    assert found.interval[0] < TRUE[128].steps < 1.2 * found.interval[1]
    wider = known.by_model(256)
    assert isinstance(wider, CurvePoint)
    assert wider.interval[1] / wider.steps > found.interval[1] / found.steps


def test_far_beyond_it_nothing_is_forecast(known: KnownSteps) -> None:
    assert known.steps_to_target().at(4096) is None


def test_where_trials_went_and_none_got_there_nothing_is_forecast(known: KnownSteps) -> None:
    missed = tuple(
        run(EASY, constant(0.1, global_batch_size=128), max_examples=MAX_EXAMPLES, seed=seed, max_steps=20)
        for seed in range(3)
    )
    assert not any(r.reached for r in missed)
    more = KnownSteps(
        results=(*known.results, *missed), space=SPACE, objective=known.objective, max_examples=MAX_EXAMPLES
    )
    assert more.steps_to_target().at(128) is None


@pytest.mark.parametrize("size", [512, 1024, 2048, 4096])
def test_what_is_forecast_beyond_it_is_no_faster_than_what_was_borne_and_gets_there(size: int) -> None:
    """A study of one batch size, whose best rate is just below the limit that all batch sizes share."""
    best = TRUE[256].parameters.learning_rate
    results = tuple(
        run(EASY, constant(share * best, global_batch_size=256), max_examples=MAX_EXAMPLES, seed=seed)
        for seed, share in enumerate((0.6, 0.85, 1.0))
    )
    space = SearchSpace(
        batch_sizes=BatchSizes(low=16, high=4096, multiple_of=None, divisor=1),
        learning_rate=Interval(1e-3, 50.0),
        momentum=None,
        schedule=ConstantSpace(),
    )
    study = KnownSteps(results=results, space=space, objective=EASY.objective("seconds"), max_examples=MAX_EXAMPLES)
    found = study.by_model(size)
    assert found is not None
    assert found.parameters.learning_rate <= 1.001 * best
    again = run(EASY, found.parameters, max_examples=16 * MAX_EXAMPLES, seed=9)
    assert again.reached is not None
    assert found.interval[0] < again.reached.steps < found.interval[1]
