"""What a driver and its workers say to each other. All of it is plain frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    """One training run for a worker."""

    number: int
    parameters: Parameters
    seed: int
    plan: EvaluationPlan


@dataclass(frozen=True)
class Proceed:
    """Go on to the next measurement."""


@dataclass(frozen=True, kw_only=True)
class Stop:
    """End the running trial now; with `evaluate_test`, measure its present weights on the test split first."""

    evaluate_test: bool


@dataclass(frozen=True)
class Measured:
    """A trial was evaluated; its worker waits for Proceed or Stop."""

    number: int
    measurement: Measurement


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A trial is over. `failure` is set if it ended by itself before its full length.

    `elapsed_seconds` is how long it held its devices; None if its worker could not tell.
    """

    number: int
    failure: Outcome | None = None
    reason: str = ""
    elapsed_seconds: float | None = None
    test_metrics: Mapping[str, float] = field(default_factory=dict)


Event = Measured | Ended
