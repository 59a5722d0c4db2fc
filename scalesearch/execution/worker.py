"""A worker: one process with its devices, kept warm between trials.

It runs in a session of its own (a Ctrl-C at the terminal reaches the driver only), writes what it prints to a log
file, and ends when its driver does.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalesearch.core.results import Measurement, Outcome
from scalesearch.errors import OutOfMemory, ScalesearchError, SnapshotError, WorkloadError
from scalesearch.execution.describe import describe, place
from scalesearch.execution.messages import (
    Ended,
    Measured,
    Ready,
    Saved,
    SetupFailed,
    Stop,
    TrialRequest,
    WorkerSetup,
)
from scalesearch.execution.tasks import Answer, Answered, Task, perform

if TYPE_CHECKING:
    from scalesearch.training.checkpoints import Fingerprint, Snapshot
    from scalesearch.training.engine import MirroredTrainer


def run_worker(connection: Connection, setup: WorkerSetup, log_path: Path) -> None:
    """Build the workload, then serve trials until the driver closes the connection."""
    os.setsid()
    _write_output_to(log_path)
    threading.Thread(target=_end_with_driver, daemon=True).start()
    try:
        trainer, snapshots, ready = _build(setup)
    except ScalesearchError as error:
        traceback.print_exc()
        connection.send(SetupFailed(_known_kind(error), f"{error}{place(error)}"))
        return
    connection.send(ready)
    while True:
        try:
            request = connection.recv()
        except EOFError:
            sys.stdout.flush()
            os._exit(0)  # TensorFlow takes seconds to tear down, and nothing is left to save
        if isinstance(request, TrialRequest):
            connection.send(_run_trial(connection, trainer, snapshots, request))
        else:
            connection.send(_answer(connection, trainer, setup, request))


def _answer(connection: Connection, trainer: MirroredTrainer, setup: WorkerSetup, task: Task) -> Answered:
    try:
        for content in perform(task, trainer, setup):
            connection.send(Answer(content))
    except ScalesearchError as error:
        return Answered(f"{error}{place(error)}", _known_kind(error))
    except Exception as error:
        traceback.print_exc()
        return Answered(f"workload {setup.workload}: {describe(error)}")
    return Answered()


class _Snapshots:
    """Writes the running trial's snapshots, one at a time, while it trains on."""

    def __init__(self, trainer: MirroredTrainer, fingerprint: Fingerprint) -> None:
        self._trainer = trainer
        self._fingerprint = fingerprint
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="snapshots")
        self._writing: Future[Saved] | None = None

    def save(self, path: Path) -> None:
        """Take a snapshot and begin to write it. What fails is in the `news`: the trial can do without."""
        started = time.monotonic()
        self.wait()
        try:
            snapshot = self._trainer.snapshot()
        except Exception as error:
            problem = f"no snapshot of the trial could be taken: {describe(error)}"
            self._writing = Future()
            self._writing.set_result(Saved(path=path, seconds=time.monotonic() - started, problem=problem))
        else:
            self._writing = self._thread.submit(self._write, snapshot, path, time.monotonic() - started)

    def load(self, path: Path) -> Snapshot:
        """Read a file; raises SnapshotError."""
        from scalesearch.training.checkpoints import load

        return load(path, fingerprint=self._fingerprint)

    def news(self) -> Saved | None:
        """What became of the last snapshot, once it is known, and once only."""
        if self._writing is None or not self._writing.done():
            return None
        saved, self._writing = self._writing.result(), None
        return saved

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._writing is not None:
            wait_for([self._writing])

    def _write(self, snapshot: Snapshot, path: Path, held_seconds: float) -> Saved:
        from scalesearch.training.checkpoints import save

        problem = ""
        started = time.thread_time()  # the disk may take its time, as the trial trains on
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save(snapshot, path, fingerprint=self._fingerprint)
        except SnapshotError as error:
            problem = str(error)
        except Exception as error:
            problem = f"snapshot {path} cannot be written: {describe(error)}"
        return Saved(path=path, seconds=held_seconds + time.thread_time() - started, problem=problem)


