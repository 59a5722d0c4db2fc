"""The `study` command: wires definition, worker, storage, tracker and display, and runs the study."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.markup import escape

from scalesearch.cli import EXIT_INTERRUPTED, EXIT_NOT_REACHED
from scalesearch.cli.summary import Summary
from scalesearch.core.budget import Budget
from scalesearch.core.results import Direction
from scalesearch.definition import ResolvedStudy, StudyDefinition, load_definition, resolve
from scalesearch.errors import DefinitionError, StudyError
from scalesearch.execution.local import LocalExecutor
from scalesearch.execution.messages import Ready, WorkerSetup
from scalesearch.report.progress import StudyProgress
from scalesearch.search.lease import Lease, take_lease
from scalesearch.search.sampler import SamplerName
from scalesearch.search.storage import StudyStore, open_storage
from scalesearch.study import Study, StudyEnded, TrialEnded, TrialMeasured, TrialStarted
from scalesearch.tracking import MlflowTracker, NullTracker, StudyRecord, check_tracking_uri

TRACKER_CLOSE_SECONDS = 60.0
TRACKER_ABORT_SECONDS = 10.0
FILES_FOLDER = Path("scalesearch-files")


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """What the command line says. `tracking_uri` None: no copy in MLflow."""

    definition_path: Path
    budget: Budget | None
    replicas: int | None
    storage_url: str
    tracking_uri: str | None
    as_json: bool


def run_study(options: StudyOptions, *, started: float) -> int:
    """Run or continue a study; `started` is when its wall clock began. Returns the exit code."""
    console = Console(stderr=True)
    definition = _definition(options)
    budget = options.budget or definition.budget.budget()
    if not budget.limits():
        raise DefinitionError(
            f"{options.definition_path}: no budget: add a [budget] section or give --budget, e.g. 30m"
        )
    tracker = _tracker(options)
    storage = open_storage(options.storage_url)
    executor = LocalExecutor(
        _worker_setup(definition),
        log_path=_log_path(definition),
        no_progress_seconds=definition.run.no_progress_limit,
    )
    with ExitStack() as at_exit:
        at_exit.callback(executor.close)
        with console.status(f"starting a worker with {definition.workload.name}"):
            ready = executor.start()
        resolved = _resolve(options, definition, ready)
        console.print(
            f"Study {resolved.name}: {definition.workload.name} on {_devices(ready)}", highlight=False, soft_wrap=True
        )
        store = StudyStore(storage, resolved.name, direction=_direction(resolved))
        # Before anything is written, here or in MLflow: the study may be another driver's.
        lease = take_lease(store)
        at_exit.callback(lease.release)
        store.check_definition({**definition.fingerprint(), "replicas": resolved.replicas})
        _keep_context(store, definition, resolved, budget)
        at_exit.callback(tracker.close, TRACKER_ABORT_SECONDS)
        tracker.study_started(_record(options, definition, resolved, budget))
        ended = _run(store, lease, executor, tracker, definition, resolved, budget, console, started)
        executor.close()
        summary = Summary.of(store)
        _finish_tracking(tracker, store, summary, ended, console)
    summary.show(as_json=options.as_json)
    _say_how_to_go_on(console, options, tracker, ended)
    if ended.by_user:
        return EXIT_INTERRUPTED
    return 0 if summary.findings.recommendation else EXIT_NOT_REACHED


def _run(
    store: StudyStore,
    lease: Lease,
    executor: LocalExecutor,
    tracker: MlflowTracker | NullTracker,
    definition: StudyDefinition,
    resolved: ResolvedStudy,
    budget: Budget,
    console: Console,
    started: float,
) -> StudyEnded:
    with _stop_on_signal(console) as stop_requested:
        study = Study(
            resolved,
            budget=budget,
            store=store,
            lease=lease,
            executor=executor,
            tracker=tracker,
            sampler_name=_sampler_name(definition),
            seed=definition.run.seed,
            stop_requested=stop_requested,
            started=started,
        )
        with StudyProgress(console, budget=budget, objective=study.objective) as progress:
            for event in study.events():
                match event:
                    case TrialStarted():
                        progress.trial_started(event.trial.number, event.trial.parameters, event.spent)
                    case TrialMeasured():
                        progress.trial_measured(event.measurement, event.spent)
                    case TrialEnded():
                        progress.trial_ended(event.result, event.findings, event.spent)
                    case StudyEnded():
                        return event
    raise AssertionError("a study's last event is StudyEnded")


@contextmanager
def _stop_on_signal(console: Console) -> Iterator[threading.Event]:
    """The first Ctrl-C or SIGTERM sets the flag; a second Ctrl-C interrupts at once."""
    stop_requested = threading.Event()

    def request_stop(number: int, frame: FrameType | None) -> None:
        stop_requested.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        console.print("stopping: everything is kept (Ctrl-C again to stop at once)")

    before = {s: signal.signal(s, request_stop) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop_requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _definition(options: StudyOptions) -> StudyDefinition:
    definition = load_definition(options.definition_path)
    if options.replicas is None:
        return definition
    return definition.model_copy(update={"run": definition.run.model_copy(update={"replicas": options.replicas})})


def _worker_setup(definition: StudyDefinition) -> WorkerSetup:
    replicas = definition.run.replicas
    return WorkerSetup(
        workload=definition.workload.name,
        options=definition.workload.options,
        optimizer=definition.workload.optimizer,
        replicas=replicas if isinstance(replicas, int) else None,
    )


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


def _resolve(options: StudyOptions, definition: StudyDefinition, ready: Ready) -> ResolvedStudy:
    try:
        return resolve(
            definition,
            replicas=ready.replicas,
            train_examples=ready.train_examples,
            metrics=ready.metrics,
            maximize=ready.maximize,
        )
    except DefinitionError as error:
        raise DefinitionError(f"{options.definition_path}: {error}") from None


def _direction(resolved: ResolvedStudy) -> Direction:
    return resolved.objective.direction if resolved.objective.minimize == "metric" else "minimize"


def _keep_context(store: StudyStore, definition: StudyDefinition, resolved: ResolvedStudy, budget: Budget) -> None:
    """Keep what reading the study later needs beside its trials."""
    if resolved.objective.target is not None:
        store.keep("target", resolved.objective.target)
    store.keep(
        "context",
        {
            "workload": definition.workload.name,
            "optimizer": definition.workload.optimizer,
            "replicas": resolved.replicas,
            "train_examples": resolved.train_examples,
            "objective": asdict(resolved.objective),
            "budget": asdict(budget),
        },
    )


def _tracker(options: StudyOptions) -> MlflowTracker | NullTracker:
    if options.tracking_uri is None:
        return NullTracker()
    uri = options.tracking_uri
    check_tracking_uri(uri, storage_url=options.storage_url)
    if uri.startswith("sqlite:///"):
        uri = f"sqlite:///{Path(uri.removeprefix('sqlite:///')).resolve()}"
    return MlflowTracker(tracking_uri=uri, artifact_folder=Path("mlartifacts").resolve())


def _record(options: StudyOptions, definition: StudyDefinition, resolved: ResolvedStudy, budget: Budget) -> StudyRecord:
    return StudyRecord(
        name=resolved.name,
        workload=definition.workload.name,
        objective=resolved.objective,
        replicas=resolved.replicas,
        seed=definition.run.seed,
        definition_toml=options.definition_path.read_text(encoding="utf-8"),
        parameters={
            **{key: str(value) for key, value in definition.fingerprint().items() if value is not None},
            **{f"budget.{unit}": f"{limit:g}" for unit, limit in budget.limits().items()},
        },
    )


def _finish_tracking(
    tracker: MlflowTracker | NullTracker, store: StudyStore, summary: Summary, ended: StudyEnded, console: Console
) -> None:
    if isinstance(tracker, NullTracker):
        return
    from scalesearch.report.figures import figures  # matplotlib: not needed without a copy in MLflow

    results, found = store.results(), summary.findings
    best = found.recommendation.best if found.recommendation else None
    spent = {f"budget/{unit}_spent": float(value) for unit, value in asdict(summary.spent).items()}
    tracker.study_ended(
        note_markdown=summary.note(),
        results=results,
        figures=figures(results, found.objective, best=best, curve=found.curve),
        best=best,
        finished=not ended.by_user,
        summary_metrics=spent,
        summary_tags={"scalesearch.stopped_by": ended.stopped_by},
    )
    with console.status("completing the copy in MLflow"):
        tracker.close(TRACKER_CLOSE_SECONDS)
    for problem in tracker.problems():
        console.print(f"[yellow]{escape(problem)}[/yellow]")


def _say_how_to_go_on(
    console: Console, options: StudyOptions, tracker: MlflowTracker | NullTracker, ended: StudyEnded
) -> None:
    console.print(f"Ended: {escape(ended.stopped_by)}.", highlight=False, soft_wrap=True)
    console.print("Continue: the same command, with a larger --budget if it is spent.", highlight=False, soft_wrap=True)
    links = tracker.links
    if links is None:
        return
    address = options.tracking_uri or ""
    if not address.startswith("http"):
        console.print(f"Browse:   mlflow ui --backend-store-uri {address}   then open", highlight=False, soft_wrap=True)
        address = "http://localhost:5000"
    for link in (links.study, links.charts, links.trials):
        console.print(f"          {address.rstrip('/')}/{link}", highlight=False, soft_wrap=True)


def _sampler_name(definition: StudyDefinition) -> SamplerName:
    """Without a target there is no cost to target that `scaling` could model."""
    wanted = definition.search.sampler
    return "tpe" if wanted == "scaling" and definition.objective.minimize == "metric" else wanted


def _devices(ready: Ready) -> str:
    kind = "GPU" if any("GPU" in d.upper() for d in ready.devices) else "CPU"
    plural = "s" if ready.replicas > 1 else ""
    note = " (logical devices that share this machine's cores)" if kind == "CPU" and ready.replicas > 1 else ""
    return f"{ready.replicas} {kind} replica{plural}{note}, {ready.train_examples:,} training examples"
