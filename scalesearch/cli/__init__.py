"""The commands. The only place that wires concrete parts together."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from scalesearch.cli.options import (
    definition_argument,
    json_option,
    parse_budget,
    parse_replicas,
    parse_seconds,
    profile_option,
    storage_option,
    study_argument,
    tracking_option,
)
from scalesearch.errors import ScalesearchError, StudyError

if TYPE_CHECKING:
    from scalesearch.core.budget import Budget

COMPARED_BY = (
    "Step times by which costs are compared, from `profile --export`; by default, those of this machine are measured."
)

# What a command needs is imported in it: Optuna, MLflow and SciPy take seconds, and `--help` must not.

EXIT_USER_ERROR = 2
EXIT_NOT_REACHED = 3
EXIT_INTERRUPTED = 130


class Commands(click.Group):
    """Commands in the order in which they are declared, and user errors without a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ScalesearchError as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(EXIT_USER_ERROR)
        except KeyboardInterrupt:
            click.echo("Interrupted: the same command goes on with what is kept.", err=True)
            ctx.exit(EXIT_INTERRUPTED)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="scalesearch")
def main() -> None:
    """Find the global batch size, learning rate and decay boundaries that reach your target fastest.

    \b
    Example:
      python -m scalesearch study studies/digits_mlp.toml
    """


@main.command()
@definition_argument
@click.option(
    "--budget",
    callback=parse_budget,
    metavar="LIMITS",
    help="Replaces the definition's budget: 30m, 2h (wall clock), device:2h, 5e6ex, 40ep, 25trials, or several with "
    "commas between them. The first to run out ends the study.",
)
@click.option("--replicas", type=click.IntRange(min=1), help="Devices per trial; replaces the definition's `replicas`.")
@profile_option(COMPARED_BY)
@storage_option
@tracking_option
@json_option
def study(
    definition: Path,
    budget: Budget | None,
    replicas: int | None,
    profile_path: Path | None,
    storage: str,
    tracking_uri: str | None,
    as_json: bool,
) -> None:
    """Search the optimum that DEFINITION (a TOML file) describes; the same command again continues.

    Ctrl-C stops cleanly and keeps everything. Exit codes: 0 a recommendation, 2 a mistake in what was asked,
    3 nothing reached the target, 130 stopped by the user.

    \b
    Examples:
      python -m scalesearch study studies/digits_mlp.toml
      python -m scalesearch study studies/fashion_mnist_mlp.toml --replicas 2 --budget 30m
    """
    started = time.monotonic()
    from scalesearch.cli.stop import interrupted_by_sigterm

    with interrupted_by_sigterm():
        from scalesearch.cli.run import StudyOptions, run_study

        options = StudyOptions(
            definition_path=definition,
            budget=budget,
            replicas=replicas,
            storage_url=storage,
            tracking_uri=tracking_uri,
            as_json=as_json,
            profile_path=profile_path,
        )
        sys.exit(run_study(options, started=started))


@main.command()
@definition_argument
@click.option(
    "--replicas",
    callback=parse_replicas,
    metavar="N,N,…",
    help="Numbers of replicas to profile, e.g. 1,2,4; by default the definition's.",
)
@click.option(
    "--export", type=click.Path(path_type=Path, dir_okay=False), help="Write the profile to this file, as JSON."
)
@click.option("--again", is_flag=True, help="Measure anew what was measured before.")
@click.option(
    "--limit",
    default="20s",
    show_default=True,
    callback=parse_seconds,
    help="Time for each number of replicas, compilation apart.",
)
@storage_option
@json_option
def profile(
    definition: Path,
    replicas: tuple[int, ...],
    export: Path | None,
    again: bool,
    limit: float,
    storage: str,
    as_json: bool,
) -> None:
    """Measure seconds per step of DEFINITION's workload, and the largest batch that fits.

    What was measured is kept in the storage, and used again while hardware, software and workload are the same.
    Exit codes: 0 measured, 2 a mistake in what was asked, 3 no batch fits in memory, 130 stopped by the user.

    \b
    Examples:
      python -m scalesearch profile studies/fashion_mnist_mlp.toml --replicas 1,2,4
      python -m scalesearch profile studies/fashion_mnist_mlp.toml --export this-machine.json
    """
    from scalesearch.cli.profile import ProfileOptions, run_profile

    options = ProfileOptions(
        definition_path=definition,
        replicas=replicas,
        storage_url=storage,
        export_path=export,
        again=again,
        limit_seconds=limit,
        as_json=as_json,
    )
    sys.exit(run_profile(options))


