"""The `forecast` command: what a study's optimum would be, and take, on other numbers of replicas."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from scalesearch.core.forecast import forecasts
from scalesearch.core.profile import Profile
from scalesearch.core.space import SearchSpace
from scalesearch.core.step_time_model import StepTimeModel
from scalesearch.definition.profile_file import read_profile
from scalesearch.errors import ProfileError, StudyError
from scalesearch.report.forecast import forecast_json, print_forecast
from scalesearch.search.database import open_storage
from scalesearch.search.storage import StudyStore
from scalesearch.study.past import PastStudy

OCTAVES_BEYOND = 2  # of the largest batch size that the study searched


@dataclass(frozen=True, kw_only=True)
class ForecastOptions:
    """What the command line says. `profile_path` None: the study's own profile."""

    study_name: str
    replicas: tuple[int, ...]
    profile_path: Path | None
    storage_url: str
    as_json: bool


def run_forecast(options: ForecastOptions) -> int:
    """Forecast from what is stored; nothing is trained. Returns the exit code."""
    store = StudyStore(open_storage(options.storage_url, create=False), options.study_name)
    study = PastStudy.of(store)
    if options.profile_path is not None:
        profile: Profile | None = read_profile(options.profile_path)
        assert profile is not None
        check_same_workload(profile, study, source=str(options.profile_path))
    else:
        profile = study.profile_with(store, options.replicas)
    model = study.step_time_model(profile)
    rows = forecasts(
        study.known_steps().steps_to_target(),
        model,
        replicas=options.replicas,
        sizes=_sizes(study.resolved.space, train_examples=study.resolved.train_examples),
        largest_share=largest_share(profile),
        accumulates=study.definition.run.accumulation == "auto",
    )
    if not rows:
        raise StudyError(f"no global batch size of {study.name} suits {', '.join(map(str, options.replicas))} replicas")
    assumed = list(assumptions(study, profile, model, rows_of=[r.replicas for r in rows], source=options.profile_path))
    train_examples = study.resolved.train_examples
    if options.as_json:
        found = forecast_json(
            rows, study=study.name, workload=study.workload, train_examples=train_examples, assumptions=assumed
        )
        click.echo(json.dumps(found, allow_nan=False))
    else:
        title = f"Forecast for {study.workload} from study {study.name}"
        print_forecast(Console(), rows, title=title, train_examples=train_examples, assumptions=assumed)
    return 0


def check_same_workload(profile: Profile, study: PastStudy, *, source: str) -> None:
    """Raise ProfileError if a profile is of another workload: its times say nothing about this one."""
    if study.profile is not None:
        mine, theirs = study.profile.fingerprint.workload, profile.fingerprint.workload
    else:
        mine = {"name": study.workload, "optimizer": study.definition.workload.optimizer}
        theirs = {key: profile.fingerprint.workload.get(key, mine[key]) for key in mine}
    if differing := [k for k in {**mine, **theirs} if mine.get(k) != theirs.get(k)]:
        lines = "\n".join(f"  {k}: {theirs.get(k, 'nothing')} there, {mine.get(k, 'nothing')} here" for k in differing)
        raise ProfileError(
            f"{source} is a profile of another workload than study {study.name}:\n{lines}\n"
            "Profile this one there: `profile DEFINITION --export FILE`"
        )


def largest_share(profile: Profile | None) -> int | None:
    """Examples that fit on a replica at a time, where a profile came to the limit of its memory."""
    parts = profile.by_replicas if profile is not None else ()
    return min((p.largest_per_replica_batch_size for p in parts if p.limited_by == "memory"), default=None)


def assumptions(
    study: PastStudy, profile: Profile | None, model: StepTimeModel, *, rows_of: Sequence[int], source: Path | None
) -> list[str]:
    """What the forecast rests on beside measurements."""
    found = ["seconds are those of training steps on a machine that does nothing else"]
    if profile is None:
        found.append(
            f"step times are those of the trials, on {study.resolved.replicas} replica"
            f"{'s' if study.resolved.replicas > 1 else ''}: `profile DEFINITION --replicas …` measures them"
        )
    elif study.profile is not None and source is not None:
        differences = study.profile.fingerprint.differences(profile.fingerprint)
        hardware = [d for d in differences if d.startswith("hardware")]
        if hardware:
            found.append(f"{source} is of other hardware than the study ran on: " + "; ".join(hardware))
    if unseen := [k for k in rows_of if not model.is_measured(k)]:
        numbers = ", ".join(map(str, unseen))
        found.append(f"no step was timed with {numbers} replicas: {model.assumption()}")
    if profile is not None and profile.fingerprint.hardware.get("kind") == "CPU" and max(rows_of) > 1:
        found.append("CPU replicas share this machine's cores: their scaling says nothing about several GPUs")
    return found


def _sizes(space: SearchSpace, *, train_examples: int) -> Callable[[int], Sequence[int]]:
    """Global batch sizes that a number of replicas can share equally, a factor of two apart."""
    values = space.batch_sizes.values()
    largest = min(values[-1] * 2**OCTAVES_BEYOND, max(train_examples, values[-1]))

    def sizes(replicas: int) -> list[int]:
        step = math.lcm(space.batch_sizes.multiple_of or 1, replicas)
        doublings = range(math.floor(math.log2(largest / step)) + 1) if step <= largest else ()
        return [step * 2**k for k in doublings if step * 2**k >= values[0]]

    return sizes
