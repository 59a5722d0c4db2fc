"""Writes the copy of one study, message after message, and knows what is missing from it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Measurement, TrialResult
from scalesearch.tracking.content import StudyRecord
from scalesearch.tracking.database import create_database
from scalesearch.tracking.saved_views import Links
from scalesearch.tracking.study_copy import StudyCopy, StudyEnd
from scalesearch.tracking.uri import is_database, sqlite_path

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_log = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0
_RETRY_SECONDS = 10.0
_LONGEST_REASON = 300
# Unless the user set them: no MLflow messages in between ours, no long wait for a server that is away.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


class Missing:
    """What MLflow has not taken: thing -> why. Written by the tracker's thread, read by any."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._lock = Lock()

    def add(self, thing: str, reason: str) -> None:
        """`thing` is missing, for `reason`."""
        with self._lock:
            self._reasons[thing] = reason

    def remove(self, thing: str) -> None:
        """`thing` is there now."""
        with self._lock:
            self._reasons.pop(thing, None)

    def by_reason(self) -> dict[str, list[str]]:
        """Reason -> what is missing for it."""
        with self._lock:
            things: dict[str, list[str]] = {}
            for thing, reason in self._reasons.items():
                things.setdefault(reason, []).append(thing)
            return things


class Writer:
    """Takes a study's messages in order; the first that MLflow takes opens the study there.

    A message that fails is logged and noted as missing, never raised. What MLflow did not take of a trial is
    written when the trial ends; a trial that it did not take, when a later one or the study ends.
    """

    def __init__(self, *, tracking_uri: str, artifacts: Path, record: StudyRecord, start_ms: int) -> None:
        self.missing = Missing()
        self._tracking_uri = tracking_uri
        self._artifacts = artifacts
        self._record = record
        self._start_ms = start_ms
        self._copy: StudyCopy | None = None
        self._running: dict[int, Parameters] = {}
        self._measured: dict[int, list[Measurement]] = {}
        self._unwritten: dict[int, tuple[TrialResult, int]] = {}
        self._flush_at = 0.0
        self._retry_at = 0.0
        self._study_ended = False

    @property
    def links(self) -> Links | None:
        """Where to look, once the study is open in MLflow."""
        return self._copy.links if self._copy else None

    def open(self) -> bool:
        """Open the study in MLflow, unless it is open; whether it is."""
        return self._attempt("the study", self._open)

    def trial_started(
        self, number: int, parameters: Parameters, *, seed: int, is_baseline: bool, start_ms: int
    ) -> None:
        """Create the trial's run."""
        self._running[number] = parameters

        def write() -> None:
            self._open().start_trial(number, parameters, seed=seed, is_baseline=is_baseline, start_ms=start_ms)

        if not self._is_away():
            self._attempt(f"trial {number}", write)

    def trial_measured(self, number: int, measurement: Measurement) -> None:
        """Keep the measurement until the next flush."""
        self._measured.setdefault(number, []).append(measurement)

    def flush(self) -> None:
        """Write the measurements that wait, if the last flush is long enough ago."""
        if time.monotonic() < self._flush_at:
            return
        self._flush_at = time.monotonic() + FLUSH_SECONDS
        measured, self._measured = self._measured, {}
        for number, measurements in measured.items():
            if self._copy is None or self._is_away() or not self._copy.has_run(number):
                continue  # the end of the trial writes them
            self._attempt(
                f"trial {number}",
                partial(self._copy.add_measurements, number, self._running[number], measurements),
            )

    def trial_ended(self, result: TrialResult, *, end_ms: int) -> None:
        """Complete the trial's run, and those that MLflow did not take before."""
        self._measured.pop(result.number, None)
        self._running.pop(result.number, None)
        self._unwritten[result.number] = (result, end_ms)
        if self._is_away():
            return
        for number in list(self._unwritten):
            if not self._write_result(number):
                return

    def study_ended(self, end: StudyEnd, *, end_ms: int) -> None:
        """Complete the copy: first of all the statuses, then every trial that is not there yet, the study's run and views."""
        self._study_ended = True
        if not self.open() or self._copy is None:
            return
        self._attempt("the study's end", partial(self._copy.settle, finished=end.finished))
        for result in end.results:
            self._unwritten.setdefault(result.number, (result, end_ms))
        for number in sorted(self._unwritten):
            self._write_result(number)
        decays = max((len(r.parameters.schedule.boundaries) for r in end.results), default=0)
        self._attempt("the study's summary", partial(self._copy.end, end))
        self._attempt("the saved views", partial(self._copy.write_views, decays=decays))

    def close(self) -> None:
        """Leave no run that looks alive."""
        if self._copy is not None and not self._study_ended:
            self._attempt("the study's end", partial(self._copy.settle, finished=False))

    def _open(self) -> StudyCopy:
        if self._copy is None:
            client = _connect(self._tracking_uri)
            artifacts = self._artifacts if is_database(self._tracking_uri) else None  # a server has its own
            self._copy = StudyCopy(client, self._record, artifacts=artifacts, start_ms=self._start_ms)
        return self._copy

    def _write_result(self, number: int) -> bool:
        result, end_ms = self._unwritten.pop(number)
        written = self._attempt(f"trial {number}", lambda: self._open().end_trial(result, end_ms=end_ms))
        if not written:
            self._unwritten[number] = (result, end_ms)  # behind the others: one bad trial must not block them
        return written

    def _is_away(self) -> bool:
        return time.monotonic() < self._retry_at

    def _attempt(self, thing: str, write: Callable[[], object]) -> bool:
        """Whether `write` succeeded. Whatever it raises is a fault of the copy, not of the study."""
        try:
            write()
        except Exception as error:
            reason = _reason(error)
            self.missing.add(thing, reason)
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            _log.warning("MLflow did not take %s: %s", thing, reason)
            return False
        self.missing.remove(thing)
        return True


def _connect(tracking_uri: str) -> MlflowClient:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if (path := sqlite_path(tracking_uri)) is not None:
        create_database(path)
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=tracking_uri)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"
