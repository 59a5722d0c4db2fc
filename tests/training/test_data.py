"""The order of the data is a pure function of (seed, epoch, position)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalesearch.training.data import epoch_permutation, stream_indices, stream_uniforms

SEEDS = st.integers(0, 2**32 - 1)


@given(seed=SEEDS, epoch=st.integers(0, 10**6), examples=st.integers(1, 300))
def test_an_epoch_is_a_permutation(seed: int, epoch: int, examples: int) -> None:
    assert sorted(epoch_permutation(seed, epoch, examples)) == list(range(examples))


def test_epochs_and_seeds_differ() -> None:
    orders = {tuple(epoch_permutation(seed, epoch, 20)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_the_stream_is_the_epochs_one_after_another() -> None:
    epochs = np.concatenate([epoch_permutation(3, epoch, 7) for epoch in range(4)])
    assert np.array_equal(stream_indices(3, 0, 28, 7), epochs)


@given(seed=SEEDS, start=st.integers(0, 500), count=st.integers(0, 100), examples=st.integers(1, 60))
def test_the_stream_can_be_entered_anywhere(seed: int, start: int, count: int, examples: int) -> None:
    uninterrupted = stream_indices(seed, 0, start + count, examples)
    assert np.array_equal(stream_indices(seed, start, count, examples), uninterrupted[start:])


@given(seed=SEEDS, start=st.integers(0, 500), count=st.integers(0, 50), numbers=st.integers(0, 9))
def test_uniforms_can_be_entered_anywhere(seed: int, start: int, count: int, numbers: int) -> None:
    uninterrupted = stream_uniforms(seed, 0, start + count, numbers)
    assert np.array_equal(stream_uniforms(seed, start, count, numbers), uninterrupted[start:])


def test_uniforms_are_uniform_and_below_one() -> None:
    numbers = stream_uniforms(0, 12345, 20_000, 5)
    assert numbers.dtype == np.float32
    assert 0.0 <= numbers.min() < 1e-3
    assert 1 - 1e-3 < numbers.max() < 1.0
    # Standard error of the mean of 20,000 uniforms: 0.002; five of them.
    assert numbers.mean(axis=0) == pytest.approx(0.5, abs=0.01)
    assert np.abs(np.corrcoef(numbers.T) - np.eye(5)).max() < 0.04  # 5 / √20,000


def test_uniforms_differ_between_seeds() -> None:
    assert not np.array_equal(stream_uniforms(0, 0, 10, 3), stream_uniforms(1, 0, 10, 3))
