from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scalesearch.core.axis import Interval
from scalesearch.core.parameters import Parameters
from scalesearch.core.proposal import Proposal
from scalesearch.core.range_trials import RANGE, RANGE_TRIALS, RangeTrials, start_of
from scalesearch.core.results import Outcome, TrialResult
from scalesearch.core.schedule_space import ConstantSpace
from scalesearch.core.space import BatchSizes, SearchSpace
from scalesearch.core.surrogate.belief import Belief
from scalesearch.core.surrogate.stability import Stability, log_point
from tests.core.simulated import constant

from .trials import OBJECTIVE, trial

SPACE = SearchSpace(
    batch_sizes=BatchSizes(low=8, high=512, multiple_of=None, divisor=1),
    learning_rate=Interval(1e-4, 10.0),
    momentum=None,
    schedule=ConstantSpace(),
)
START = constant(0.01, global_batch_size=32)
LADDER = RangeTrials(SPACE, 100_000, START)


def belief(stable: Sequence[float], unstable: Sequence[float]) -> Belief:
    points = [
        tuple(log_point(replace(START, schedule=constant(rate).schedule)) for rate in r) for r in (stable, unstable)
    ]
    return Belief(OBJECTIVE, LADDER.max_examples, lambda size: 2.0, Stability(*points))


def next_rung(
    stable: Sequence[float], unstable: Sequence[float] = (), *, pending: Sequence[Parameters] = ()
) -> Proposal | None:
    tried = [(rate, Outcome.CAPPED) for rate in stable] + [(rate, Outcome.DIVERGED) for rate in unstable]
    results = [trial(n, [0.9], how, batch=32, learning_rate=rate) for n, (rate, how) in enumerate(tried)]
    return LADDER.next(results, belief(stable, unstable), pending)


@pytest.mark.parametrize(
    ("stable", "unstable", "rate"),
    [
        ((), (), 0.01),
        ((0.01,), (), 0.03),
        ((0.01, 0.03, 0.09), (), 0.27),
        ((), (0.01,), 0.01 / 3),
        ((0.01,), (0.09,), 0.03),
        ((0.01, 0.03), (0.04,), None),
        ((10.0,), (), None),  # the edge of the space
    ],
)
def test_the_ladder_climbs_to_an_unstable_rate(
    stable: Sequence[float], unstable: Sequence[float], rate: float | None
) -> None:
    rung = next_rung(stable, unstable)
    if rate is None:
        assert rung is None
        return
    assert rung is not None
    assert (rung.why, rung.parameters.global_batch_size) == (RANGE, 32)
    assert rung.parameters.learning_rate == pytest.approx(rate)


def test_it_climbs_past_rungs_that_are_pending() -> None:
    rung = next_rung((0.01,), pending=[constant(0.03, global_batch_size=32)])
    assert rung is not None
    assert rung.parameters.learning_rate == pytest.approx(0.09)
    assert next_rung((0.01,), (0.09,), pending=[constant(0.03, global_batch_size=32)]) is None


def test_it_has_an_end() -> None:
    many: list[TrialResult] = [trial(n, [0.9], Outcome.CAPPED, batch=64) for n in range(RANGE_TRIALS)]
    assert LADDER.next(many, belief((0.01,), ())) is None


@pytest.mark.parametrize(
    ("max_examples", "momentum", "steps"),
    [
        (32 * 1000, None, 20.0),  # 2 % of a full length
        (32 * 300, None, 10.0),
        (32 * 1000, 0.95, 50.0),  # 2.5 / (1 − 0.95)
        (32 * 1000, 0.99, 50.0),  # but no more than 5 % of a full length
        (32 * 20, None, 5.0),
    ],
)
def test_a_rung_is_as_long_as_slow_divergence_takes_to_show(
    max_examples: int, momentum: float | None, steps: float
) -> None:
    ladder = RangeTrials(
        replace(SPACE, momentum=Interval(momentum, momentum) if momentum else None),
        max_examples,
        constant(0.01, global_batch_size=32, momentum=momentum),
    )
    rung = ladder.next([], belief((), ()))
    assert rung is not None
    assert rung.cap == pytest.approx(2.0 * steps)


def test_it_starts_at_the_first_guess_or_in_the_middle() -> None:
    assert start_of(SPACE, constant(50.0, global_batch_size=33)) == constant(10.0, global_batch_size=32)
    middle = start_of(SPACE, None)
    assert middle.global_batch_size == 64
    assert middle.learning_rate == pytest.approx((1e-4 * 10.0) ** 0.5)
