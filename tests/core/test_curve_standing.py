from __future__ import annotations

from dataclasses import replace

from scalesearch.core.curve_standing import scaled
from scalesearch.core.schedule import Linear
from tests.core.simulated import constant, decaying


def test_between_batch_sizes_rates_and_boundaries_are_scaled() -> None:
    there = scaled(decaying(0.1, 10, 11, global_batch_size=64), 16, rate=0.25, examples=0.25)
    assert (there.global_batch_size, there.learning_rate) == (16, 0.025)
    assert there.schedule.boundaries == (160, 176)
    tight = decaying(0.1, 1, global_batch_size=3)
    tight = replace(tight, schedule=replace(tight.schedule, boundaries=(3, 4)))
    assert scaled(tight, 1, rate=1.0, examples=0.1).schedule.boundaries == (1, 2)


def test_so_is_the_length_of_a_linear_decay() -> None:
    linear = Linear(learning_rate=0.1, decay_examples=6400, end_factor=0.01)
    there = scaled(replace(constant(0.1, global_batch_size=64), schedule=linear), 16, rate=0.25, examples=0.25)
    assert there.schedule == Linear(learning_rate=0.025, decay_examples=1600, end_factor=0.01)
