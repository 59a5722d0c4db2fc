"""What a study tells: trackers. Their methods return at once and raise nothing for what MLflow does."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Measurement, TrialResult
from scalesearch.tracking.clock import now_ms
from scalesearch.tracking.content import StudyRecord, names
from scalesearch.tracking.saved_views import Links
from scalesearch.tracking.study_copy import StudyEnd
from scalesearch.tracking.writer import FLUSH_SECONDS, Writer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WAITING = "not written in time"


class MlflowTracker:
    """Copies one study to MLflow from a thread of its own, in order.

    Args:
        tracking_uri: as accepted by `check_tracking_uri`.
        artifact_folder: where artifacts go if `tracking_uri` is a database; a server has its own place.
    """

    def __init__(self, *, tracking_uri: str, artifact_folder: Path) -> None:
        self._tracking_uri = tracking_uri
        self._artifact_folder = artifact_folder
        self._messages: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread = Thread(target=self._write, name="mlflow", daemon=True)
        self._writer: Writer | None = None
        self._closed = False

    @property
    def links(self) -> Links | None:
        """Where to look in MLflow's UI; None until the study is open there."""
        return self._writer.links if self._writer else None

    def problems(self) -> tuple[str, ...]:
        """What is missing in MLflow and why, one sentence for each reason; final after `close`."""
        if self._writer is None:
            return ()
        return tuple(
            f"MLflow at {self._tracking_uri} lacks {names(things)}: {reason}"
            for reason, things in self._writer.missing.by_reason().items()
            if self._closed or reason != _WAITING
        )

    def study_started(self, record: StudyRecord) -> None:
        """Open the study in MLflow, or continue it there. Must come first, once."""
        self._writer = Writer(
            tracking_uri=self._tracking_uri,
            artifacts=self._artifact_folder,
            record=record,
            start_ms=now_ms(),
        )
        self._writer.missing.add("the study", _WAITING)
        self._messages.put(self._writer.open)
        self._thread.start()

    def trial_started(self, number: int, parameters: Parameters, *, seed: int, is_baseline: bool) -> None:
        """A trial begins."""
        self._send(
            partial(
                self._started_writer.trial_started,
                number,
                parameters,
                seed=seed,
                is_baseline=is_baseline,
                start_ms=now_ms(),
            )
        )

    def trial_measured(self, number: int, measurement: Measurement) -> None:
        """A running trial was evaluated."""
        self._send(partial(self._started_writer.trial_measured, number, measurement))

    def trial_ended(self, result: TrialResult) -> None:
        """A trial is over; `result` alone suffices to write all of it."""
        self._started_writer.missing.add(f"trial {result.number}", _WAITING)
        self._send(partial(self._started_writer.trial_ended, result, end_ms=now_ms()))

    def study_ended(
        self,
        *,
        note_markdown: str,
        results: Sequence[TrialResult],
        figures: Mapping[str, Figure],
        best: TrialResult | None,
        finished: bool,
        summary_metrics: Mapping[str, float],
        summary_tags: Mapping[str, str],
    ) -> None:
        """The study is over for now; `results` are all its trials, those of earlier sessions included.

        Unless it `finished`, time is short: what still waits is dropped, and the next session writes what is missing.
        Figures are drawn here, in the caller's thread, as matplotlib is not safe in several.
        """
        end = StudyEnd(
            note_markdown=note_markdown,
            results=tuple(results),
            figures={name: _png(figure) for name, figure in figures.items()},
            best=best,
            finished=finished,
            summary_metrics=dict(summary_metrics),
            summary_tags=dict(summary_tags),
        )
        self._started_writer.missing.add("the study's summary", _WAITING)
        if not finished:
            self._drop_what_waits()
        self._send(partial(self._started_writer.study_ended, end, end_ms=now_ms()))

    def close(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for MLflow to take what it was told; whether it has. Again, if called again."""
        if self._writer is None:
            return True
        if not self._closed:
            self._messages.put(None)
        self._thread.join(timeout)
        self._closed = True
        return not self._thread.is_alive()

    def abandon(self, timeout: float) -> None:
        """Drop what waits and leave no run that looks alive; the next session writes what is missing."""
        self._drop_what_waits()
        self.close(timeout)

    @property
    def _started_writer(self) -> Writer:
        if self._writer is None:
            raise RuntimeError("`study_started` must be called before anything else")
        return self._writer

    def _send(self, message: Callable[[], object]) -> None:
        self._messages.put(message)

    def _drop_what_waits(self) -> None:
        with suppress(Empty):
            while True:
                self._messages.get_nowait()

    def _write(self) -> None:
        writer = self._started_writer
        while True:
            with suppress(Empty):
                message = self._messages.get(timeout=FLUSH_SECONDS)
                if message is None:
                    break
                message()
            writer.flush()
        writer.close()


class NullTracker:
    """Tracks nothing."""

    links: Links | None = None

    def problems(self) -> tuple[str, ...]:
        """Nothing can be missing."""
        return ()

    def study_started(self, record: StudyRecord) -> None:
        """Do nothing."""

    def trial_started(self, number: int, parameters: Parameters, *, seed: int, is_baseline: bool) -> None:
        """Do nothing."""

    def trial_measured(self, number: int, measurement: Measurement) -> None:
        """Do nothing."""

    def trial_ended(self, result: TrialResult) -> None:
        """Do nothing."""

    def study_ended(
        self,
        *,
        note_markdown: str,
        results: Sequence[TrialResult],
        figures: Mapping[str, Figure],
        best: TrialResult | None,
        finished: bool,
        summary_metrics: Mapping[str, float],
        summary_tags: Mapping[str, str],
    ) -> None:
        """Do nothing."""

    def close(self, timeout: float) -> bool:
        """Nothing can be waiting."""
        return True

    def abandon(self, timeout: float) -> None:
        """Do nothing."""


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()
