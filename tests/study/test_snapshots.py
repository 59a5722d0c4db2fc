"""Snapshots of trials: an interrupted trial goes on from its last one, and nothing else is different."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import optuna
import pytest

from scalesearch.core.budget import Budget
from scalesearch.core.results import Measurement, Outcome, TrialResult
from scalesearch.execution.messages import Measured, Saved
from scalesearch.search.database import open_storage
from scalesearch.search.queue import OpenTrial
from scalesearch.study import Noted, SnapshotFolder, StudyEvent, TrialMeasured, TrialStarted
from scalesearch.study.run import MAX_LOSSES_IN_A_ROW
from scalesearch.study.snapshot_times import MIN_SECONDS, MOST_OVERHEAD
from scalesearch.tracking import MlflowTracker

from .scripted import (
    BASELINE,
    EXAMPLES_TO_TARGET,
    RECORD,
    SECONDS_PER_EXAMPLE,
    Clock,
    Fate,
    ScriptedExecutor,
    Session,
    resolved,
)

Storage = optuna.storages.BaseStorage
NewDatabase = Callable[[Path], str]
MANY = Budget(trials=99)
LOST = Fate(at=8, worker_lost=True)  # after a snapshot


class Killed:
    """Drivers that ended without a word, whose generators must not tidy up."""

    def __init__(self) -> None:
        self._drivers: list[tuple[Session, Iterator[StudyEvent]]] = []

    def kill(self, session: Session, events: Iterator[StudyEvent]) -> None:
        self._drivers.append((session, events))

    def bury(self) -> None:
        for session, events in self._drivers:
            session.study._running = None
            events.close()  # type: ignore[attr-defined]


@pytest.fixture
def killed() -> Iterator[Killed]:
    drivers = Killed()
    yield drivers
    drivers.bury()


def run_until(session: Session, number: int, *, seconds: float) -> Iterator[StudyEvent]:
    """Run a session until a trial has taken so long; what is left of its events."""
    events = session.events()
    for event in events:
        in_trial = isinstance(event, TrialMeasured) and event.trial.number == number
        if in_trial and event.measurement.elapsed_seconds >= seconds:
            return events
    raise AssertionError(f"trial {number} did not come so far")


def stop(session: Session, number: int, *, seconds: float = 12.0) -> TrialResult:
    """Stop a session as the user does; the result of the trial that was interrupted."""
    events = run_until(session, number, seconds=seconds)
    session.stop_requested.set()
    for _ in events:
        pass
    cut = session.results[-1]
    assert (cut.number, cut.outcome) == (number, Outcome.INTERRUPTED)
    return cut


def kill(session: Session, number: int, killed: Killed, *, seconds: float = 12.0) -> None:
    """Kill the driver of a session within a trial."""
    killed.kill(session, run_until(session, number, seconds=seconds))


def notes(session: Session) -> list[str]:
    """Run a session to its end; what it said."""
    return [event.sentence for event in session.events() if isinstance(event, Noted)]


def curve(result: TrialResult) -> list[str]:
    """A trial's curve, every digit of it, without the times."""
    return [repr((m.step, m.examples, m.train_loss, dict(m.metrics))) for m in result.measurements]


def finished(session: Session) -> list[tuple[object, ...]]:
    """What a study has of its trials that were not interrupted."""
    done = [r for r in session.results if r.outcome is not Outcome.INTERRUPTED]
    return [(r.parameters, r.seed, r.outcome, r.is_baseline, r.examples, curve(r)) for r in done]


def files(session: Session) -> list[str]:
    return sorted(path.name for path in session.snapshots.glob("*"))


def examples_spent(session: Session) -> int:
    return session.study.spent().examples


def in_flight(cut: TrialResult) -> int:
    """What the trial of a killed driver counts beyond its record: a whole interval, of which nothing was trained here."""
    return cut.examples - cut.measurements[-1].examples


# The whole


