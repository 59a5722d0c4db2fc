"""What the running trial has measured, on disk at once: the storage is written once a second only."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

from scalesearch.core.budget import measured_cost
from scalesearch.core.results import Measurement, Outcome, TrialResult
from scalesearch.search.records import measurements_from_json, measurements_to_json


class Journal:
    """A file with the number of the running trial and its new measurements, one a line.

    A driver that is killed leaves it, so that the next one knows what was spent. Where it cannot be written, or the next
    driver is on another machine, what is in the storage has to do.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_whole = False

    def begin(self, number: int) -> None:
        """From now on, it is about this trial."""
        self._is_whole = True
        self._write(number, mode="w")

    def add(self, measurement: Measurement) -> None:
        """The running trial was evaluated."""
        self._write(measurements_to_json([measurement]), mode="a")

    def end(self) -> None:
        """The trial is over, and everything of it is in the storage."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def completed(self, orphan: TrialResult, *, replicas: int) -> TrialResult:
        """An interrupted trial of a killed driver with all that it had measured, and what that cost."""
        shared = tuple(m for m in orphan.measurements if orphan.shared_steps and m.step <= orphan.shared_steps)
        measured = (*shared, *self._read(orphan.number))
        if orphan.outcome is not Outcome.INTERRUPTED or len(measured) <= len(orphan.measurements):
            return orphan
        cost = measured_cost(measured, shared_steps=orphan.shared_steps, replicas=replicas)
        return replace(orphan, measurements=measured, cost=cost)

    def _write(self, content: object, *, mode: Literal["w", "a"]) -> None:
        if not self._is_whole:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open(mode, encoding="utf-8") as file:
                file.write(json.dumps(content) + "\n")
        except OSError:
            self._is_whole = False  # what follows a gap is of no use

    def _read(self, number: int) -> list[Measurement]:
        try:
            first, *lines = self._path.read_text(encoding="utf-8").splitlines()
            if json.loads(first) != number:
                return []
        except (OSError, ValueError):
            return []
        measured: list[Measurement] = []
        for line in lines:
            try:
                measured.extend(measurements_from_json(json.loads(line)))
            except ValueError:  # it was cut within the last line
                break
        return measured
