"""What the usual rules make of a configuration."""

from __future__ import annotations

import pytest

from scalesearch.core.parameters import Parameters
from scalesearch.core.scaling_rules import Rule, scaling_rules
from scalesearch.core.schedule import Constant, Linear, Piecewise

PRESENT = Parameters(
    global_batch_size=64,
    schedule=Piecewise(learning_rate=0.1, decay_factor=0.1, boundaries=(1000, 3000)),
    momentum=0.9,
)


def by_name(rules: tuple[Rule, ...]) -> dict[tuple[str, str], Parameters]:
    return {(r.name, r.boundaries_in): r.parameters for r in rules}


def test_four_times_the_replicas() -> None:
    rules = by_name(scaling_rules(PRESENT, growth=4.0, divisor=4))
    assert rules["keep", "examples"] == PRESENT
    assert len(rules) == 5
    for (name, unit), p in rules.items():
        if name == "keep":
            continue
        assert p.global_batch_size == 256
        assert p.momentum == 0.9
        assert p.learning_rate == pytest.approx(0.4 if name == "linear" else 0.2)
        assert p.schedule.boundaries == ((1000, 3000) if unit == "examples" else (4000, 12000))


def test_boundaries_of_a_linear_decay_are_kept_in_both_units_too() -> None:
    linear = Parameters(
        global_batch_size=64, schedule=Linear(learning_rate=0.1, decay_examples=5000, end_factor=0.01), momentum=0.9
    )
    rules = by_name(scaling_rules(linear, growth=2.0, divisor=2))
    assert rules["sqrt", "steps"].schedule.boundaries == (10_000,)
    assert rules["sqrt", "examples"].schedule.boundaries == (5_000,)


def test_without_decays_there_is_one_of_each() -> None:
    constant = Parameters(global_batch_size=64, schedule=Constant(learning_rate=0.1))
    assert [r.name for r in scaling_rules(constant, growth=2.0, divisor=2)] == ["keep", "linear", "sqrt"]


def test_sizes_can_be_shared_by_the_replicas_and_rates_follow_the_sizes() -> None:
    rules = by_name(scaling_rules(PRESENT, growth=1.5, divisor=3))
    assert rules["keep", "examples"].global_batch_size == 63
    assert rules["linear", "examples"].global_batch_size == 96
    assert rules["linear", "examples"].learning_rate == pytest.approx(0.15)
