"""The arguments and options that several commands share, and how their texts are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from scalesearch.core.budget import Budget

F = TypeVar("F", bound=Callable[..., Any])

STORAGE = "sqlite:///scalesearch.db"
TRACKING_URI = "sqlite:///mlflow.db"

definition_argument = click.argument("definition", type=click.Path(path_type=Path))
study_argument = click.argument("study_name", metavar="STUDY")

storage_option = click.option(
    "--storage", default=STORAGE, show_default=True, help="Optuna storage that keeps the studies, as a URL."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout and nothing else.")
tracking_option = click.option(
    "--tracking-uri",
    default=TRACKING_URI,
    show_default=True,
    callback=lambda ctx, parameter, text: None if text == "none" else text,
    help='MLflow database or server that gets a copy to browse; "none" for no copy.',
)


def profile_option(text: str) -> Callable[[F], F]:
    """`--profile FILE`, with its help."""
    return click.option("--profile", "profile_path", type=click.Path(path_type=Path, dir_okay=False), help=text)


def parse_budget(ctx: click.Context, parameter: click.Parameter, text: str | None) -> Budget | None:
    """The callback of `--budget`."""
    from scalesearch.core.quantities import parse_budget

    if text is None:
        return None
    try:
        return parse_budget(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def parse_replicas(ctx: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...]:
    """The callback of a list of numbers of replicas: without doubles, ascending."""
    try:
        counts = [int(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        counts = [0]
    if any(count < 1 for count in counts):
        raise click.BadParameter(f"{text!r} is not a list of numbers of replicas: expected e.g. 4, or 1,2,4")
    return tuple(sorted(set(counts)))


def parse_seconds(ctx: click.Context, parameter: click.Parameter, text: str) -> float:
    """The callback of a duration."""
    from scalesearch.core.quantities import parse_seconds

    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if seconds <= 0:
        raise click.BadParameter(f"a duration must be positive, but got {text!r}")
    return seconds
