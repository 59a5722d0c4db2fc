"""Stopping, being killed, and going on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import optuna
import pytest

from scalesearch.core.budget import Budget
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Outcome
from scalesearch.errors import StudyError, WorkloadError
from scalesearch.execution.messages import TrialRequest
from scalesearch.search.database import open_storage
from scalesearch.study import STOP_WITHIN_SECONDS, StudyEnded, TrialEnded, TrialMeasured
from scalesearch.tracking import MlflowTracker

from .scripted import EXAMPLES_TO_TARGET, RECORD, Clock, Fate, ScriptedExecutor, Session, resolved, states

Storage = optuna.storages.BaseStorage
TEN = Budget(trials=10)


def points(session: Session) -> list[tuple[Parameters, int]]:
    return [(r.parameters, r.seed) for r in session.results]


def stop_in_trial(session: Session, number: int, *, after: int = 3) -> StudyEnded:
    """Run a session until the user stops it at a measurement of a trial."""
    for event in session.events():
        if isinstance(event, TrialMeasured) and event.trial.number == number and event.measurement.step > 0:
            after -= 1
            if after == 0:
                session.stop_requested.set()
    assert isinstance(event, StudyEnded)
    return event


def test_a_stop_keeps_the_running_trial_and_the_next_run_repeats_it(storage: Storage, storage_url: str) -> None:
    session = Session(storage, budget=TEN)
    ended = stop_in_trial(session, 1)
    assert (ended.stopped_by, ended.by_user) == ("stopped by the user", True)
    cut = session.results[-1]
    assert (cut.number, cut.outcome, cut.reason) == (1, Outcome.INTERRUPTED, "stopped by the user")
    assert len(cut.measurements) >= 4
    assert cut.cost.examples == cut.measurements[-1].examples
    assert "RUNNING" not in states(storage)

    again = Session(open_storage(storage_url), budget=TEN)
    again.run()
    repeated = again.results[2]
    assert (repeated.parameters, repeated.seed) == (cut.parameters, cut.seed)
    assert repeated.outcome is not Outcome.INTERRUPTED
    assert len(again.results) == 11, "ten and the one that was cut"
    assert [r.number for r in again.results[:2]] == [0, 1], "finished trials are not redone"


@pytest.mark.parametrize("sampler_name", ["scaling", "tpe", "random", "qmc", "cmaes"])
def test_a_study_that_was_interrupted_proposes_what_an_uninterrupted_one_does(
    tmp_path: Path, new_database: Callable[[Path], str], sampler_name: str
) -> None:
    whole = Session(open_storage(new_database(tmp_path / "a.db")), budget=Budget(trials=14), sampler_name=sampler_name)
    whole.run()
    url = new_database(tmp_path / "b.db")
    stop_in_trial(Session(open_storage(url), budget=Budget(trials=99), sampler_name=sampler_name), 3)
    stop_in_trial(Session(open_storage(url), budget=Budget(trials=99), sampler_name=sampler_name), 12, after=1)
    last = Session(open_storage(url), budget=Budget(trials=14), sampler_name=sampler_name)
    last.run()
    finished = [(r.parameters, r.seed) for r in last.results if r.outcome is not Outcome.INTERRUPTED]
    assert len(last.results) == len(finished) + 2
    assert finished == points(whole)


def test_an_interrupted_baseline_stays_the_baseline(storage: Storage) -> None:
    stop_in_trial(Session(storage, budget=TEN), 0)
    again = Session(storage, budget=Budget(trials=2))
    again.run()
    assert [r.is_baseline for r in again.results] == [True, True, False]


@pytest.mark.parametrize("finished", [0, 4])
def test_a_killed_driver_leaves_nothing_running_once_the_study_goes_on(storage: Storage, finished: int) -> None:
    killed = Session(storage, budget=TEN)
    events = killed.events()
    trials = 0
    for event in events:
        trials += isinstance(event, TrialEnded)
        if trials == finished and isinstance(event, TrialMeasured) and event.measurement.step > 0:
            break
    assert states(storage).count("RUNNING") == 1
    done = points(killed)

    again = Session(storage, budget=TEN)
    again.run()
    assert "RUNNING" not in states(storage)
    orphan = again.results[finished]
    assert (orphan.outcome, orphan.reason) == (Outcome.INTERRUPTED, "its driver was killed")
    assert points(again)[:finished] == done
    assert points(again)[finished + 1] == points(again)[finished], "it is repeated first"
    assert again.tracker.results[0] == orphan, "the copy learns how it ended"
    killed.study._running = None
    events.close()  # type: ignore[attr-defined]


def test_a_killed_driver_is_charged_for_the_interval_it_was_in(storage: Storage) -> None:
    killed = Session(storage, budget=TEN)
    events = killed.events()
    _, event = islice(events, 2)
    assert isinstance(event, TrialMeasured), "and the first measurement is always written"
    again = Session(storage, budget=Budget(trials=1))
    again.run()
    orphan, _ = again.results
    assert orphan.cost.examples == 100, "all of the first interval, of which nobody knows how far it came"
    killed.study._running = None
    events.close()  # type: ignore[attr-defined]


def test_a_driver_that_breaks_off_ends_its_trial(storage: Storage) -> None:
    session = Session(storage, budget=TEN)
    events = session.events()
    for _ in islice(events, 5):
        pass
    events.close()  # type: ignore[attr-defined]  # as an exception in the display does, or a second Ctrl-C
    assert states(storage) == ["FAIL"]
    [result] = session.results
    assert (result.outcome, result.reason) == (Outcome.INTERRUPTED, "the study was broken off")
    assert len(result.measurements) == 4
    assert session.executor.is_idle


def test_a_worker_that_cannot_be_replaced_ends_the_study_and_not_its_books(storage: Storage) -> None:
    class Unwilling(ScriptedExecutor):
        def submit(self, request: TrialRequest) -> None:
            if request.number == 1:
                raise WorkloadError("the worker did not get ready")
            super().submit(request)

    session = Session(storage, budget=TEN, executor=Unwilling(Clock()))
    with pytest.raises(WorkloadError, match="did not get ready"):
        session.run()
    assert "RUNNING" not in states(storage)
    assert [r.outcome for r in session.results][1:] == [Outcome.INTERRUPTED]


def test_a_worker_that_hangs_when_the_user_stops_is_abandoned(storage: Storage) -> None:
    session = Session(storage, budget=TEN, fates={0: Fate(at=2, failure=None)})
    events = session.events()
    for _ in islice(events, 3):  # started, and two measurements
        pass
    session.stop_requested.set()
    since = session.clock.now
    *_, last = events
    assert isinstance(last, StudyEnded)
    assert STOP_WITHIN_SECONDS <= session.clock.now - since <= STOP_WITHIN_SECONDS + 2.0
    [result] = session.results
    assert (result.outcome, result.reason) == (Outcome.INTERRUPTED, "stopped by the user")
    assert result.cost.examples > result.measurements[-1].examples, "the interval it was in counts"


def test_a_stop_while_a_stopped_trial_is_slow_to_end_is_not_an_error(storage: Storage) -> None:
    """The user stops the study while the weights that reached the target are tested, which takes a while."""

    class SlowToEnd(ScriptedExecutor):
        silent = 4

        def next_event(self, *, timeout_seconds: float) -> object:  # type: ignore[override]
            if self._trial is not None and self._trial.stopped and self.silent:
                self.silent -= 1
                self.clock.now += timeout_seconds
                return None
            return super().next_event(timeout_seconds=timeout_seconds)

    clock = Clock()
    session = Session(storage, budget=TEN, executor=SlowToEnd(clock), clock=clock)
    for event in session.events():
        if isinstance(event, TrialMeasured) and EXAMPLES_TO_TARGET.met(
            event.measurement.metrics["val/classification_error"]
        ):
            session.stop_requested.set()
    [result] = session.results
    assert result.outcome is Outcome.REACHED, "what was reached stays reached"


def test_the_wall_clock_counts_over_sessions_and_survives_a_kill(storage: Storage) -> None:
    clock = Clock()
    killed = Session(storage, budget=TEN, clock=clock)
    events = killed.events()
    for event in events:
        if isinstance(event, TrialMeasured) and clock.now > 1_050.0:
            break
    used = clock.now - 1_000.0
    clock.now += 10_000.0  # nobody works on the study

    again = Session(storage, budget=Budget(wall_clock_seconds=60.0), clock=clock)
    assert used - 15.0 <= again.study.spent().wall_clock_seconds <= used
    since = clock.now
    ended = again.run()
    assert ended.stopped_by == "the budget is spent (wall clock)"
    assert clock.now - since < 60.0 - used + 40.0
    killed.study._running = None
    events.close()  # type: ignore[attr-defined]


def test_a_copy_that_cannot_be_written_changes_nothing(tmp_path: Path, new_database: Callable[[Path], str]) -> None:
    alone = Session(open_storage(new_database(tmp_path / "a.db")), budget=Budget(trials=4))
    alone.run()
    tracker = MlflowTracker(tracking_uri="sqlite:////proc/nobody/writes/here/mlflow.db", artifact_folder=tmp_path)
    tracker.study_started(RECORD)
    tracked = Session(open_storage(new_database(tmp_path / "b.db")), budget=Budget(trials=4), tracker=tracker)
    tracked.run()
    tracker.close(30.0)
    assert points(tracked) == points(alone)
    assert [r.outcome for r in tracked.results] == [r.outcome for r in alone.results]
    assert any("lacks" in problem for problem in tracker.problems())


DRIVER = """
import sys, time
from pathlib import Path
from scalesearch.core.budget import Budget
from scalesearch.search.database import open_storage
from scalesearch.study import TrialMeasured
from study.scripted import Session

session = Session(open_storage(sys.argv[1]), budget=Budget(trials=9), snapshots=Path(sys.argv[2]))
for event in session.events():
    if isinstance(event, TrialMeasured) and event.trial.number == 2:
        print("in trial 2", flush=True)
        time.sleep(60)
"""


def test_a_driver_that_is_really_killed(storage_url: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, storage_url, str(tmp_path / "snapshots")],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == "in trial 2\n"
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    storage = open_storage(storage_url)
    assert states(storage)[2] == "RUNNING"
    since = time.monotonic()
    again = Session(storage, budget=Budget(trials=4), what=resolved())
    again.run()
    assert "RUNNING" not in states(storage)
    assert [r.outcome is Outcome.INTERRUPTED for r in again.results] == [False, False, True, False, False]
    assert points(again)[3] == points(again)[2]
    assert time.monotonic() - since < 30.0


def test_a_driver_that_lost_its_lease_ends_its_trial(storage: Storage) -> None:
    session = Session(storage, budget=TEN)
    session.study._lease.refreshed = -1e9
    session.store.keep("lease", {"token": "another", "host": "another-host", "pid": 7})
    with pytest.raises(StudyError, match="taken over by process 7 on another-host"):
        session.run()
    assert session.executor.is_idle