def _build(setup: WorkerSetup) -> tuple[MirroredTrainer, _Snapshots, Ready]:
    # Devices can be configured only before TensorFlow has touched them, and importing it takes seconds: here, in
    # the worker, and never in the driver.
    from scalesearch.training.checkpoints import Fingerprint, data_digest
    from scalesearch.training.devices import configure_devices
    from scalesearch.training.engine import MirroredTrainer
    from scalesearch.workloads import load_workload

    devices = configure_devices(setup.replicas)
    workload = load_workload(setup.workload, setup.options)
    try:
        data = workload.load_data()
        trainer = MirroredTrainer(workload, data, optimizer=setup.optimizer, devices=devices)
    except ScalesearchError:
        raise
    except Exception as error:
        message = " ".join(str(error).split())
        raise WorkloadError(f"workload {setup.workload}: {type(error).__name__}: {message}") from error
    fingerprint = Fingerprint(
        workload=setup.workload, options=setup.options, optimizer=setup.optimizer, data=data_digest(data)
    )
    ready = Ready(
        devices=tuple(devices),
        train_examples=len(data.train),
        metrics=("val/loss", *(f"val/{name}" for name in workload.metrics)),
        maximize=tuple(f"val/{name}" for name in workload.maximize),
    )
    return trainer, _Snapshots(trainer, fingerprint), ready


def _run_trial(connection: Connection, trainer: MirroredTrainer, snapshots: _Snapshots, request: TrialRequest) -> Ended:
    started = time.monotonic()

    def ended(**kwargs: Any) -> Ended:
        snapshots.wait()
        elapsed_seconds = time.monotonic() - started
        return Ended(number=request.number, elapsed_seconds=elapsed_seconds, saved=snapshots.news(), **kwargs)

    try:
        stop = _train(connection, trainer, snapshots, request)
        wanted = stop is not None and stop.evaluate_test
        return ended(test_metrics=trainer.evaluate("test") if wanted else {})
    except SnapshotError as error:
        return ended(start_problem=str(error))
    except OutOfMemory as error:
        return ended(failure=Outcome.OUT_OF_MEMORY, reason=str(error))
    except Exception as error:
        traceback.print_exc()
        return ended(failure=Outcome.CRASHED, reason=describe(error))


def _train(
    connection: Connection, trainer: MirroredTrainer, snapshots: _Snapshots, request: TrialRequest
) -> Stop | None:
    """Send every measurement and wait for the driver's verdict; the verdict that stopped the trial, if one did."""
    start = snapshots.load(request.start) if request.start is not None else None
    training: Iterator[Measurement] = trainer.train(
        request.parameters, seed=request.seed, plan=request.plan, start=start
    )
    for measurement in training:
        connection.send(Measured(request.number, measurement, snapshots.news()))
        verdict = connection.recv()
        if verdict.snapshot is not None:
            snapshots.save(verdict.snapshot)
        if isinstance(verdict, Stop):
            training.close()  # type: ignore[attr-defined]  # a generator
            return verdict
    return None


def _known_kind(error: ScalesearchError) -> str:
    """The name of the error's class or, for a user's own kind of error, of the nearest one that the driver knows."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == ScalesearchError.__module__)


def _write_output_to(log_path: Path) -> None:
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    # At once, so that what a killed worker said is kept.
    sys.stdout, sys.stderr = (io.TextIOWrapper(_Log(fd, "w", closefd=False), write_through=True) for fd in (1, 2))


class _Log(io.FileIO):
    """A file that takes what its disk has room for: what cannot be logged must not end a trial."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def _end_with_driver() -> None:
    driver = parent_process()
    if driver is not None:
        wait([driver.sentinel])
        os.killpg(0, signal.SIGKILL)  # with all that the user's code has started
