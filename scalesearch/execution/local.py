"""Trials in a worker process on this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from scalesearch import errors
from scalesearch.core.results import Outcome
from scalesearch.execution.messages import (
    Ended,
    Event,
    Measured,
    Proceed,
    Ready,
    SetupFailed,
    Stop,
    TrialRequest,
    WorkerSetup,
)
from scalesearch.execution.worker import run_worker

CLOSE_SECONDS = 5.0


class LocalExecutor:
    """One warm worker process; replaced when it dies, hangs or exits.

    Args:
        setup: what the worker builds.
        log_path: the file that gets what the worker prints.
        no_progress_seconds: a worker that reports nothing for so long is killed.
    """

    def __init__(self, setup: WorkerSetup, *, log_path: Path, no_progress_seconds: float) -> None:
        self._setup = setup
        self._log_path = log_path
        self._no_progress_seconds = no_progress_seconds
        self._context = multiprocessing.get_context("spawn")
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None
        self._running: int | None = None
        self._last_news = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether a trial can be submitted."""
        return self._running is None

    def start(self) -> Ready:
        """Start the worker and wait until it has built its workload.

        Raises the worker's own ScalesearchError, or WorkloadError if the process dies on the way.
        """
        ours, theirs = self._context.Pipe()
        self._process = self._context.Process(
            target=run_worker, args=(theirs, self._setup, self._log_path), name="scalesearch worker"
        )
        self._process.start()
        theirs.close()
        self._connection = ours
        message = self._receive(self._no_progress_seconds)
        if isinstance(message, Ready):
            return message
        reason = self._why_silent()
        self._kill()
        if isinstance(message, SetupFailed):
            raise getattr(errors, message.error)(message.message)
        raise errors.WorkloadError(
            f"the worker did not get ready with workload {self._setup.workload}: {reason}; "
            f"what it printed is in {self._log_path}"
        )

    def submit(self, request: TrialRequest) -> None:
        """Start a trial; a worker that has died since is replaced first."""
        if not self.is_idle:
            raise RuntimeError(f"trial {self._running} is still running")
        if self._process is None or not self._process.is_alive():
            self._kill()
            self.start()
        self._send(request)
        self._running = request.number
        self._last_news = time.monotonic()

    def next_event(self, *, timeout_seconds: float) -> Event | None:
        """The next measurement or end of a trial; None if there is none within the time."""
        if self._running is None:
            return None
        message = self._receive(timeout_seconds)
        if isinstance(message, Measured):
            self._last_news = time.monotonic()
            return message
        if isinstance(message, Ended):
            self._running = None
            return message
        if self._process is not None and self._process.is_alive():
            silent = time.monotonic() - self._last_news
            if silent < self._no_progress_seconds:
                return None
        return self._crashed(self._why_silent())

    def proceed(self) -> None:
        """Let the trial that was just measured go on."""
        self._send(Proceed())

    def stop(self, *, evaluate_test: bool = False) -> None:
        """End the trial that was just measured; its Ended event follows."""
        self._send(Stop(evaluate_test=evaluate_test))

    def abandon(self) -> None:
        """Kill the worker with the trial that it is running, without waiting for its next measurement."""
        self._kill()
        self._running = None

    def close(self) -> None:
        """End the worker."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            self._process.join(CLOSE_SECONDS)
        self._kill()

    def _send(self, message: TrialRequest | Proceed | Stop) -> None:
        assert self._connection is not None
        with contextlib.suppress(OSError):  # The worker is gone: next_event() reports it.
            self._connection.send(message)

    def _receive(self, timeout_seconds: float) -> object:
        """The worker's next message; None if it sends none in time or has died."""
        assert self._connection is not None
        assert self._process is not None
        ready = wait([self._connection, self._process.sentinel], timeout=timeout_seconds)
        if not ready:
            return None
        with contextlib.suppress(EOFError, OSError):
            if self._connection.poll():
                return self._connection.recv()
        self._process.join(CLOSE_SECONDS)  # it has died: wait for its exit code, which says why
        return None

    def _crashed(self, reason: str) -> Ended:
        assert self._running is not None
        number = self._running
        self.abandon()
        return Ended(number=number, failure=Outcome.CRASHED, reason=reason)

    def _why_silent(self) -> str:
        code = self._process.exitcode if self._process is not None else None
        if code is None:
            return f"the worker reported nothing for {self._no_progress_seconds:g} s"
        if code < 0:
            name = signal.Signals(-code).name
            hint = " (as the kernel does when memory runs out)" if name == "SIGKILL" else ""
            return f"the worker was killed by {name}{hint}"
        return f"the worker exited with code {code}"

    def _kill(self) -> None:
        """End the process and everything it has started."""
        if self._process is not None and self._process.pid is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                self._process.kill()
            self._process.join()
        self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
