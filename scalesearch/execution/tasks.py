"""What a worker does besides trials: it answers a task, which is plain frozen data, with a stream of answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scalesearch.core.equivalence import CheckedRun, Part
from scalesearch.core.parameters import Parameters
from scalesearch.core.profile import ProfileFingerprint, ProfilePoint, Tried

if TYPE_CHECKING:
    from scalesearch.execution.messages import WorkerSetup
    from scalesearch.training.engine import MirroredTrainer


@dataclass(frozen=True)
class FingerprintTask:
    """What a profile of this worker would be of: one ProfileFingerprint."""


@dataclass(frozen=True, kw_only=True)
class FitTask:
    """Which per-replica batches fit in memory: a Tried before and after each (`training.profile.largest_that_fits`)."""

    smallest: int
    largest: int
    too_large: int | None = None
    momentum: float | None
    limit_seconds: float


@dataclass(frozen=True, kw_only=True)
class TimingTask:
    """Seconds per step of these per-replica batch sizes: ProfilePoints (`training.profile.measure_steps`)."""

    sizes: tuple[int, ...]
    accumulations: tuple[int, ...]
    momentum: float | None
    precision: float
    limit_seconds: float


@dataclass(frozen=True, kw_only=True)
class CheckTask:
    """A few steps with parts of the workload neutralised: one CheckedRun (`training.check.run`)."""

    parameters: Parameters
    seed: int
    steps: int
    neutralised: frozenset[Part] = frozenset()


Task = FingerprintTask | FitTask | TimingTask | CheckTask
Content = ProfileFingerprint | Tried | ProfilePoint | CheckedRun


@dataclass(frozen=True)
class Answer:
    """One of the answers to a task."""

    content: Content


@dataclass(frozen=True)
class Answered:
    """A task has been answered in full or, with `failure`, as far as it went. `error` names its class in `errors`."""

    failure: str = ""
    error: str = "WorkloadError"


def perform(task: Task, trainer: MirroredTrainer, setup: WorkerSetup) -> Iterator[Content]:
    """Answer a task; in a worker."""
    from scalesearch.training import check, machine, profile

    match task:
        case FingerprintTask():
            yield machine.fingerprint(trainer, workload=setup.workload, options=setup.options)
        case FitTask():
            yield from profile.largest_that_fits(
                trainer,
                smallest=task.smallest,
                largest=task.largest,
                too_large=task.too_large,
                momentum=task.momentum,
                limit_seconds=task.limit_seconds,
            )
        case TimingTask():
            yield from profile.measure_steps(
                trainer,
                sizes=task.sizes,
                accumulations=task.accumulations,
                momentum=task.momentum,
                precision=task.precision,
                limit_seconds=task.limit_seconds,
            )
        case CheckTask():
            yield check.run(trainer, task.parameters, seed=task.seed, steps=task.steps, neutralised=task.neutralised)
