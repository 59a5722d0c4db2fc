from __future__ import annotations

import pytest

from scalesearch.core.parameters import Parameters
from scalesearch.core.schedule import Constant, Linear

SCHEDULE = Linear(learning_rate=0.2, decay_examples=100, end_factor=0.5)


def test_learning_rate_is_the_one_that_the_schedule_starts_with() -> None:
    assert Parameters(global_batch_size=64, schedule=SCHEDULE).learning_rate == 0.2


@pytest.mark.parametrize(("momentum", "expected"), [(None, 0.2), (0.0, 0.2), (0.9, 2.0), (0.99, 20.0)])
def test_effective_learning_rate(momentum: float | None, expected: float) -> None:
    parameters = Parameters(global_batch_size=64, schedule=SCHEDULE, momentum=momentum)
    assert parameters.effective_learning_rate == pytest.approx(expected)


@pytest.mark.parametrize(("replicas", "accumulation", "expected"), [(1, 1, 96), (4, 1, 24), (4, 3, 8), (1, 3, 32)])
def test_a_replicas_share_of_the_global_batch(replicas: int, accumulation: int, expected: int) -> None:
    schedule = Constant(learning_rate=0.1)
    parameters = Parameters(global_batch_size=96, schedule=schedule, accumulation=accumulation)
    assert parameters.per_replica_batch_size(replicas) == expected
