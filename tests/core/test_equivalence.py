from __future__ import annotations

import math

import numpy as np
import pytest

from scalesearch.core.equivalence import CheckedRun, difference, same_start


def run(final: list[float], *, losses: tuple[float, ...] = (2.0, 1.0), initial: float = 0.0) -> CheckedRun:
    return CheckedRun(
        data_digest="",
        initial=(np.full(len(final), initial, np.float32),),
        final=(np.array(final, np.float32),),
        losses=losses,
        parts={},
    )


def test_weights_are_compared_relative_to_the_update_and_losses_to_themselves() -> None:
    found = difference(run([3.0, 4.0]), run([3.0, 4.5], losses=(2.0, 1.1)))
    assert found.weights == pytest.approx(0.1)
    assert found.loss == pytest.approx(0.1)
    assert not found.agrees


@pytest.mark.parametrize(
    ("final", "losses", "agrees"),
    [
        ([3.0, 4.0], (2.0, 1.0), True),
        ([3.0, 4.0001], (2.0, 1.0), True),
        ([3.0, 4.02], (2.0, 1.0), False),
        ([3.0, 4.0], (2.0, 1.01), False),
        ([3.0, math.nan], (2.0, 1.0), False),
        ([3.0, 4.0], (2.0, math.nan), False),
    ],
)
def test_more_than_rounding_is_no_agreement(final: list[float], losses: tuple[float, ...], agrees: bool) -> None:
    assert difference(run([3.0, 4.0]), run(final, losses=losses)).agrees is agrees


def test_runs_without_an_update_agree_if_they_are_equal() -> None:
    still = run([0.0, 0.0])
    assert difference(still, still).agrees
    assert not difference(still, run([0.0, 1.0])).agrees


def test_runs_start_alike_or_not() -> None:
    assert same_start(run([1.0]), run([2.0]))
    assert not same_start(run([1.0]), run([1.0], initial=0.5))
