from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scalesearch.core.proposal import space_that_fits
from scalesearch.core.results import Outcome
from scalesearch.core.space import BatchSizes, ConstantSpace, Interval, SearchSpace

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
