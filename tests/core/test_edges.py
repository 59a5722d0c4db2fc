from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from scalesearch.core.axis import Interval
from scalesearch.core.edges import Edge, Edges, Limits, Meaning
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Cost, Outcome, Reached, TrialResult
from scalesearch.core.schedule import Constant, Linear, Piecewise
from scalesearch.core.schedule_space import ConstantSpace, LinearSpace, PiecewiseSpace
from scalesearch.core.simulate import true_cost
from scalesearch.core.space import BatchSizes, SearchSpace
from scalesearch.core.surrogate.stability import Stability
from tests.core.simulated import EASY, constant
from tests.core.test_planner import SPACE as STUDY_SPACE
from tests.core.test_planner import best_cost, planner, studied
from tests.core.test_planner_pending import asked

SPACE = SearchSpace(
    batch_sizes=BatchSizes(low=16, high=256, multiple_of=None, divisor=4),
    learning_rate=Interval(0.01, 1.0),
    momentum=Interval(0.5, 0.95),
    schedule=PiecewiseSpace(decays=2, boundaries=Interval(1_000, 20_000), decay_factor=Interval(0.1, 0.1)),
)
LIMITS = Limits(train_examples=5_000, max_examples=50_000)
SIDES = ("global_batch_size", "learning_rate", "momentum", "schedule.boundaries")


def point(
    *,
    batch: int = 64,
    rate: float = 0.1,
    momentum: float | None = 0.8,
    boundaries: Sequence[int] = (4_000,),
) -> Parameters:
    """Far from every edge, but for what is given."""
    schedule = Piecewise(learning_rate=rate, decay_factor=0.1, boundaries=tuple(boundaries))
    return Parameters(global_batch_size=batch, schedule=schedule, momentum=momentum)


def result(
    parameters: Parameters,
    *,
    examples: float | None = 30_000,
    outcome: Outcome = Outcome.CAPPED,
    baseline: bool = False,
) -> TrialResult:
    reached = None
    if examples is not None:
        steps = examples / parameters.global_batch_size
        reached = Reached(
            steps=steps, examples=examples, seconds=1.0, evaluation_step=int(steps), evaluation_examples=int(examples)
        )
    return TrialResult(
        number=0,
        parameters=parameters,
        seed=0,
        outcome=Outcome.REACHED if reached else outcome,
        reason="",
        cost=Cost(),
        reached=reached,
        is_baseline=baseline,
    )


def edges(
    leader: Parameters,
    *others: TrialResult,
    space: SearchSpace = SPACE,
    unstable: Sequence[tuple[int, float]] = (),
    widens: bool = True,
) -> Edges:
    """`unstable`: (batch, learning rate at momentum 0.8)."""
    points = tuple((math.log(b), math.log(rate / 0.2)) for b, rate in unstable)
    return Edges(
        space=space,
        leader=leader,
        results=[result(leader), *others],
        stability=Stability(unstable=points),
        limits=LIMITS,
        widens=widens,
    )


def only(found: Edges) -> Edge:
    [edge] = found.found()
    return edge


def test_far_from_every_edge_nothing_happens() -> None:
    assert edges(point()).found() == []
    assert edges(point()).widened() == SPACE


@pytest.mark.parametrize(
    ("leader", "key", "side", "reach"),
    [
        (point(batch=256), "global_batch_size", "high", 1024),
        (point(batch=16), "global_batch_size", "low", 4),
        (point(rate=0.8), "learning_rate", "high", 4.0),
        (point(rate=0.0125), "learning_rate", "low", 0.0025),
        (point(momentum=0.948), "momentum", "high", 0.9875),
        (point(boundaries=(4_000, 19_000)), "schedule.boundaries", "high", 50_000),
        (point(boundaries=(1_100, 4_000)), "schedule.boundaries", "low", 250),
    ],
)
def test_an_edge_is_widened_four_times_within_what_is_possible(
    leader: Parameters, key: str, side: str, reach: float
) -> None:
    edge = only(edges(leader))
    bound = getattr(SPACE.interval(key), side)
    assert (edge.key, edge.meaning) == (f"search.{key}.{side}", Meaning.WIDENED)
    assert (edge.bound, edge.reach) == (pytest.approx(bound), pytest.approx(reach))
    wider = edges(leader).widened()
    assert getattr(wider.interval(key), side) == pytest.approx(reach)
    for other in SIDES:
        for at in ("low", "high"):
            if (other, at) != (key, side):
                assert getattr(wider.interval(other), at) == getattr(SPACE.interval(other), at)


@pytest.mark.parametrize(("rate", "is_edge"), [(0.78, False), (0.8, True)])
def test_within_five_percent_of_the_logarithm(rate: float, is_edge: bool) -> None:
    """Of two decades, 5 % are a tenth of one: down to 0.794."""
    assert bool(edges(point(rate=rate)).found()) is is_edge