@pytest.mark.parametrize("sampler_name", ["random", "scaling", "tpe"])
def test_a_study_that_is_stopped_killed_and_loses_its_worker_equals_one_that_is_not(
    tmp_path: Path, new_database: NewDatabase, killed: Killed, sampler_name: str
) -> None:
    whole = Session(open_storage(new_database(tmp_path / "a.db")), budget=Budget(trials=8), sampler_name=sampler_name)
    whole.run()
    long = next(r.number for r in whole.results[2:] if len(r.measurements) > LOST.at)

    url = new_database(tmp_path / "b.db")
    sessions = [Session(open_storage(url), budget=MANY, sampler_name=sampler_name)]
    stop(sessions[-1], 0)
    sessions.append(Session(open_storage(url), budget=MANY, sampler_name=sampler_name))
    kill(sessions[-1], 1, killed, seconds=25.0)
    fates = {long + 2: LOST}
    sessions.append(Session(open_storage(url), budget=Budget(trials=8), sampler_name=sampler_name, fates=fates))
    sessions[-1].run()

    assert finished(sessions[-1]) == finished(whole)
    assert [r.number for r in sessions[-1].results if r.shared_steps] == [1, 2, long + 3]
    used = sum(session.executor.examples for session in sessions)
    assert used + in_flight(sessions[-1].results[1]) == examples_spent(sessions[-1]), "the ledger is what was trained"
    assert used < 1.1 * examples_spent(whole)


def test_a_stop_loses_nothing(storage: Storage, tmp_path: Path, new_database: NewDatabase) -> None:
    whole = Session(open_storage(new_database(tmp_path / "whole.db")), budget=Budget(trials=1))
    whole.run()
    [complete] = whole.results

    cut = stop(Session(storage, budget=MANY), 0)
    again = Session(storage, budget=Budget(trials=1))
    step = cut.measurements[-1].step
    assert notes(again) == [f"trial 1 continues trial 0, which was interrupted, at step {step:,}"]
    [before, after] = again.results
    assert repr(before) == repr(cut)
    assert after.shared_steps == step
    assert before.cost.examples + after.cost.examples == complete.cost.examples == after.examples
    assert after.cost.examples == again.executor.examples
    seconds = before.cost.device_seconds + after.cost.device_seconds
    assert seconds == pytest.approx(complete.cost.device_seconds)
    assert curve(after) == curve(complete)
    assert after.reached is not None
    assert complete.reached is not None
    assert after.reached.seconds == pytest.approx(complete.reached.seconds)


def test_a_budget_that_is_spent_loses_nothing(storage: Storage) -> None:
    first = Session(storage, budget=Budget(examples=1_500))
    first.run()
    second = Session(storage, budget=Budget(trials=1))
    second.run()
    cut, after = second.results
    assert cut.outcome is Outcome.INTERRUPTED
    assert after.shared_steps == cut.measurements[-1].step
    assert cut.cost.examples == first.executor.examples


def test_a_kill_loses_one_interval_at_most(storage: Storage, killed: Killed) -> None:
    first = Session(storage, budget=MANY)
    kill(first, 0, killed, seconds=25.0)
    second = Session(storage, budget=Budget(trials=1))
    second.run()
    cut, after = second.results
    assert cut.reason == "its driver was killed"
    shared = after.shared_steps * after.parameters.global_batch_size
    lost = [m.examples - shared for m in after.measurements if shared < m.examples <= first.executor.examples]
    assert all(examples * SECONDS_PER_EXAMPLE < MIN_SECONDS for examples in lost)
    assert shared > 1_000
    assert examples_spent(second) == first.executor.examples + second.executor.examples + in_flight(cut)


def test_a_trial_that_is_interrupted_again_before_a_snapshot_of_its_own(storage: Storage, killed: Killed) -> None:
    cut = stop(Session(storage, budget=MANY), 0)
    step = cut.measurements[-1].step
    second = Session(storage, budget=MANY)
    killed.kill(second, events := second.events())
    assert isinstance(next(events), TrialStarted)  # and nothing is measured
    third = Session(storage, budget=Budget(trials=1))
    assert notes(third) == [f"trial 2 continues trial 1, which was interrupted, at step {step:,}"]
    assert [r.shared_steps for r in third.results] == [0, step, step]
    assert len(finished(third)) == 1


