from __future__ import annotations

import math
from pathlib import Path

from scalesearch.core.results import Cost, Measurement, Outcome, TrialResult
from scalesearch.study.journal import Journal

from .scripted import BASELINE, REPLICAS


def measurement(step: int) -> Measurement:
    loss = math.nan if step == 0 else 1.0
    return Measurement(
        step=step,
        examples=50 * step,
        train_seconds=float(step),
        elapsed_seconds=2.0 * step,
        train_loss=loss,
        metrics={"val/loss": 1.0},
    )


def orphan(*steps: int, number: int = 3, shared_steps: int = 0, outcome: Outcome = Outcome.INTERRUPTED) -> TrialResult:
    """As the storage knows it."""
    return TrialResult(
        number=number,
        parameters=BASELINE,
        seed=0,
        outcome=outcome,
        reason="its driver was killed",
        cost=Cost(examples=1),
        reached=None,
        measurements=tuple(measurement(s) for s in steps),
        shared_steps=shared_steps,
    )


def left_by_a_killed_driver(path: Path, *steps: int) -> Journal:
    journal = Journal(path)
    journal.begin(3)
    for step in steps:
        journal.add(measurement(step))
    return Journal(path)


def steps(result: TrialResult) -> list[int]:
    return [m.step for m in result.measurements]


def test_a_killed_driver_leaves_all_that_was_measured(tmp_path: Path) -> None:
    journal = left_by_a_killed_driver(tmp_path / "folder" / "journal", 0, 2, 4, 6)
    complete = journal.completed(orphan(0, 2), replicas=REPLICAS)
    assert repr(complete.measurements) == repr(tuple(measurement(s) for s in (0, 2, 4, 6)))
    assert complete.cost == Cost(examples=300, device_seconds=12.0 * REPLICAS)


def test_what_is_shared_with_another_trial_is_in_the_storage(tmp_path: Path) -> None:
    journal = left_by_a_killed_driver(tmp_path / "journal", 6, 8)
    complete = journal.completed(orphan(0, 2, 4, shared_steps=4), replicas=REPLICAS)
    assert steps(complete) == [0, 2, 4, 6, 8]
    assert complete.cost == Cost(examples=200, device_seconds=8.0 * REPLICAS)


def test_a_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = left_by_a_killed_driver(path, 0, 2, 4)
    path.write_bytes(path.read_bytes()[:-9])
    assert steps(journal.completed(orphan(0), replicas=REPLICAS)) == [0, 2]


def test_what_is_of_no_use_changes_nothing(tmp_path: Path) -> None:
    journal = left_by_a_killed_driver(tmp_path / "journal", 0, 2)
    for known in (orphan(0, number=4), orphan(0, 2, 4), orphan(0, outcome=Outcome.REACHED)):
        assert journal.completed(known, replicas=REPLICAS) is known
    (tmp_path / "journal").write_text("")
    known = orphan(0)
    assert journal.completed(known, replicas=REPLICAS) is known
    assert Journal(tmp_path / "none").completed(known, replicas=REPLICAS) is known


def test_it_is_gone_once_nothing_runs(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.begin(3)
    journal.add(measurement(0))
    journal.end()
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file" / "journal")
    journal.begin(3)
    journal.add(measurement(0))
    journal.end()
    assert (tmp_path / "file").read_text() == ""


def test_what_follows_a_gap_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.begin(3)
    journal.add(measurement(0))
    path.rename(tmp_path / "aside")
    path.mkdir()  # it cannot be written now
    journal.add(measurement(2))
    path.rmdir()
    (tmp_path / "aside").rename(path)
    journal.add(measurement(4))
    assert steps(Journal(path).completed(orphan(), replicas=REPLICAS)) == [0]
