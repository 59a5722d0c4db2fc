"""The `profile` command: measures the step times of a definition's workload with each number of replicas."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from scalesearch.cli.workers import devices, started_worker, with_replicas
from scalesearch.core.profile import Profile, ProfileFingerprint, ProfilePoint, ReplicaProfile, Tried
from scalesearch.core.step_time_model import model_of
from scalesearch.definition import load_definition
from scalesearch.definition.profile_file import write_profile
from scalesearch.execution.local import LocalExecutor
from scalesearch.report.profile import print_profile, profile_json
from scalesearch.report.say import say
from scalesearch.search.database import open_storage
from scalesearch.search.profiles import ProfileStore
from scalesearch.study.profiling import ProfilePlan, covers, fingerprint_of, measure_profile

EXIT_NOTHING_FITS = 3
ACCUMULATIONS = (2, 4)


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """What the command line says. `replicas` empty: as the definition says; `limit_seconds` is for each of them."""

    definition_path: Path
    replicas: tuple[int, ...]
    storage_url: str
    export_path: Path | None
    again: bool
    limit_seconds: float
    as_json: bool


def run_profile(options: ProfileOptions) -> int:
    """Profile, or find what is kept; returns the exit code."""
    console = Console(stderr=True)
    store = ProfileStore(open_storage(options.storage_url))
    reused: list[int] = []
    parts: dict[int, ReplicaProfile] = {}
    fingerprint: ProfileFingerprint | None = None
    for replicas in options.replicas or (None,):
        fingerprint, part, is_new = _profile_one(options, replicas, store, console)
        parts[part.replicas] = part
        if not is_new:
            reused.append(part.replicas)
    assert fingerprint is not None
    profile = Profile(fingerprint=fingerprint, by_replicas=tuple(parts[k] for k in sorted(parts)))
    if options.export_path is not None:
        write_profile(profile, options.export_path)
        say(console, f"Written: {options.export_path}")
    model = model_of(profile) if profile.points else None
    if options.as_json:
        click.echo(json.dumps(profile_json(profile, model, reused=reused), allow_nan=False))
    else:
        print_profile(Console(), profile, model)
    return 0 if profile.points else EXIT_NOTHING_FITS


def _profile_one(
    options: ProfileOptions, replicas: int | None, store: ProfileStore, console: Console
) -> tuple[ProfileFingerprint, ReplicaProfile, bool]:
    """The fingerprint, what holds with so many replicas, and whether it was measured anew."""
    definition = with_replicas(load_definition(options.definition_path), replicas)
    with started_worker(definition, path=options.definition_path, console=console) as worker:
        plan = ProfilePlan.of(worker.resolved, accumulations=ACCUMULATIONS, limit_seconds=options.limit_seconds)
        fingerprint = fingerprint_of(worker.executor)
        kept = store.find(fingerprint, worker.ready.replicas)
        where = devices(worker.ready)
        if kept is not None and covers(kept, plan) and not options.again:
            say(
                console,
                f"{where}: measured before with the same hardware, software and workload; --again measures anew",
            )
            return fingerprint, kept, False
        say(console, f"Profiling {definition.workload.name} on {where}")
        measured = _measure(worker.executor, plan, console)
        store.keep(fingerprint, measured)
        return fingerprint, measured, True


def _measure(executor: LocalExecutor, plan: ProfilePlan, console: Console) -> ReplicaProfile:
    points: dict[tuple[int, int], ProfilePoint] = {}
    with console.status("compiling") as status:
        for news in measure_profile(executor, plan):
            match news:
                case Tried(fits=None):
                    status.update(f"does a per-replica batch of {news.per_replica_batch_size:,} fit?")
                case ProfilePoint():
                    points[news.per_replica_batch_size, news.accumulation] = news
                    worst = max(p.relative_error for p in points.values())
                    status.update(f"timing {len(points)} batch sizes: all known within ± {worst:.1%}")
                case ReplicaProfile():
                    return news
    raise AssertionError("a profile ends with itself")
