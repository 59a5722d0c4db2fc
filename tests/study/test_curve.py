"""Studies of the whole curve, from the executor to what is kept in the storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

from scalesearch.core.budget import Budget
from scalesearch.core.results import Outcome
from scalesearch.execution.messages import TrialRequest
from scalesearch.search.database import open_storage

from .scripted import BASELINE, STEPS_TO_TARGET, Clock, Fate, ScriptedExecutor, Session, resolved

Storage = optuna.storages.BaseStorage
SIZES = (16, 32, 64, 128)
EXAMPLES_NEEDED = 2_197  # at the best rate, whatever the batch size


def curve_study(storage: Storage, *, trials: int, **fields: Any) -> Session:
    what = resolved(STEPS_TO_TARGET, aim="curve")
    return Session(storage, budget=Budget(trials=trials), what=what, sampler_name="scaling", **fields)


def test_every_batch_size_gets_its_leader(storage: Storage) -> None:
    session = curve_study(storage, trials=30)
    found = session.run().findings
    assert found.of_curve
    at = {b.global_batch_size: b for b in found.batch_sizes}
    assert tuple(size for size in at if size != BASELINE.global_batch_size) == SIZES
    for size in SIZES:
        assert at[size].leader is not None
        # Evaluations are half as far again from one another.
        assert at[size].steps_to_target == pytest.approx(1.2 * EXAMPLES_NEEDED / size, rel=0.35)
    assert found.recommendation is not None
    assert found.recommendation.parameters.global_batch_size == 128, "of the fewest steps"
    kept = session.store.curve()
    assert {size: point.parameters for size, point in kept.items()} == {
        size: row.leader.parameters for size, row in at.items() if row.leader
    }


def test_it_ends_once_nothing_is_to_be_gained(storage: Storage) -> None:
    ended = curve_study(storage, trials=200).run()
    assert "every batch size's leader is confirmed" in ended.stopped_by
    assert sum(ended.findings.outcomes.values()) < 100


class SmallMemory(ScriptedExecutor):
    """A global batch of 128 does not fit."""

    def submit(self, request: TrialRequest) -> None:
        if request.parameters.global_batch_size == 128:
            self.fates = {**self.fates, request.number: Fate(at=0, failure=Outcome.OUT_OF_MEMORY)}
        super().submit(request)


def test_a_batch_size_that_does_not_fit_is_tried_once_and_shown(storage: Storage) -> None:
    clock = Clock()
    session = curve_study(storage, trials=30, clock=clock, executor=SmallMemory(clock))
    row = next(b for b in session.run().findings.batch_sizes if b.global_batch_size == 128)
    assert (row.out_of_memory, row.leader, row.trials) == (True, None, 1)


def test_a_study_of_the_optimum_goes_on_as_one_of_the_curve(storage: Storage) -> None:
    optimum = Session(storage, budget=Budget(trials=12), what=resolved(STEPS_TO_TARGET), sampler_name="scaling")
    assert not optimum.run().findings.of_curve
    assert optimum.store.curve() == {}
    found = curve_study(storage, trials=30).run().findings
    assert all(row.leader for row in found.batch_sizes if row.global_batch_size in SIZES)


def test_an_interruption_changes_no_proposal(tmp_path: Path) -> None:
    whole = curve_study(open_storage(f"sqlite:///{tmp_path / 'a.db'}"), trials=16)
    whole.run()
    url = f"sqlite:///{tmp_path / 'b.db'}"
    curve_study(open_storage(url), trials=9).run()
    rest = curve_study(open_storage(url), trials=16)
    rest.run()
    assert [r.parameters for r in rest.results] == [r.parameters for r in whole.results]
