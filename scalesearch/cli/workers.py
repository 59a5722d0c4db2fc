"""A definition's worker, for any command that trains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from scalesearch.definition import ResolvedStudy, StudyDefinition, resolve
from scalesearch.errors import DefinitionError, StudyError
from scalesearch.execution.local import LocalExecutor
from scalesearch.execution.messages import Ready, WorkerSetup

FILES_FOLDER = Path("scalesearch-files")


@dataclass(frozen=True)
class StartedWorker:
    """A worker that is ready, and the definition as it is on its devices."""

    executor: LocalExecutor
    ready: Ready
    resolved: ResolvedStudy


@contextmanager
def started_worker(definition: StudyDefinition, *, path: Path, console: Console) -> Iterator[StartedWorker]:
    """A worker for the definition of the file `path`; ended on the way out."""
    executor = _new_executor(definition)
    try:
        with console.status(f"starting a worker with {definition.workload.name}"):
            ready = executor.start()
        yield StartedWorker(executor, ready, _resolved(definition, ready, path=path))
    finally:
        executor.close()


def _new_executor(definition: StudyDefinition) -> LocalExecutor:
    """An executor of the definition's workload on its replicas, not started yet."""
    replicas = definition.run.replicas
    setup = WorkerSetup(
        workload=definition.workload.name,
        options=definition.workload.options,
        optimizer=definition.workload.optimizer,
        replicas=replicas if isinstance(replicas, int) else None,
    )
    return LocalExecutor(setup, log_path=_log_path(definition), no_progress_seconds=definition.run.no_progress_limit)


def with_replicas(definition: StudyDefinition, replicas: int | None) -> StudyDefinition:
    """The definition with another number of replicas, if one is given."""
    if replicas is None:
        return definition
    return definition.model_copy(update={"run": definition.run.model_copy(update={"replicas": replicas})})


def _resolved(definition: StudyDefinition, ready: Ready, *, path: Path) -> ResolvedStudy:
    """The definition of the file `path` on a worker that is ready."""
    try:
        return resolve(
            definition,
            replicas=ready.replicas,
            train_examples=ready.train_examples,
            metrics=ready.metrics,
            maximize=ready.maximize,
        )
    except DefinitionError as error:
        raise DefinitionError(f"{path}: {error}") from None


def devices(ready: Ready) -> str:
    """`2 CPU replicas (logical devices that share this machine's cores)`."""
    kind = "GPU" if any("GPU" in d.upper() for d in ready.devices) else "CPU"
    plural = "s" if ready.replicas > 1 else ""
    note = " (logical devices that share this machine's cores)" if kind == "CPU" and ready.replicas > 1 else ""
    return f"{ready.replicas} {kind} replica{plural}{note}"


def _log_path(definition: StudyDefinition) -> Path:
    try:
        FILES_FOLDER.mkdir(exist_ok=True)
        path = (FILES_FOLDER / f"{definition.name}.worker.log").resolve()
        path.touch()
    except OSError as error:
        raise StudyError(
            f"cannot write to {FILES_FOLDER.resolve()}: {error.strerror}; run in a writable folder"
        ) from None
    return path
