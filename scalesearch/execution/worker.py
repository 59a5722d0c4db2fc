"""A worker: one process with its devices, kept warm between trials.

It runs in a session of its own (a Ctrl-C at the terminal reaches the driver only), writes what it prints to a log
file, and ends when its driver does.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalesearch.core.results import Measurement, Outcome
from scalesearch.errors import OutOfMemory, ScalesearchError, WorkloadError
from scalesearch.execution.describe import describe, place
from scalesearch.execution.messages import (
    Ended,
    Measured,
    Ready,
    SetupFailed,
    Stop,
    TrialRequest,
    WorkerSetup,
)

if TYPE_CHECKING:
    from scalesearch.training.engine import MirroredTrainer


def run_worker(connection: Connection, setup: WorkerSetup, log_path: Path) -> None:
    """Build the workload, then serve trials until the driver closes the connection."""
    os.setsid()
    _write_output_to(log_path)
    threading.Thread(target=_end_with_driver, daemon=True).start()
    try:
        trainer, ready = _build(setup)
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
        connection.send(_run_trial(connection, trainer, request))


def _build(setup: WorkerSetup) -> tuple[MirroredTrainer, Ready]:
    # Devices can be configured only before TensorFlow has touched them, and importing it takes seconds: here, in
    # the worker, and never in the driver.
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
    ready = Ready(
        devices=tuple(devices),
        train_examples=len(data.train),
        metrics=("val/loss", *(f"val/{name}" for name in workload.metrics)),
        maximize=tuple(f"val/{name}" for name in workload.maximize),
    )
    return trainer, ready


def _run_trial(connection: Connection, trainer: MirroredTrainer, request: TrialRequest) -> Ended:
    started = time.monotonic()

    def ended(**kwargs: Any) -> Ended:
        return Ended(number=request.number, elapsed_seconds=time.monotonic() - started, **kwargs)

    try:
        stop = _train(connection, trainer, request)
        wanted = stop is not None and stop.evaluate_test
        return ended(test_metrics=trainer.evaluate("test") if wanted else {})
    except OutOfMemory as error:
        return ended(failure=Outcome.OUT_OF_MEMORY, reason=str(error))
    except Exception as error:
        traceback.print_exc()
        return ended(failure=Outcome.CRASHED, reason=describe(error))


def _train(connection: Connection, trainer: MirroredTrainer, request: TrialRequest) -> Stop | None:
    """Send every measurement and wait for the driver's verdict; the verdict that stopped the trial, if one did."""
    training: Iterator[Measurement] = trainer.train(request.parameters, seed=request.seed, plan=request.plan)
    for measurement in training:
        connection.send(Measured(request.number, measurement))
        verdict = connection.recv()
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
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what a killed worker said is kept


def _end_with_driver() -> None:
    driver = parent_process()
    if driver is not None:
        wait([driver.sentinel])
        os.killpg(0, signal.SIGKILL)  # with all that the user's code has started