@main.command()
@definition_argument
@click.option("--replicas", type=click.IntRange(min=2), required=True, help="Devices to compare with one.")
@json_option
def check(definition: Path, replicas: int, as_json: bool) -> None:
    """Check whether DEFINITION's workload trains on several replicas as on one, and say why if it does not.

    A few steps with the same global batch are run on both; where they differ, parts of the workload are neutralised to
    find which of them is why. Exit codes: 0 they agree, 2 a mistake in what was asked, 3 they differ, 130 stopped.

    \b
    Example:
      python -m scalesearch check studies/fashion_mnist_mlp.toml --replicas 2
    """
    from scalesearch.cli.check import run_check

    sys.exit(run_check(definition, replicas=replicas, as_json=as_json))


@main.command()
@study_argument
@click.option(
    "--replicas",
    callback=parse_replicas,
    default="1,2,4,8,16",
    show_default=True,
    metavar="N,N,…",
    help="Numbers of replicas to forecast for.",
)
@profile_option(
    "Step times of the machine to forecast for, from `profile --export` there; by default those of STUDY's machine."
)
@storage_option
@json_option
def forecast(
    study_name: str, replicas: tuple[int, ...], profile_path: Path | None, storage: str, as_json: bool
) -> None:
    """Forecast what STUDY's optimum would be on other numbers of replicas, what it would take, and where more stop paying.

    Nothing is trained. Steps to target are STUDY's, since no hardware changes them; what a step takes is profiled or, for
    numbers of replicas that were not, extrapolated, and the output says which. Exit codes: 0 a forecast, 2 a mistake in
    what was asked.

    \b
    Examples:
      python -m scalesearch forecast fashion_mnist_mlp-r1 --replicas 1,2,4
      python -m scalesearch forecast fashion_mnist_mlp-r1 --profile that-machine.json --replicas 8
    """
    from scalesearch.cli.forecast import ForecastOptions, run_forecast

    options = ForecastOptions(
        study_name=study_name,
        replicas=replicas,
        profile_path=profile_path,
        storage_url=storage,
        as_json=as_json,
    )
    sys.exit(run_forecast(options))


@main.command()
@definition_argument
@click.option("--from", "from_study", metavar="STUDY", help="The study whose optimum is moved; its trials are known.")
@click.option("--from-mlflow", metavar="RUN", help="The id of an MLflow run instead: of a study, or of one training.")
@click.option(
    "--from-config",
    metavar="SETTINGS",
    help="Your present settings instead, as in [baseline]: 'global_batch_size = 64, learning_rate = 0.05, boundaries = "
    '["5 epochs"]\'.',
)
@click.option(
    "--from-replicas",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Replicas that the settings of --from-config or of a training in MLflow run on.",
)
@click.option("--replicas", type=click.IntRange(min=1), required=True, help="Devices to move to.")
@click.option("--budget", callback=parse_budget, metavar="LIMITS", help="As for `study`: 30m, device:2h, 5e6ex, …")
@profile_option(COMPARED_BY)
@storage_option
@tracking_option
@json_option
def retune(
    definition: Path,
    from_study: str | None,
    from_mlflow: str | None,
    from_config: str | None,
    from_replicas: int,
    replicas: int,
    budget: Budget | None,
    profile_path: Path | None,
    storage: str,
    tracking_uri: str | None,
    as_json: bool,
) -> None:
    """Move a known optimum to other hardware: DEFINITION's workload on N replicas, for a few trainings' worth of compute.

    What the old study learnt is kept; the usual rules (keep everything, scale the rate linearly or by the square root, with
    boundaries in examples or in steps) and what the model proposes are run against each other. The same command again
    continues. Exit codes: 0 a recommendation, 2 a mistake in what was asked, 3 nothing reached the target, 130 stopped.

    \b
    Examples:
      python -m scalesearch retune studies/fashion_mnist_mlp.toml --from fashion_mnist_mlp-r1 --replicas 4 --budget 10m
      python -m scalesearch retune my.toml --from-config "global_batch_size = 64, learning_rate = 0.05" --replicas 4
    """
    started = time.monotonic()
    if sum(source is not None for source in (from_study, from_mlflow, from_config)) != 1:
        raise click.UsageError("give one of --from STUDY, --from-mlflow RUN and --from-config SETTINGS")
    from scalesearch.cli.stop import interrupted_by_sigterm

    with interrupted_by_sigterm():
        from scalesearch.cli.retune import RetuneOptions, run_retune
        from scalesearch.cli.run import StudyOptions

        options = StudyOptions(
            definition_path=definition,
            budget=budget,
            replicas=replicas,
            storage_url=storage,
            tracking_uri=tracking_uri,
            as_json=as_json,
            profile_path=profile_path,
        )
        sys.exit(
            run_retune(
                RetuneOptions(
                    study=options,
                    from_study=from_study,
                    from_mlflow=from_mlflow,
                    from_config=from_config,
                    from_replicas=from_replicas,
                ),
                started=started,
            )
        )