def test_the_interval_after_a_snapshot_counts_though_its_driver_was_killed(storage: Storage, killed: Killed) -> None:
    cut = stop(Session(storage, budget=MANY), 0)
    second = Session(storage, budget=MANY)
    killed.kill(second, events := second.events())
    next(events)
    second.executor.next_event(timeout_seconds=1.0)  # its worker has trained on
    assert second.executor.examples > 0
    third = Session(storage, budget=Budget(trials=1))
    third.run()
    assert third.results[1].cost.examples == second.executor.examples
    used = second.executor.examples + third.executor.examples
    assert cut.cost.examples + used == examples_spent(third)


def test_a_trial_that_can_no_longer_win_is_not_kept_for_a_stop(storage: Storage) -> None:
    session = Session(storage, budget=Budget(trials=8))
    session.run()
    capped = next(r for r in session.results if r.outcome is Outcome.CAPPED)

    class StopsAtTheCap(ScriptedExecutor):
        def next_event(self, *, timeout_seconds: float) -> Any:
            event = super().next_event(timeout_seconds=timeout_seconds)
            if isinstance(event, Measured) and (event.number, event.measurement.step) == at_cap:
                again.stop_requested.set()
            return event

    at_cap = (capped.number, capped.measurements[-1].step)
    clock = Clock()
    again = Session(optuna.storages.InMemoryStorage(), budget=MANY, clock=clock, executor=StopsAtTheCap(clock))
    again.run()
    assert again.results[-1].outcome is Outcome.CAPPED
    assert files(again) == []


# Workers that are lost


def test_a_trial_whose_worker_is_lost_goes_on_at_once(storage: Storage) -> None:
    session = Session(storage, budget=Budget(trials=2), fates={0: LOST})
    [said] = notes(session)
    lost, after, _ = session.results
    assert (lost.outcome, lost.reason) == (Outcome.INTERRUPTED, "it was its fate: CRASHED")
    assert said == f"trial 1 continues trial 0, which was interrupted, at step {after.shared_steps:,}"
    assert 0 < after.shared_steps <= lost.measurements[-1].step
    assert examples_spent(session) == session.executor.examples


def test_a_trial_that_loses_its_worker_again_and_again_is_to_blame(storage: Storage) -> None:
    at_once = {n: Fate(at=1, worker_lost=True) for n in range(MAX_LOSSES_IN_A_ROW)}
    session = Session(storage, budget=Budget(trials=5), fates=at_once)
    said = notes(session)
    outcomes = [r.outcome for r in session.results]
    assert outcomes[:MAX_LOSSES_IN_A_ROW] == [Outcome.INTERRUPTED, Outcome.INTERRUPTED, Outcome.CRASHED]
    assert not {Outcome.INTERRUPTED, Outcome.CRASHED} & set(outcomes[MAX_LOSSES_IN_A_ROW:])
    assert said == [
        f"trial {n} repeats trial {n - 1}, which was interrupted, from the start: there is no snapshot of it"
        for n in (1, 2)
    ]


def test_a_trial_that_gets_further_each_time_is_not_to_blame(storage: Storage) -> None:
    # Those that go on have one measurement to begin with.
    fates = {n: Fate(at=10 if n == 0 else 5, worker_lost=True) for n in range(MAX_LOSSES_IN_A_ROW)}
    session = Session(storage, budget=Budget(trials=1), fates=fates, what=resolved(evaluation_ratio=1.05))
    session.run()
    assert [r.outcome for r in session.results] == [Outcome.INTERRUPTED] * MAX_LOSSES_IN_A_ROW + [Outcome.REACHED]
    shared = [r.shared_steps for r in session.results]
    assert shared == sorted(set(shared))


# Snapshots that are of no use


def test_a_snapshot_that_cannot_be_used_is_said_to_be_and_the_trial_begins_anew(storage: Storage) -> None:
    first = Session(storage, budget=MANY)
    cut = stop(first, 0)
    [name] = files(first)
    (first.snapshots / name).write_text("no snapshot")
    second = Session(storage, budget=Budget(trials=1))
    said = notes(second)
    assert said[0].startswith("trial 1 continues trial 0")
    assert said[1].startswith(f"trial 1 begins anew: snapshot {first.snapshots / name}: ")
    assert len(said) == 2
    after = second.results[1]
    assert after.shared_steps == 0
    assert after.cost.examples == after.measurements[-1].examples == second.executor.examples
    assert curve(after)[: len(cut.measurements)] == curve(cut)
    assert [e for e in second.tracker.told if e == ("measured", 1)] == [("measured", 1)] * len(after.measurements)
    assert files(second) == []


