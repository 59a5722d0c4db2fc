"""The `check` command: whether N replicas train as one does."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape

from scalesearch.cli.workers import devices, started_worker, with_replicas
from scalesearch.core.equivalence import Verdict
from scalesearch.definition import load_definition
from scalesearch.report.equivalence import verdict_json, verdict_lines
from scalesearch.report.say import say
from scalesearch.study.equivalence import Trying, check_equivalence, parameters_to_check

EXIT_DIFFERS = 3


def run_check(path: Path, *, replicas: int, as_json: bool) -> int:
    """Compare one replica with `replicas`; returns the exit code."""
    console = Console(stderr=True)
    definition = load_definition(path)
    with ExitStack() as at_exit:
        several, one = (
            at_exit.enter_context(started_worker(with_replicas(definition, n), path=path, console=console))
            for n in (replicas, 1)
        )
        parameters = parameters_to_check(several.resolved)
        where = devices(several.ready)
        say(console, f"Checking {definition.workload.name} on {where}")
        status = at_exit.enter_context(console.status(""))
        for news in check_equivalence(
            one.executor, several.executor, parameters=parameters, replicas=replicas, seed=definition.run.seed
        ):
            match news:
                case Trying():
                    status.update(escape(news.what))
                case Verdict():
                    verdict = news
    if as_json:
        click.echo(json.dumps(verdict_json(verdict), allow_nan=False))
    else:
        for line in verdict_lines(verdict):
            say(Console(), line)
    return 0 if verdict.agrees else EXIT_DIFFERS
