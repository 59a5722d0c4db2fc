"""What a study needs of the world around it, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Measurement, TrialResult
from scalesearch.execution.messages import Event, TrialRequest


class Executor(Protocol):
    """Where trials run."""

    def submit(self, request: TrialRequest) -> None: ...
    def next_event(self, *, timeout_seconds: float) -> Event | None: ...
    def proceed(self, *, snapshot: Path | None = None) -> None: ...
    def stop(self, *, evaluate_test: bool = False, snapshot: Path | None = None) -> None: ...
    def abandon(self) -> None: ...


class Tracker(Protocol):
    """Where a study is written down for people to browse."""

    def trial_started(self, number: int, parameters: Parameters, *, seed: int, is_baseline: bool) -> None: ...
    def trial_measured(self, number: int, measurement: Measurement) -> None: ...
    def trial_ended(self, result: TrialResult) -> None: ...