def test_a_driver_that_is_killed_after_such_a_snapshot_has_the_record_of_the_new_run_only(
    storage: Storage, killed: Killed
) -> None:
    first = Session(storage, budget=MANY)
    stop(first, 0)
    for name in files(first):
        (first.snapshots / name).write_text("no snapshot")
    second = Session(storage, budget=MANY)
    killed.kill(second, events := second.events())
    for _ in islice(events, 3):
        pass
    third = Session(storage, budget=Budget(trials=2))
    third.run()
    orphan = third.results[1]
    assert (orphan.shared_steps, orphan.measurements, orphan.cost.examples) == (0, (), 0)


def test_without_snapshots_a_trial_is_repeated_from_the_start(storage: Storage) -> None:
    first = Session(storage, budget=MANY)
    first.executor.disk_problem = "snapshot x cannot be written: No space left on device"
    events = run_until(first, 0, seconds=12.0)
    first.stop_requested.set()
    assert [e.sentence for e in events if isinstance(e, Noted)] == [], "it was said at the first one"
    second = Session(storage, budget=Budget(trials=1))
    said = notes(second)
    assert said == ["trial 1 repeats trial 0, which was interrupted, from the start: there is no snapshot of it"]
    assert second.results[1].shared_steps == 0


def test_a_disk_that_is_full_is_said_once_and_ends_nothing(storage: Storage) -> None:
    session = Session(storage, budget=Budget(trials=4))
    session.executor.disk_problem = "snapshot x cannot be written: No space left on device"
    assert notes(session) == ["snapshot x cannot be written: No space left on device"]
    assert [r.outcome for r in session.results].count(Outcome.INTERRUPTED) == 0
    assert session.executor.saved == []


def test_a_snapshot_beyond_the_record_is_not_used(storage: Storage) -> None:
    first = Session(storage, budget=MANY)
    cut = stop(first, 0)
    [name] = files(first)
    (first.snapshots / "trial-0-step-999999.safetensors").write_bytes((first.snapshots / name).read_bytes())
    second = Session(storage, budget=Budget(trials=1))
    second.run()
    assert second.results[1].shared_steps == cut.measurements[-1].step


def test_before_there_is_a_file_the_record_reaches_up_to_it(storage: Storage, storage_url: str) -> None:
    seen = []

    class LooksAtTheRecord(ScriptedExecutor):
        def _save(self, trial: Any, path: Path | None) -> None:
            if path is not None:
                kept = optuna.load_study(study_name="s", storage=storage_url).trials[trial.request.number]
                assert kept.user_attrs["measurements"]["step"][-1] == trial.measured[-1].step
                seen.append(path)
            super()._save(trial, path)

    clock = Clock()
    stop(Session(storage, budget=MANY, clock=clock, executor=LooksAtTheRecord(clock)), 0, seconds=18.0)
    assert len(seen) > 2, "now and then, and at the stop"


# Files


def test_a_trial_has_one_file_and_a_finished_one_has_none(storage: Storage) -> None:
    session = Session(storage, budget=Budget(trials=3))
    most = 0
    for _ in session.events():
        most = max(most, len(files(session)))
    assert len(session.executor.saved) > 3
    assert most == 2, "the last one, until the next one is there"
    assert not session.snapshots.exists()


def test_what_killed_processes_left_is_swept_up(storage: Storage) -> None:
    first = Session(storage, budget=MANY)
    cut = stop(first, 1)
    [kept] = files(first)
    assert kept == f"trial-1-step-{cut.measurements[-1].step}.safetensors"
    for name in ("trial-0-step-10.safetensors", "trial-1-step-999.safetensors.partial", "trial-11-step-7.safetensors"):
        (first.snapshots / name).write_text("left")
    second = Session(storage, budget=MANY)
    events = second.events()
    next(events)
    assert files(second) == [kept]
    events.close()  # type: ignore[attr-defined]


