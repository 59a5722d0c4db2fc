from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from scalesearch.core.axis import Interval
from scalesearch.core.candidates import Candidates
from scalesearch.core.parameters import Parameters
from scalesearch.core.schedule import Constant
from scalesearch.core.schedule_space import ConstantSpace, LinearSpace, PiecewiseSpace
from scalesearch.core.space import BatchSizes, SearchSpace
from scalesearch.core.surrogate.belief import Belief, believe
from scalesearch.core.surrogate.modes import Array
from tests.core.simulated import EASY, constant, decaying, run

MAX_EXAMPLES = 500 * 64
PIECEWISE = PiecewiseSpace(decays=2, boundaries=Interval(500, MAX_EXAMPLES), decay_factor=Interval(0.05, 0.5))
SPACES = {
    "piecewise": SearchSpace(
        batch_sizes=BatchSizes(low=8, high=4096, multiple_of=None, divisor=1),
        learning_rate=Interval(1e-3, 3.0),
        momentum=None,
        schedule=PIECEWISE,
    ),
    "momentum": SearchSpace(
        batch_sizes=BatchSizes(low=8, high=512, multiple_of=None, divisor=4),
        learning_rate=Interval(1e-4, 1.0),
        momentum=Interval(0.5, 0.99),
        schedule=PIECEWISE,
    ),
    "linear": SearchSpace(
        batch_sizes=BatchSizes(low=64, high=64, multiple_of=None, divisor=1),
        learning_rate=Interval(1e-3, 3.0),
        momentum=Interval(0.9, 0.9),
        schedule=LinearSpace(decay_examples=Interval(1000, MAX_EXAMPLES), end_factor=Interval(1e-3, 0.5)),
    ),
    "multiples": SearchSpace(
        batch_sizes=BatchSizes(low=48, high=480, multiple_of=48, divisor=3),
        learning_rate=Interval(1e-3, 3.0),
        momentum=None,
        schedule=ConstantSpace(),
    ),
}


def belief(*parameters: Parameters) -> Belief:
    results = [run(EASY, p, max_examples=MAX_EXAMPLES, seed=i) for i, p in enumerate(parameters)]
    return believe(
        results,
        objective=EASY.objective("steps"),
        max_examples=MAX_EXAMPLES,
        cost_per_step=lambda b: 1.0,
        seed=0,
    )


KNOWN = belief(constant(0.5), constant(3.5), decaying(1.0, 60))
UNKNOWN = belief()


def candidates(
    space: SearchSpace, known: Belief = KNOWN, *, seed: int = 0, start: Parameters | None = None
) -> Candidates:
    return Candidates(
        space=space,
        rng=np.random.default_rng(seed),
        belief=known,
        horizon=lambda size: MAX_EXAMPLES / size,
        start=space.nearest(start or constant(0.1)),
    )


def rates_above(wanted: float, pool: Sequence[Parameters]) -> Array:
    """A score that is best at an effective rate."""
    return np.array([abs(np.log(p.effective_learning_rate / wanted)) for p in pool])


def is_inside(space: SearchSpace, parameters: Parameters) -> bool:
    at = space.coordinates(parameters)
    names = {a.name for a in space.axes()}
    inside = all(a.low <= at[a.name] <= a.high for a in space.axes()) and set(at) == names
    rate_fits = (
        space.learning_rate.low * (1 - 1e-9) <= parameters.learning_rate <= space.learning_rate.high * (1 + 1e-9)
    )
    return inside and rate_fits and parameters.global_batch_size in space.batch_sizes.values()


@pytest.mark.parametrize("known", [KNOWN, UNKNOWN], ids=["known", "unknown"])
@pytest.mark.parametrize("name", SPACES)
def test_candidates_are_in_the_space(name: str, known: Belief) -> None:
    space = SPACES[name]
    pool, scores = candidates(space, known).search(lambda c: rates_above(0.2, c))
    assert len(pool) == len(scores) > 100
    for parameters in pool:
        assert is_inside(space, parameters)
        assert parameters.momentum is None if space.momentum is None else space.momentum.low <= parameters.momentum  # type: ignore[operator]
        assert replace(
            parameters, schedule=replace(parameters.schedule, learning_rate=1.0)
        ).schedule.boundaries == tuple(b for b in sorted(parameters.schedule.boundaries))


