"""Trials in a worker process on this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
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
from scalesearch.execution.tasks import Answer, Answered, Content, Task
from scalesearch.execution.worker import run_worker

CLOSE_SECONDS = 5.0
START_SECONDS = 120.0  # a worker that gets ready may be silent for so long: it imports TensorFlow and loads its data
MAX_STARTS = 3  # of a worker that is killed before it is ready


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
        self._starts = 0
        self._is_ready = False
        self._running: int | None = None
        self._waiting: TrialRequest | None = None  # for a worker to get ready
        self._last_news = 0.0
        self._oom_kills: int | None = None

    @property
    def is_idle(self) -> bool:
        """Whether a trial can be submitted."""
        return self._running is None

    def start(self) -> Ready:
        """Start the worker and wait until it has built its workload.

        Raises the worker's own ScalesearchError, or WorkloadError if the process dies on the way.
        """
        self._starts = 0
        self._spawn()
        while (ready := self._became_ready(self._receive(self._silence_seconds))) is None:
            pass
        return ready

    def submit(self, request: TrialRequest) -> None:
        """Start a trial; a worker that has died since is replaced first, while `next_event` waits."""
        if not self.is_idle:
            raise RuntimeError(f"trial {self._running} is still running")
        self._running = request.number
        self._last_news = time.monotonic()
        self._oom_kills = _oom_kills()
        if self._process is not None and self._process.is_alive():
            self._send(request)
            return
        self._kill()
        self._starts, self._waiting = 0, request
        self._spawn()

    def next_event(self, *, timeout_seconds: float) -> Event | None:
        """The next measurement or end of a trial; None if there is none within the time.

        Raises what `start` does if the trial's worker had to be replaced and cannot be.
        """
        if self._running is None:
            return None
        message = self._receive(timeout_seconds)
        if self._waiting is not None:
            self._submit_once_ready(message)
            return None
        if isinstance(message, Measured):
            self._last_news = time.monotonic()
            return message
        if isinstance(message, Ended):
            self._running = None
            return message
        return self._crashed() if self._is_silent() else None

    def proceed(self, *, snapshot: Path | None = None) -> None:
        """Let the trial that was just measured go on; its state is written to the file `snapshot` meanwhile."""
        self._send(Proceed(snapshot=snapshot))

    def stop(self, *, evaluate_test: bool = False, snapshot: Path | None = None) -> None:
        """End the trial that was just measured; its Ended event follows."""
        self._send(Stop(evaluate_test=evaluate_test, snapshot=snapshot))

    def abandon(self) -> None:
        """Kill the worker with the trial that it is running, without waiting for its next measurement."""
        self._kill()
        self._running = self._waiting = None

    def answers(self, task: Task) -> Iterator[Content]:
        """What the worker answers to a task; to break it off, close the generator, which ends the worker.

        Raises WorkerLost if the worker dies of it or falls silent, and what the worker raised.
        """
        if not self.is_idle:
            raise RuntimeError(f"trial {self._running} is still running")
        if not self._is_alive():
            self._kill()
            self.start()
        self._send(task)
        complete = False
        try:
            while isinstance(message := self._receive(self._no_progress_seconds), Answer):
                yield message.content
            if not isinstance(message, Answered):
                raise errors.WorkerLost(self._why_silent())
            complete = True
            if message.failure:
                raise getattr(errors, message.error)(message.failure)
        finally:
            if not complete:
                self._kill()

    def close(self) -> None:
        """End the worker, at once if it is busy."""
        if self._process is not None and self._is_ready and self.is_idle and self._connection is not None:
            self._connection.close()
            self._connection = None
            self._process.join(CLOSE_SECONDS)
        self._kill()

    def _spawn(self) -> None:
        ours, theirs = self._context.Pipe()
        self._process = self._context.Process(
            target=run_worker, args=(theirs, self._setup, self._log_path), name="scalesearch worker"
        )
        self._process.start()
        theirs.close()
        self._connection = ours
        self._starts += 1
        self._last_news = time.monotonic()

    def _submit_once_ready(self, message: object) -> None:
        assert self._waiting is not None
        if message is None and not self._is_silent():
            return
        if self._became_ready(message) is not None:
            self._send(self._waiting)
            self._waiting = None
            self._last_news = time.monotonic()

    def _became_ready(self, message: object) -> Ready | None:
        """What a new worker says of itself; None if it was killed, and another one was started in its place."""
        if isinstance(message, Ready):
            self._is_ready = True
            return message
        reason, killed = self._why_silent(), self._was_killed()
        self._kill()
        if isinstance(message, SetupFailed):
            raise getattr(errors, message.error)(message.message)
        if killed and self._starts < MAX_STARTS:
            self._spawn()
            return None
        raise errors.WorkloadError(
            f"the worker did not get ready with workload {self._setup.workload}: {reason}; "
            f"what it printed is in {self._log_path}"
        )

    def _send(self, message: TrialRequest | Proceed | Stop | Task) -> None:
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

    def _crashed(self) -> Ended:
        assert self._running is not None
        number, reason = self._running, self._why_silent()
        # A worker that exits does so on its own account.
        lost = self._is_alive() or self._was_killed()
        no_memory = self._was_killed_by_the_kernel()
        if no_memory:
            reason = "the worker was killed by the kernel, as memory had run out"
        self.abandon()
        return Ended(
            number=number,
            failure=Outcome.OUT_OF_MEMORY if no_memory else Outcome.CRASHED,
            reason=reason,
            worker_lost=lost,
        )

    @property
    def _silence_seconds(self) -> float:
        """For how long a worker may be silent."""
        return self._no_progress_seconds if self._is_ready else max(self._no_progress_seconds, START_SECONDS)

    def _is_silent(self) -> bool:
        """Whether the worker has been silent for too long, or will be for ever."""
        return not self._is_alive() or time.monotonic() - self._last_news >= self._silence_seconds

    def _is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def _was_killed(self) -> bool:
        code = self._process.exitcode if self._process is not None else None
        return code is not None and code < 0

    def _was_killed_by_the_kernel(self) -> bool:
        code = self._process.exitcode if self._process is not None else None
        return code == -signal.SIGKILL and _oom_kills() != self._oom_kills

    def _why_silent(self) -> str:
        code = self._process.exitcode if self._process is not None else None
        if code is None:
            return f"the worker reported nothing for {self._silence_seconds:g} s"
        if code < 0:
            name = signal.Signals(-code).name
            return f"the worker was killed by {name}"
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
        self._is_ready = False
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _oom_kills() -> int | None:
    """How many processes the kernel has killed for want of memory, in any cgroup; None where it does not tell."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
