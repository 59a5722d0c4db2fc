from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from scalesearch.core.profile import Tried
from scalesearch.training.profile import _ends_first, largest_that_fits, measure_steps, median_interval
from scalesearch.workloads.workload import Workload

from . import tiny


def needing(most: int) -> Workload:
    """A workload whose steps run out of memory with more than `most` examples per replica."""

    def loss(labels: Any, outputs: Any) -> Any:
        def check(examples: int) -> np.ndarray[Any, Any]:
            if examples > most:
                raise MemoryError(f"{examples} examples do not fit")
            return np.float32(0.0)

        nothing = tf.numpy_function(check, [tf.shape(outputs)[0]], tf.float32)
        return outputs[:, 0] + tf.ensure_shape(nothing, [])

    return tiny.linear(1, loss=loss)


def tried(most: int, *, smallest: int = 1, largest: int = 64, replicas: int = 1, **options: Any) -> list[Tried]:
    trainer = tiny.trainer(needing(most), replicas=replicas, data=tiny.ones())
    return list(largest_that_fits(trainer, smallest=smallest, largest=largest, **options))


def sizes(found: list[Tried], *, fits: bool | None) -> list[int]:
    return [t.per_replica_batch_size for t in found if t.fits is fits]


def test_all_that_is_asked_for_fits() -> None:
    found = tried(1000, smallest=4, largest=24)
    assert sizes(found, fits=True) == [4, 8, 16, 24]
    assert sizes(found, fits=False) == []
    assert sizes(found, fits=None) == [4, 8, 16, 24]  # each is announced, should the process die of it
    assert all(t.seconds > 0 for t in found if t.fits)


def test_running_out_of_memory_is_an_answer() -> None:
    found = tried(21)
    assert sizes(found, fits=False) == [32, 24, 22]
    assert sizes(found, fits=True) == [1, 2, 4, 8, 16, 20, 21]


def test_the_share_of_a_replica_counts() -> None:
    assert max(sizes(tried(8, largest=16, replicas=2), fits=True)) == 8


def test_a_size_that_killed_a_worker_is_not_tried_again() -> None:
    found = tried(1000, smallest=8, largest=64, too_large=16)
    assert sizes(found, fits=None) == [8, 12, 14, 15]


def test_sizes_below_the_smallest_are_tried_if_that_does_not_fit() -> None:
    assert max(sizes(tried(3, smallest=8), fits=True)) == 3
    assert sizes(tried(0, smallest=4), fits=True) == []


def test_no_size_is_begun_after_the_time() -> None:
    assert sizes(tried(1000, limit_seconds=0.0), fits=True) == [1]


def test_steps_are_timed_until_the_time_is_up() -> None:
    trainer = tiny.momentum_trainer("dense", 2)
    points = list(
        measure_steps(trainer, sizes=(2, 4, 8), accumulations=(2,), momentum=0.9, precision=1e-9, limit_seconds=1.0)
    )
    last = {(p.per_replica_batch_size, p.accumulation): p for p in points}
    assert set(last) == {(2, 1), (4, 1), (8, 1), (4, 2)}
    for p in last.values():
        assert p.replicas == 2
        assert p.blocks >= 2
        assert p.steps >= p.blocks
        assert 0 < p.undisturbed_seconds <= p.step_seconds <= p.interval[1]
        assert 0 < p.input_share <= 1
        assert p.memory_bytes is None or p.memory_bytes > 2**20
    counts = [p.blocks for p in last.values()]
    assert max(counts) - min(counts) <= 2  # in turn


def test_a_size_that_is_known_well_enough_is_timed_no_more() -> None:
    trainer = tiny.momentum_trainer("dense", 1)
    points = list(measure_steps(trainer, sizes=(4,), momentum=0.9, precision=1e3, limit_seconds=60.0))
    assert points[-1].blocks == 5


def test_a_few_sizes_span_the_range_if_time_is_short() -> None:
    trainer = tiny.momentum_trainer("dense", 1)
    points = measure_steps(trainer, sizes=(1, 2, 4, 8, 16), momentum=0.9, precision=0.03, limit_seconds=0.0)
    assert {p.per_replica_batch_size for p in points} == {1, 16}
    assert _ends_first([1, 2, 4, 8, 16]) == [1, 16, 4, 2, 8]
    assert _ends_first([3]) == [3]
    assert _ends_first([3, 5]) == [3, 5]


def test_intervals_of_the_median_cover_it() -> None:
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        low, high = median_interval(list(1.0 + 0.1 * rng.normal(size=15)))
        inside += low <= 1.0 <= high
    assert 0.88 <= inside / 200 <= 0.99
    assert median_interval([2.0]) == (0.0, 4.0)


@pytest.mark.parametrize("replicas", [1, 2])
def test_profiling_leaves_nothing_behind(replicas: int) -> None:
    trainer = tiny.momentum_trainer("conv", replicas)
    before = [m.train_loss for m in tiny.run(trainer, momentum=0.8)]
    list(measure_steps(trainer, sizes=(2, 8), momentum=0.9, precision=0.5, limit_seconds=0.1))
    after = [m.train_loss for m in tiny.run(trainer, momentum=0.8)]
    assert after[1:] == before[1:]