def test_a_stop_before_the_first_step_keeps_nothing(storage: Storage) -> None:
    session = Session(storage, budget=MANY)
    events = session.events()
    next(events)
    session.stop_requested.set()
    for _ in events:
        pass
    assert len(session.results[0].measurements) == 1
    assert session.executor.saved == []


# When


def at(seconds: float) -> Measurement:
    return Measurement(
        step=round(100 * seconds), examples=0, train_seconds=0.0, elapsed_seconds=seconds, train_loss=0.0, metrics={}
    )


PLAN = resolved().evaluation_plan(BASELINE, EXAMPLES_TO_TARGET)


def open_trial(number: int) -> OpenTrial:
    return OpenTrial(number=number, parameters=BASELINE, seed=0, is_baseline=False)


def begin(folder: SnapshotFolder, number: int) -> None:
    folder.trial_started(open_trial(number), PLAN, None)


@pytest.mark.parametrize("seconds", [0.001, 0.5, 3.0])
def test_snapshots_take_a_small_share_of_the_time(tmp_path: Path, seconds: float) -> None:
    folder = SnapshotFolder(tmp_path)
    begin(folder, 0)
    taken = []
    for now in range(1_000):
        if (path := folder.due(at(now + 20.0))) is not None:  # 20 s until the first step
            taken.append(now)
            folder.written(Saved(path=path, seconds=seconds))
    assert taken[0] == MIN_SECONDS
    assert len(taken) > 2
    gaps = [b - a for a, b in pairwise(taken)]
    wanted = max(MIN_SECONDS, seconds / MOST_OVERHEAD)
    assert all(wanted <= gap <= wanted + 1.0 for gap in gaps)


def test_one_snapshot_at_a_time(tmp_path: Path) -> None:
    folder = SnapshotFolder(tmp_path)
    begin(folder, 0)
    assert [folder.due(at(s)) is not None for s in (0.0, 10.0, 20.0, 30.0)] == [False, True, False, False]
    begin(folder, 3)  # its worker was lost, and will not tell
    assert [folder.due(at(s)) is not None for s in (0.0, 10.0)] == [False, True]


def test_a_folder_of_another_study_is_left_alone(tmp_path: Path) -> None:
    folder = SnapshotFolder(tmp_path / "none")
    folder.sweep(keep=())
    assert folder.continuation(open_trial(3), [], PLAN) is None
    begin(folder, 3)
    folder.trial_ended(Outcome.CAPPED)
    assert not (tmp_path / "none").exists()


# The copy


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")
def test_the_curve_in_mlflow_has_no_holes_and_no_point_twice(storage: Storage, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"

    def tracker() -> MlflowTracker:
        new = MlflowTracker(tracking_uri=uri, artifact_folder=tmp_path)
        new.study_started(RECORD)
        return new

    first = tracker()
    stop(Session(storage, budget=MANY, tracker=first), 0)
    first.close(60.0)
    second = tracker()
    session = Session(storage, budget=Budget(trials=1), tracker=second)
    session.run()
    second.close(60.0)
    assert (first.problems(), second.problems()) == ((), ())

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("tests/closed_form")
    runs = {
        run.data.tags["scalesearch.trial_number"]: run
        for run in client.search_runs([experiment.experiment_id])
        if run.data.tags["scalesearch.kind"] == "trial"
    }
    for result in session.results:
        run = runs[str(result.number)]
        history = client.get_metric_history(run.info.run_id, "progress/examples")
        assert [(p.step, p.value) for p in history] == [(m.step, m.examples) for m in result.measurements]
    shared = runs["1"].data.metrics["result/shared_steps"]
    assert shared == session.results[1].shared_steps > 0
    assert "result/shared_steps" not in runs["0"].data.metrics


def test_it_is_so_while_the_trial_runs(storage: Storage) -> None:
    stop(Session(storage, budget=MANY), 0)
    steps: list[int] = []
    session = Session(storage, budget=Budget(trials=1))
    session.tracker.trial_measured = lambda number, measurement: steps.append(measurement.step)
    session.run()
    assert steps == [m.step for m in session.results[1].measurements]
