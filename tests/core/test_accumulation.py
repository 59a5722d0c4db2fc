from __future__ import annotations

import pytest

from scalesearch.core.accumulation import AsFewAsFit, micro_batches_that_fit


@pytest.mark.parametrize(
    ("batch", "replicas", "largest", "expected"), [(64, 1, 64, 1), (128, 2, 32, 2), (96, 1, 40, 3), (1024, 4, 1, 256)]
)
def test_micro_batches_are_equal_and_as_few_as_can_be(batch: int, replicas: int, largest: int, expected: int) -> None:
    assert micro_batches_that_fit(batch, replicas=replicas, largest_share=largest) == expected


def test_micro_batches_of_a_prime_share_are_single_examples() -> None:
    assert micro_batches_that_fit(13, replicas=1, largest_share=5) == 13


def test_all_fits_until_something_does_not() -> None:
    accumulation = AsFewAsFit(replicas=2)
    assert accumulation.at(2**20) == 1
    limited = accumulation.limited_to(64)
    assert [limited.at(size) for size in (64, 128, 256, 1024)] == [1, 1, 2, 8]
    assert limited.limited_to(128) == limited
    assert limited.limited_to(32).at(256) == 4
