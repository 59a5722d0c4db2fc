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

from scalesearch.errors import ScalesearchError, StudyError

if TYPE_CHECKING:
    from scalesearch.core.budget import Budget

# What a command needs is imported in it: Optuna, MLflow and SciPy take seconds, and `--help` must not.

EXIT_USER_ERROR = 2
EXIT_NOT_REACHED = 3
EXIT_INTERRUPTED = 130
STORAGE = "sqlite:///scalesearch.db"
TRACKING_URI = "sqlite:///mlflow.db"


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


def _storage_option(function: Any) -> Any:
    return click.option(
        "--storage", default=STORAGE, show_default=True, help="Optuna storage that keeps the studies, as a URL."
    )(function)


def _json_option(function: Any) -> Any:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout and nothing else.")(
        function
    )


def _parse_budget(ctx: click.Context, parameter: click.Parameter, text: str | None) -> Budget | None:
    from scalesearch.core.quantities import parse_budget

    if text is None:
        return None
    try:
        return parse_budget(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@main.command()
@click.argument("definition", type=click.Path(path_type=Path))
@click.option(
    "--budget",
    callback=_parse_budget,
    metavar="LIMITS",
    help="Replaces the definition's budget: 30m, 2h (wall clock), device:2h, 5e6ex, 40ep, 25trials, or several with "
    "commas between them. The first to run out ends the study.",
)
@click.option("--replicas", type=click.IntRange(min=1), help="Devices per trial; replaces the definition's `replicas`.")
@_storage_option
@click.option(
    "--tracking-uri",
    default=TRACKING_URI,
    show_default=True,
    help='MLflow database or server that gets a copy to browse; "none" for no copy.',
)
@_json_option
def study(
    definition: Path, budget: Budget | None, replicas: int | None, storage: str, tracking_uri: str, as_json: bool
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
    from scalesearch.cli.run import StudyOptions, run_study

    options = StudyOptions(
        definition_path=definition,
        budget=budget,
        replicas=replicas,
        storage_url=storage,
        tracking_uri=None if tracking_uri == "none" else tracking_uri,
        as_json=as_json,
    )
    sys.exit(run_study(options, started=started))


@main.command()
@_json_option
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
@_storage_option
@_json_option
def studies(storage: str, as_json: bool) -> None:
    """List the studies that a storage holds.

    \b
    Example:
      python -m scalesearch studies
    """
    from scalesearch.cli.summary import Summary
    from scalesearch.report import words
    from scalesearch.search.storage import StudyStore, is_missing, open_storage, study_names

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
@click.argument("study_name", metavar="STUDY")
@_storage_option
@_json_option
def report(study_name: str, storage: str, as_json: bool) -> None:
    """Print what STUDY has established so far; `scalesearch studies` lists the names.

    \b
    Example:
      python -m scalesearch report digits_mlp-r1
    """
    from scalesearch.cli.summary import Summary
    from scalesearch.search.storage import StudyStore, open_storage

    store = StudyStore(open_storage(storage, create=False), study_name)
    if not Summary.exists(store):
        raise StudyError(f"study {study_name!r} was not made by scalesearch")
    summary = Summary.of(store)
    summary.show(as_json=as_json)
    sys.exit(0 if summary.findings.recommendation else EXIT_NOT_REACHED)
