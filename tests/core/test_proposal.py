from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scalesearch.core.accumulation import AsFewAsFit
from scalesearch.core.axis import Interval
from scalesearch.core.parameters import Parameters
from scalesearch.core.proposal import smallest_too_large, space_that_fits
from scalesearch.core.results import Outcome, TrialResult
from scalesearch.core.schedule import Constant
from scalesearch.core.schedule_space import ConstantSpace
from scalesearch.core.space import BatchSizes, SearchSpace

from .trials import trial

SPACE = SearchSpace(
    batch_sizes=BatchSizes(low=16, high=256, multiple_of=None, divisor=1),
    learning_rate=Interval(1e-3, 1.0),
    momentum=None,
    schedule=ConstantSpace(),
)


@pytest.mark.parametrize(("too_large", "left"), [((), 256), ((256,), 128), ((256, 64), 32), ((16,), 16)])
def test_the_space_ends_below_what_ran_out_of_memory(too_large: Sequence[int], left: int) -> None:
    results = [trial(n, [], Outcome.OUT_OF_MEMORY, batch=size) for n, size in enumerate(too_large)]
    results += [trial(8, [0.9], Outcome.CRASHED, batch=32), trial(9, [0.9, 0.05], Outcome.REACHED, batch=16)]
    assert space_that_fits(SPACE, results).batch_sizes.values() == tuple(b for b in (16, 32, 64, 128, 256) if b <= left)


@pytest.mark.parametrize(("fits", "left"), [(1000, 256), (256, 256), (100, 64), (64, 64), (3, 16)])
def test_what_a_profile_found_not_to_fit_is_never_proposed(fits: int, left: int) -> None:
    """Nor is it once the edge rule has moved the bound."""
    found = space_that_fits(replace(SPACE, largest_that_fits=fits), [])
    assert found.batch_sizes.values()[-1] == left
    if fits < 256:
        widened = found.with_bound("global_batch_size", "high", 1024)
        assert space_that_fits(widened, []).batch_sizes.values()[-1] == left
    too_large = [trial(0, [], Outcome.OUT_OF_MEMORY, batch=32)]
    assert space_that_fits(replace(SPACE, largest_that_fits=fits), too_large).batch_sizes.values()[-1] == 16


def ran_out(batch: int, accumulation: int) -> TrialResult:
    parameters = Parameters(global_batch_size=batch, schedule=Constant(learning_rate=0.1), accumulation=accumulation)
    return replace(trial(0, [], Outcome.OUT_OF_MEMORY), parameters=parameters)


def test_what_does_not_fit_is_taken_in_more_micro_batches_where_it_may_be() -> None:
    """On two replicas: 128 examples at a time did not fit, then 64 did not, of whatever batch."""
    space = replace(SPACE, accumulation=AsFewAsFit(replicas=2))
    found = space_that_fits(space, [ran_out(256, 1)])
    assert [found.accumulation_at(size) for size in (64, 128, 256)] == [1, 1, 2]
    assert found.batch_sizes == SPACE.batch_sizes
    found = space_that_fits(space, [ran_out(256, 1), ran_out(256, 2)])
    assert [found.accumulation_at(size) for size in (64, 128, 256)] == [1, 2, 4]
    assert smallest_too_large(space, [ran_out(256, 1), ran_out(256, 2)]) == float("inf")
    profiled = replace(space, accumulation=AsFewAsFit(replicas=2, largest_share=20))
    assert space_that_fits(profiled, [ran_out(256, 1)]).accumulation_at(256) == 8


def test_a_batch_of_which_not_one_example_fits_is_too_large() -> None:
    space = replace(SPACE, accumulation=AsFewAsFit(replicas=2))
    found = space_that_fits(space, [ran_out(128, 64)])
    assert found.batch_sizes.values() == (16, 32, 64)
    assert smallest_too_large(space, [ran_out(128, 64)]) == 128
