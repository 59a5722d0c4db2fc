"""The `study` command: wires definition, worker, storage, tracker and display, and runs the study."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from scalesearch.cli import EXIT_INTERRUPTED, EXIT_NOT_REACHED
from scalesearch.cli.expectation import say_what_is_expected
from scalesearch.cli.stop import Stop, stop_on_signal
from scalesearch.cli.study_profile import profile_given, profile_study
from scalesearch.cli.summary import Summary
from scalesearch.cli.workers import FILES_FOLDER, devices, started_worker, with_replicas
from scalesearch.core.budget import Budget
from scalesearch.core.curve_planner import sizes_of
from scalesearch.core.recommend import Findings
from scalesearch.core.results import Direction
from scalesearch.definition import ResolvedStudy, StudyDefinition, parse_definition, read_definition
from scalesearch.errors import DefinitionError
from scalesearch.report.progress import StudyProgress
from scalesearch.report.say import say
from scalesearch.search.database import open_storage
from scalesearch.search.lease import take_lease
from scalesearch.search.sampler import SamplerName
from scalesearch.search.storage import StudyStore
from scalesearch.study import (
    Forking,
    Journal,
    Noted,
    SnapshotFolder,
    Study,
    StudyEnded,
    TrialEnded,
    TrialMeasured,
    TrialStarted,
    forking,
)
from scalesearch.study.retuning import Present, retuning
from scalesearch.tracking import MlflowTracker, NullTracker, StudyRecord, check_tracking_uri

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRACKER_CLOSE_SECONDS = 60.0
TRACKER_ERROR_SECONDS = 10.0
TRACKER_INTERRUPT_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """What the command line says. `tracking_uri` None: no copy in MLflow.

    `present` makes it a retune, of that configuration; `profile_path` is a profile that stands for one of this machine.
    """

    definition_path: Path
    budget: Budget | None
    replicas: int | None
    storage_url: str
    tracking_uri: str | None
    as_json: bool
    present: Present | None = None
    profile_path: Path | None = None


def run_study(options: StudyOptions, *, started: float) -> int:
    """Run or continue a study; `started` is when its wall clock began. Returns the exit code."""
    console = Console(stderr=True)
    text, definition = _definition(options)
    budget = options.budget or definition.budget.budget()
    if not budget.limits():
        raise DefinitionError(
            f"{options.definition_path}: no budget: add a [budget] section or give --budget, e.g. 30m"
        )
    tracker = _tracker(options)
    stop = Stop()
    storage = open_storage(options.storage_url, give_up=stop.is_urgent)
    with ExitStack() as at_exit:
        worker = at_exit.enter_context(started_worker(definition, path=options.definition_path, console=console))
        executor, resolved = worker.executor, worker.resolved
        retune = retuning(options.present, definition, resolved) if options.present is not None else None
        resolved = retune.resolved if retune is not None else resolved
        say(
            console,
            f"Study {resolved.name}: {definition.workload.name} on {devices(worker.ready)}, "
            f"{worker.ready.train_examples:,} training examples",
        )
        store = StudyStore(storage, resolved.name, direction=_direction(resolved))
        # Before anything is written, here or in MLflow: the study may be another driver's.
        lease = take_lease(store, waiting=partial(say, console))
        at_exit.callback(lease.release)
        of_retune = {"retune.from": retune.present.source} if retune is not None else {}
        store.check_definition({**definition.fingerprint(), "replicas": resolved.replicas, **of_retune})
        _keep_context(store, definition, resolved, budget)
        at_exit.enter_context(_closed_on_error(tracker))
        tracker.study_started(_record(text, definition, resolved, budget))
        folder = _snapshot_folder(options, store)
        if options.profile_path is not None:
            at_start = profile_given(executor, resolved, options.profile_path, store=store, console=console)
        else:
            at_start = profile_study(
                executor, resolved, budget=budget, store=store, lease=lease, console=console, stop=stop
            )
        resolved = at_start.resolved
        if retune is not None:
            retune = retune.within(resolved.space)
            store.keep("retune", retune.as_json())
            say_what_is_expected(retune, at_start, budget, console)
        # Before the first trial a signal is as an error: whatever the worker is at, it is ended.
        at_exit.enter_context(stop_on_signal(stop, console))
        study = Study(
            resolved,
            budget=budget,
            store=store,
            lease=lease,
            executor=executor,
            tracker=tracker,
            snapshots=SnapshotFolder(folder, forks=_forking(definition, resolved)),
            journal=Journal(folder.with_name(f"{folder.name}.jsonl")),
            sampler_name=_sampler_name(definition),
            seed=definition.run.seed,
            step_seconds=at_start.step_seconds,
            warm_start=retune.warm_start if retune is not None else None,
            stop_requested=stop.requested,
            started=started,
        )
        ended = _follow(study, resolved, budget, console)
        executor.close()
        summary = Summary.of(store)
        _finish_tracking(tracker, store, summary, ended, console, stop)
    summary.show(as_json=options.as_json)
    _say_how_to_go_on(console, options, tracker, ended)
    if ended.by_user:
        return EXIT_INTERRUPTED
    return 0 if summary.findings.recommendation else EXIT_NOT_REACHED


def _follow(study: Study, resolved: ResolvedStudy, budget: Budget, console: Console) -> StudyEnded:
    """Run the study, and show what happens."""
    with StudyProgress(
        console,
        budget=budget,
        objective=study.objective,
        space=resolved.space,
        train_examples=resolved.train_examples,
    ) as progress:
        for event in study.events():
            match event:
                case TrialStarted():
                    progress.trial_started(event.trial.number, event.trial.parameters, event.spent)
                case Noted():
                    progress.note(event.sentence)
                case TrialMeasured():
                    progress.trial_measured(event.measurement, event.spent)
                case TrialEnded():
                    progress.trial_ended(event.result, event.findings, event.spent)
                case StudyEnded():
                    return event
    raise AssertionError("a study's last event is StudyEnded")


def _definition(options: StudyOptions) -> tuple[str, StudyDefinition]:
    """The text, read once as it may be edited while the study runs, and what it says."""
    path = options.definition_path
    text = read_definition(path)
    definition = with_replicas(parse_definition(text, source=str(path), default_name=path.stem), options.replicas)
    if options.present is not None:
        definition = definition.model_copy(update={"name": f"{definition.name}-retune"})
    return text, definition


def _snapshot_folder(options: StudyOptions, store: StudyStore) -> Path:
    """A study's own, even among those of its name: beside its SQLite file, else in the folder of the worker's log."""
    path = options.storage_url.removeprefix("sqlite:///")
    beside = Path(path).parent if path != options.storage_url else Path()
    name: str | None = store.attribute("snapshots")
    if name is None:
        name = f"{store.name}-{uuid.uuid4().hex[:8]}"
        store.keep("snapshots", name)
    return (beside / FILES_FOLDER / "snapshots" / name).resolve()


def _forking(definition: StudyDefinition, resolved: ResolvedStudy) -> Forking | None:
    return forking(
        resolved.space,
        sampler_name=_sampler_name(definition),
        max_examples=resolved.max_examples,
        limit_bytes=definition.run.snapshots_limit,
    )


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
            "curve_sizes": sizes_of(resolved.space) if resolved.aim == "curve" else (),
            "recommends_accumulated": resolved.space.recommends_accumulated,
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


def _record(text: str, definition: StudyDefinition, resolved: ResolvedStudy, budget: Budget) -> StudyRecord:
    return StudyRecord(
        name=resolved.name,
        workload=definition.workload.name,
        objective=resolved.objective,
        replicas=resolved.replicas,
        seed=definition.run.seed,
        definition_toml=text,
        parameters={
            **{key: str(value) for key, value in definition.fingerprint().items() if value is not None},
            **{f"budget.{unit}": f"{limit:g}" for unit, limit in budget.limits().items()},
        },
    )


@contextmanager
def _closed_on_error(tracker: MlflowTracker | NullTracker) -> Iterator[None]:
    """Whatever happens, no run in MLflow is left that looks alive."""
    try:
        yield
    except KeyboardInterrupt:
        tracker.abandon(TRACKER_INTERRUPT_SECONDS)
        raise
    except Exception:
        tracker.close(TRACKER_ERROR_SECONDS)
        raise


def _finish_tracking(
    tracker: MlflowTracker | NullTracker,
    store: StudyStore,
    summary: Summary,
    ended: StudyEnded,
    console: Console,
    stop: Stop,
) -> None:
    if isinstance(tracker, NullTracker):
        return
    results, found = store.results(), summary.findings
    best = found.recommendation.best if found.recommendation else None
    spent = {f"budget/{unit}_spent": float(value) for unit, value in asdict(summary.spent).items()}
    tracker.study_ended(
        note_markdown=summary.note(),
        results=results,
        figures={} if ended.by_user else _figures(found),
        best=best,
        finished=not ended.by_user,
        summary_metrics=spent,
        summary_tags={"scalesearch.stopped_by": ended.stopped_by},
    )
    deadline = time.monotonic() + TRACKER_CLOSE_SECONDS
    with console.status("completing the copy in MLflow"):
        while not tracker.close(0.2) and time.monotonic() < min(deadline, stop.deadline):
            pass
    for problem in tracker.problems():
        console.print(f"[yellow]{escape(problem)}[/yellow]")


def _figures(found: Findings) -> dict[str, Figure]:
    from scalesearch.report.figures import figures  # matplotlib: not needed without a copy in MLflow

    return figures(
        found.results,
        found.objective,
        best=found.recommendation.best if found.recommendation else None,
        curve=found.curve,
        batch_sizes=found.batch_sizes if found.of_curve else (),
    )


def _say_how_to_go_on(
    console: Console, options: StudyOptions, tracker: MlflowTracker | NullTracker, ended: StudyEnded
) -> None:
    say(console, f"Ended: {ended.stopped_by}.")
    say(console, "Continue: the same command, with a larger --budget if it is spent.")
    links = tracker.links
    if links is None:
        return
    address = options.tracking_uri or ""
    if not address.startswith("http"):
        say(console, f"Browse:   mlflow ui --backend-store-uri {address}   then open")
        address = "http://localhost:5000"
    for link in (links.study, links.charts, links.trials):
        say(console, f"          {address.rstrip('/')}/{link}")


def _sampler_name(definition: StudyDefinition) -> SamplerName:
    """Without a target there is no cost to target that `scaling` could model."""
    wanted = definition.search.sampler
    return "tpe" if wanted == "scaling" and definition.objective.minimize == "metric" else wanted