@main.command()
@json_option
def workloads(as_json: bool) -> None:
    """List the built-in workloads and their options.

    \b
    Example:
      python -m scalesearch workloads
    """
    from scalesearch.workloads import BUILT_IN, describe

    rows = [describe(name) for name in BUILT_IN]
    if as_json:
        click.echo(json.dumps([{**asdict(row), "options": dict(row.options)} for row in rows]))
        return
    for row in rows:
        options = ", ".join(f"{name} = {json.dumps(value)}" for name, value in row.options.items())
        click.echo(f"{row.name}: {row.description}")
        click.echo(f"    data: {row.data} (train / validation / test)")
        click.echo(f"    {row.trainable_parameters:,} trainable parameters; options: {options}")
    click.echo('Your own: name = "package.module:name" in a definition, for a Workload or a function that returns one.')


@main.command()
@storage_option
@json_option
def studies(storage: str, as_json: bool) -> None:
    """List the studies that a storage holds.

    \b
    Example:
      python -m scalesearch studies
    """
    from scalesearch.cli.summary import Summary
    from scalesearch.report import words
    from scalesearch.search.database import is_missing, open_storage, study_names
    from scalesearch.search.storage import StudyStore

    opened = None if is_missing(storage) else open_storage(storage)
    stores = [StudyStore(opened, name) for name in study_names(opened)] if opened else []
    summaries = [Summary.of(store) for store in stores if Summary.exists(store)]
    if as_json:
        click.echo(json.dumps([summary.as_json() for summary in summaries], allow_nan=False))
        return
    if not summaries:
        click.echo(f"No studies in {storage}.")
        return
    table = Table("study", "workload", "trials", "best", box=None)
    for s in summaries:
        best = s.findings.recommendation
        cost = words.cost(best.cost, s.findings.objective.minimize) if best and best.cost is not None else "–"
        table.add_row(s.name, s.workload, str(sum(s.findings.outcomes.values())), cost)
    Console().print(table)


@main.command()
@study_argument
@storage_option
@json_option
def report(study_name: str, storage: str, as_json: bool) -> None:
    """Print what STUDY has established so far; `scalesearch studies` lists the names.

    \b
    Example:
      python -m scalesearch report digits_mlp-r1
    """
    from scalesearch.cli.summary import Summary
    from scalesearch.search.database import open_storage
    from scalesearch.search.storage import StudyStore

    store = StudyStore(open_storage(storage, create=False), study_name)
    if not Summary.exists(store):
        raise StudyError(f"study {study_name!r} was not made by scalesearch")
    summary = Summary.of(store)
    summary.show(as_json=as_json)
    sys.exit(0 if summary.findings.recommendation else EXIT_NOT_REACHED)