def test_momentum_is_seen_in_log_one_minus_it() -> None:
    """ln(0.5 / 0.05) = 2.3, so the edge reaches down to 1 − 0.05 · e^0.115 = 0.9439."""
    assert edges(point(momentum=0.943)).found() == []
    assert only(edges(point(momentum=0.9445))).key == "search.momentum.high"
    assert only(edges(point(momentum=0.51))).reach == 0.0
    none_less = replace(SPACE, momentum=Interval(0.0, 0.95))
    assert only(edges(point(momentum=0.01), space=none_less)).meaning is Meaning.LIMIT


def test_what_is_fixed_is_never_widened() -> None:
    fixed = replace(
        SPACE,
        batch_sizes=BatchSizes(low=64, high=64, multiple_of=None, divisor=4),
        learning_rate=Interval(0.1, 0.1),
        momentum=Interval(0.8, 0.8),
        schedule=ConstantSpace(),
    )
    leader = Parameters(global_batch_size=64, schedule=Constant(learning_rate=0.1), momentum=0.8)
    assert edges(leader, space=fixed).found() == []
    assert edges(leader, space=fixed).widened() == fixed
    plain = replace(fixed, momentum=None, learning_rate=Interval(0.1, 10.0))
    assert only(edges(replace(leader, momentum=None), space=plain)).key == "search.learning_rate.low"


def test_an_edge_is_widened_once() -> None:
    beyond = point(rate=3.9)
    assert edges(beyond).widened().learning_rate.high == pytest.approx(4.0)
    edge = only(edges(beyond))
    assert (edge.meaning, edge.reach) == (Meaning.TOO_SMALL, pytest.approx(4.0))
    assert only(edges(point(rate=2.0))).meaning is Meaning.WIDENED
    assert "`search.learning_rate.high = 1` was widened" in edge.sentence
    assert "too small; set it higher" in edge.sentence


def test_an_edge_stays_open_once_a_trial_was_beyond_it() -> None:
    tried = result(point(rate=2.0), examples=None)
    assert edges(point(), tried).widened().learning_rate.high == pytest.approx(4.0)
    assert edges(point(), tried).found() == []
    nothing_better = only(edges(point(rate=0.9), tried))
    assert (nothing_better.meaning, nothing_better.because) == (
        Meaning.WIDENED,
        "nothing better was found beyond it",
    )
    assert "yet to go there" in only(edges(point(rate=0.9))).sentence


def test_a_baseline_may_lie_beyond_an_edge() -> None:
    baseline = result(point(rate=2.5, batch=1024), examples=None, baseline=True)
    assert edges(point(), baseline).widened() == SPACE


@pytest.mark.parametrize(("batch", "rate"), [(64, 1.2), (64, 0.99), (256, 1.1)])
def test_where_higher_rates_are_unstable_it_is_not_the_spaces_edge(batch: int, rate: float) -> None:
    """At the leader's batch size, or at a larger one."""
    found = edges(point(rate=0.9), unstable=[(batch, rate)])
    edge = only(found)
    assert (edge.meaning, edge.reach) == (Meaning.UNSTABLE, None)
    assert found.widened() == SPACE
    assert "unstable" in edge.sentence
    assert "`search.learning_rate.high = 1`" in edge.sentence


@pytest.mark.parametrize(("batch", "rate"), [(64, 2.0), (16, 1.0)])
def test_instability_far_beyond_the_edge_or_of_a_smaller_batch_forbids_nothing(batch: int, rate: float) -> None:
    assert only(edges(point(rate=0.9), unstable=[(batch, rate)])).meaning is Meaning.WIDENED
    at_the_low_edge = only(edges(point(rate=0.0115), unstable=[(64, 0.0125)]))
    assert (at_the_low_edge.key, at_the_low_edge.meaning) == ("search.learning_rate.low", Meaning.WIDENED)


def test_beyond_a_widened_edge_rates_may_be_unstable_too() -> None:
    edge = only(edges(point(rate=3.9), unstable=[(64, 4.1)]))
    assert (edge.meaning, edge.reach) == (Meaning.UNSTABLE, pytest.approx(4.0))


def test_no_batch_is_larger_than_what_fits() -> None:
    too_large = result(point(batch=512), examples=None, outcome=Outcome.OUT_OF_MEMORY)
    edge = only(edges(point(batch=256), too_large))
    assert edge.meaning is Meaning.MEMORY
    assert "256: a global batch of 512 did not fit" in edge.sentence
    assert edges(point(batch=256), too_large).widened().batch_sizes.values()[-1] == 256
    larger = result(point(batch=1024), examples=None, outcome=Outcome.OUT_OF_MEMORY)
    assert edges(point(batch=256), larger).widened().batch_sizes.values()[-1] == 512


