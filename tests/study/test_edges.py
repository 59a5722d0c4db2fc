from __future__ import annotations

from dataclasses import replace

import optuna
import pytest

from scalesearch.core.axis import Interval
from scalesearch.core.budget import Budget
from scalesearch.core.space import BatchSizes

from .scripted import BEST_RATE, Session, resolved

SPACE = replace(
    resolved().space,
    batch_sizes=BatchSizes(low=32, high=32, multiple_of=None, divisor=1),
    learning_rate=Interval(1e-4, 0.04),
)


@pytest.mark.parametrize(("sampler_name", "words"), [("scaling", "was widened to 0.16"), ("random", "set it higher")])
def test_an_edge_at_which_the_optimum_lies_is_widened_or_reported(
    storage: optuna.storages.BaseStorage, sampler_name: str, words: str
) -> None:
    small = resolved(space=SPACE, baseline=None)
    session = Session(storage, what=small, budget=Budget(trials=20), sampler_name=sampler_name)
    found = session.run().findings
    assert found.recommendation is not None
    rate = found.recommendation.parameters.learning_rate
    if sampler_name == "scaling":
        assert 0.04 < rate <= 0.16
        assert abs(rate - BEST_RATE) < 0.06
    else:
        assert rate <= 0.04
    assert len(found.edges) == 1
    assert found.edges[0].count("`search.learning_rate.high = 0.04`") == 1
    assert words in found.edges[0]


def test_far_from_every_edge_there_is_nothing_to_say(storage: optuna.storages.BaseStorage) -> None:
    middle = resolved(space=replace(SPACE, learning_rate=Interval(1e-3, 10.0)), baseline=None)
    assert Session(storage, what=middle, budget=Budget(trials=12), sampler_name="scaling").run().findings.edges == ()
