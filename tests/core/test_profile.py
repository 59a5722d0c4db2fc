from __future__ import annotations

from dataclasses import replace

import pytest

from scalesearch.core.profile import sizes_to_measure

from .profiles import MACHINE, point, profile


def test_sizes_are_powers_of_two_with_both_ends() -> None:
    assert sizes_to_measure(4, 64) == (4, 8, 16, 32, 64)
    assert sizes_to_measure(6, 48) == (6, 8, 16, 32, 48)
    assert sizes_to_measure(16, 16) == (16,)


def test_efficiency_compares_with_one_replica_of_the_same_share() -> None:
    alone, pair = point(0.1, share=32), point(0.125, share=32, replicas=2)
    found = profile([alone, pair, point(0.2, share=64, replicas=2)])
    assert found.scaling_efficiency(pair) == pytest.approx(0.8)
    assert found.scaling_efficiency(alone) == 1.0
    assert found.scaling_efficiency(found.points[-1]) is None
    assert pair.global_batch_size == 64
    assert pair.examples_per_second == pytest.approx(64 / 0.125)


def test_differences_of_fingerprints_name_both_sides() -> None:
    other = replace(MACHINE, hardware={"kind": "CPU", "device": "made up"}, software={})
    assert MACHINE.differences(other) == [
        "hardware.kind: CPU there, GPU here",
        "software.tensorflow: nothing there, 0 here",
    ]
    assert MACHINE.differences(MACHINE) == []
