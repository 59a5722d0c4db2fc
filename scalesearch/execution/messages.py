"""What a driver and its workers say to each other. All of it is plain frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalesearch.core.evaluation import EvaluationPlan
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Measurement, Outcome


@dataclass(frozen=True, kw_only=True)
class WorkerSetup:
    """What a worker builds once. `replicas` None: all GPUs, or one CPU replica where there is none."""

    workload: str
    options: Mapping[str, Any]
    optimizer: str
    replicas: int | None


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A worker has built its workload: what the driver must know about it."""

    devices: tuple[str, ...]
    train_examples: int
    metrics: tuple[str, ...]
    maximize: tuple[str, ...]

    @property
    def replicas(self) -> int:
        return len(self.devices)


@dataclass(frozen=True)
class SetupFailed:
    """A worker could not be built. `error` is the name of the class in `scalesearch.errors` to raise."""

    error: str
    message: str


@dataclass(frozen=True, kw_only=True)
class TrialRequest:
    """One training run for a worker; with `start`, from that snapshot on, which is not measured again."""

    number: int
    parameters: Parameters
    seed: int
    plan: EvaluationPlan
    start: Path | None = None


@dataclass(frozen=True)
class Proceed:
    """Go on to the next measurement; with `snapshot`, the state just measured is written to that file meanwhile."""

    snapshot: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Stop:
    """End the running trial now; with `evaluate_test`, measure its present weights on the test split first.

    With `snapshot`, its state is written to that file before.
    """

    evaluate_test: bool
    snapshot: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What became of a snapshot that was asked for: it was written, or `problem` says why not.

    `seconds` is what it took of the trial's time: how long the trial was held up, and the processor time of writing.
    """

    path: Path
    seconds: float
    problem: str = ""


@dataclass(frozen=True)
class Measured:
    """A trial was evaluated; its worker waits for Proceed or Stop. `saved` tells once of each snapshot that is done."""

    number: int
    measurement: Measurement
    saved: Saved | None = None


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A trial is over. `failure` is set if it ended by itself before its full length.

    `elapsed_seconds` is how long it held its devices; None if its worker could not tell. `worker_lost`: it failed as its
    worker was killed or fell silent, which need not be its own fault. `start_problem`: it never began, as it cannot go on
    from the snapshot that it was given. `saved` is the last snapshot that was done since the last event.
    """

    number: int
    failure: Outcome | None = None
    reason: str = ""
    elapsed_seconds: float | None = None
    test_metrics: Mapping[str, float] = field(default_factory=dict)
    worker_lost: bool = False
    start_problem: str = ""
    saved: Saved | None = None


Event = Measured | Ended