def test_batches_end_with_the_data_and_with_what_replicas_can_share() -> None:
    large = replace(SPACE, batch_sizes=BatchSizes(low=4, high=4096, multiple_of=None, divisor=4))
    for batch, words in ((4096, "training split"), (4, "replicas")):
        edge = only(edges(point(batch=batch, boundaries=(6_000,)), space=large))
        assert edge.meaning is Meaning.LIMIT
        assert words in edge.sentence
        assert edges(point(batch=batch, boundaries=(6_000,)), space=large).widened() == large


def test_multiples_stay_multiples() -> None:
    multiples = replace(SPACE, batch_sizes=BatchSizes(low=96, high=960, multiple_of=48, divisor=4))
    assert edges(point(batch=960), space=multiples).widened().batch_sizes.values()[-1] == 3840
    assert edges(point(batch=96), space=multiples).widened().batch_sizes.values()[0] == 48


def test_a_boundary_that_a_run_does_not_live_to_see_is_at_no_edge() -> None:
    assert edges(point(boundaries=(4_000, 19_500))).found() != []
    unseen = point(boundaries=(4_000, 19_500))
    found = replace(edges(unseen), results=[result(unseen, examples=15_000)])
    assert found.found() == []
    full = replace(SPACE, schedule=replace(SPACE.schedule, boundaries=Interval(1_000, 50_000)))
    late = point(boundaries=(4_000, 48_000))
    at_the_end = only(replace(edges(late, space=full), results=[result(late, examples=49_000)]))
    assert at_the_end.meaning is Meaning.LIMIT
    assert "trial.max_examples" in at_the_end.sentence


def test_linear_decays_and_factors_have_edges() -> None:
    linear = replace(
        SPACE, schedule=LinearSpace(decay_examples=Interval(2_000, 20_000), end_factor=Interval(0.01, 0.5))
    )
    schedule = Linear(learning_rate=0.1, decay_examples=20_000, end_factor=0.49)
    leader = Parameters(global_batch_size=64, schedule=schedule, momentum=0.8)
    reaches = {edge.key: edge.reach for edge in edges(leader, space=linear).found()}
    assert reaches == {
        "search.schedule.decay_examples.high": 50_000,
        "search.schedule.end_factor.high": 1.0,
    }


def test_another_sampler_is_only_told() -> None:
    found = edges(point(rate=0.9), widens=False)
    edge = only(found)
    assert (edge.meaning, edge.reach) == (Meaning.TOO_SMALL, None)
    assert found.widened() == SPACE
    assert edge.sentence == (
        "the optimum lies at `search.learning_rate.high = 1`: the space is too small; set it higher in a new study"
    )


def test_every_widened_space_holds_what_the_given_one_held() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        at = {a.name: a.clip(a.low * (a.high / a.low) ** random.random()) if a.log else a.low for a in SPACE.axes()}
        leader = SPACE.parameters(at)
        wider = edges(leader).widened()
        for key in SPACE.searched():
            given, now = SPACE.interval(key), wider.interval(key)
            assert now.low <= given.low < given.high <= now.high
        assert wider.nearest(leader).global_batch_size == leader.global_batch_size


BEST_IS_BEYOND = replace(
    STUDY_SPACE,
    batch_sizes=BatchSizes(low=4, high=16, multiple_of=None, divisor=1),
    learning_rate=Interval(1e-3, 0.4),
)


def test_an_optimum_beyond_the_space_is_found() -> None:
    """It lies at batch 64 and a rate of about 1.2, four and three times as high as the space."""
    given = planner(space=BEST_IS_BEYOND, first_guess=constant(0.05, global_batch_size=16))
    plans = replace(given, limits=Limits(train_examples=EASY.train_examples, max_examples=given.max_examples))
    done = studied(plans, trials=22)
    assert true_cost(EASY, done.recommended, "seconds") < 1.3 * best_cost("seconds")
    sizes = {p.parameters.global_batch_size for p in done.proposals}
    rates = [p.parameters.learning_rate for p in done.proposals]
    assert 32 <= max(sizes) <= 64
    assert 0.4 < max(rates) <= 1.6 * (1 + 1e-9), "each edge is widened once"
    for count in (12, 20):
        assert plans.propose(done.results[:count]) == done.proposals[count], "as if it had never stopped"
    held = studied(given, trials=14)
    assert true_cost(EASY, held.recommended, "seconds") > 1.5 * best_cost("seconds")
    assert all(p.parameters.global_batch_size <= 16 for p in held.proposals)


def test_nothing_is_widened_before_a_hit() -> None:
    given = planner(space=BEST_IS_BEYOND, first_guess=constant(0.4, global_batch_size=16))
    plans = replace(given, limits=Limits(train_examples=EASY.train_examples, max_examples=given.max_examples))
    for proposal in asked(plans, [], 4):
        assert proposal.parameters.learning_rate <= 0.4