@pytest.mark.parametrize("name", SPACES)
def test_a_candidate_survives_the_way_through_its_coordinates(name: str) -> None:
    """What a sampler is told as coordinates is what the planner meant."""
    space = SPACES[name]
    pool, _ = candidates(space).search(lambda c: rates_above(0.2, c))
    for parameters in pool[::10]:
        again = space.parameters(space.coordinates(parameters))
        assert again.global_batch_size == parameters.global_batch_size
        assert again.learning_rate == pytest.approx(parameters.learning_rate)
        np.testing.assert_allclose(again.schedule.boundaries, parameters.schedule.boundaries, rtol=1e-3, atol=2)


@pytest.mark.parametrize("name", ["piecewise", "momentum", "multiples"])
def test_rates_are_below_the_limit(name: str) -> None:
    space = SPACES[name]
    pool, _ = candidates(space).search(lambda c: rates_above(100.0, c))
    for parameters in pool:
        limit = float(KNOWN.stability.log_limit(np.array([np.log(parameters.global_batch_size)]))[0])
        slowest = space.axes()[1].low
        assert parameters.effective_learning_rate <= max(np.exp(limit), slowest) * (1 + 1e-6)


def test_batch_sizes_are_near_those_that_were_tried() -> None:
    pool, _ = candidates(SPACES["piecewise"]).search(lambda c: rates_above(0.2, c))
    sizes = {p.global_batch_size for p in pool}
    assert {16, 32, 64, 128, 256} <= sizes
    assert 4096 not in {p.global_batch_size for p in pool[:100]}


def test_no_decay_is_among_the_candidates() -> None:
    """A boundary at the upper limit of the space, past the end of every run."""
    pool, _ = candidates(SPACES["piecewise"]).search(lambda c: rates_above(0.2, c))
    assert any(min(p.schedule.boundaries) >= MAX_EXAMPLES - 1 for p in pool)
    assert any(min(p.schedule.boundaries) < 0.5 * MAX_EXAMPLES for p in pool)


def test_the_search_closes_in_on_the_best() -> None:
    wanted = constant(0.2, global_batch_size=32)

    def distance(pool: Sequence[Parameters]) -> Array:
        return np.array(
            [
                abs(np.log(p.effective_learning_rate / wanted.effective_learning_rate))
                + abs(np.log2(p.global_batch_size / wanted.global_batch_size))
                for p in pool
            ]
        )

    pool, scores = candidates(SPACES["piecewise"]).search(distance)
    np.testing.assert_array_equal(scores, distance(pool))
    assert scores.min() < 0.02
    assert np.median(scores[-100:]) < np.median(scores[:100])


def test_the_same_random_numbers_give_the_same_candidates() -> None:
    first, again, other = (
        candidates(SPACES["momentum"], seed=s).search(lambda c: rates_above(0.2, c))[0] for s in (0, 0, 1)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("known", [KNOWN, UNKNOWN], ids=["known", "unknown"])
def test_without_decay_is_a_constant_rate_below_the_limit(name: str, known: Belief) -> None:
    space = SPACES[name]
    explore = candidates(space, known).without_decay()
    assert is_inside(space, explore)
    assert min(explore.schedule.boundaries, default=MAX_EXAMPLES) >= MAX_EXAMPLES - 2
    limit = float(known.stability.log_limit(np.array([np.log(explore.global_batch_size)]))[0])
    if np.isfinite(limit):
        assert np.log(explore.effective_learning_rate) < max(limit, np.log(space.axes()[1].low) + 1e-9)


def test_without_decay_a_lower_rate_follows_each_that_was_measured() -> None:
    space, rates = SPACES["piecewise"], []
    measured: set[Parameters] = set()
    for _ in range(4):
        explore = replace(candidates(space), measured=frozenset(measured)).without_decay()
        measured.add(explore)
        rates.append(explore.learning_rate)
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == 4
    lowest = space.nearest(constant(space.learning_rate.low))
    replace(candidates(space), measured=frozenset({*measured, lowest})).without_decay()  # comes to an end


def test_with_nothing_known_it_runs_near_the_start() -> None:
    """A rate at the upper edge of the space would be unstable almost surely."""
    start = constant(0.05)
    assert candidates(SPACES["piecewise"], UNKNOWN, start=start).without_decay().learning_rate < 1.0


def test_a_constant_space_gives_constant_schedules() -> None:
    pool, _ = candidates(SPACES["multiples"]).search(lambda c: rates_above(0.2, c))
    assert all(isinstance(p.schedule, Constant) for p in pool)
