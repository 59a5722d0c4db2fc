"""A forecast in words and as a table, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from scalesearch.core.forecast import Forecast, Source, pays_up_to
from scalesearch.report import words
from scalesearch.report.say import say

SPARE = 0.97  # of an efficiency: above it, nothing is lost by more replicas

_MARKS = {Source.MEASURED: "", Source.INTERPOLATED: " i", Source.EXTRAPOLATED: " x"}


def print_forecast(
    console: Console, rows: Sequence[Forecast], *, title: str, train_examples: int, assumptions: Sequence[str]
) -> None:
    """The table, what to set in each case, what follows, and what it rests on."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True, title=title, title_justify="left")
    headings, *cells = forecast_rows(rows)
    for heading in headings:
        table.add_column(heading, justify="right")
    for row_cells in cells:
        table.add_row(*row_cells)
    console.print()
    console.print(table, crop=console.is_terminal, width=None if console.is_terminal else 1000)
    say(
        console,
        "N replicas. i interpolated, x extrapolated: steps to target, or the time of a step; all else is measured.",
    )
    say(
        console,
        "ratio, speed-up: examples to target, and time, against one replica. device: time of all replicas together.",
    )
    console.print("What to set:")
    for row in rows:
        text = words.settings(row.parameters, replicas=row.replicas, train_examples=train_examples)
        say(console, f"  {row.replicas}: {text}")
    console.print()
    for line in conclusions(rows):
        say(console, line)
    for line in assumptions:
        say(console, f"assumed: {line}")


def forecast_rows(rows: Sequence[Forecast]) -> Iterator[tuple[str, ...]]:
    """The headings first; what is not measured is marked."""
    yield "N", "batch", "steps", "examples", "ratio", "time", "90 %", "device", "speed-up", "effic."
    for row in rows:
        low, high = (words.duration(s) for s in row.interval)
        yield (
            f"{row.replicas}",
            f"{row.parameters.global_batch_size:,}",
            f"{row.steps.steps:,.0f}{_MARKS[row.steps.source]}",
            words.count(row.examples),
            f"{row.examples_ratio:.2f}",
            words.duration(row.seconds) + _MARKS[Source.MEASURED if row.is_profiled else Source.EXTRAPOLATED],
            f"{low} – {high}",
            words.duration(row.device_seconds),
            words.ratio(row.speed_up),
            f"{row.efficiency:.0%}",
        )


def conclusions(rows: Sequence[Forecast]) -> Iterator[str]:
    """Where more replicas stop paying, and how to use many for a search."""
    most = pays_up_to(rows)
    as_assumed = "" if all(r.is_profiled for r in rows) else ", as far as the assumptions hold"
    if most < rows[-1].replicas:
        after = next(r for r in rows if r.replicas > most)
        here = next(r for r in rows if r.replicas == most)
        saved = 1.0 - after.seconds / here.seconds
        less = f"save {saved:.0%}" if saved > 0 else "save nothing"
        yield f"More than {most} replica{'s' if most > 1 else ''} hardly pay: {after.replicas} {less} of the time{as_assumed}."
    elif len(rows) > 1:
        yield f"Each further step up to {most} replicas saves at least a tenth of the time{as_assumed}."
    last = rows[-1]
    if last.replicas > 1:
        yield from _for_searches(last)


def _for_searches(row: Forecast) -> Iterator[str]:
    n = row.replicas
    if row.efficiency >= SPARE:
        yield f"A search loses nothing by trials on {n} replicas each, which are as efficient as on one: each ends sooner."
        return
    yield (
        f"A search gets through {1.0 / row.efficiency:.1f} × as many trainings in the same time as {n} trials on one replica "
        f"each as with one trial on {n} at a time; but then each takes {words.ratio(row.speed_up)} as long, and it finds what "
        f"is best on one replica, not on {n}."
    )


def forecast_json(
    rows: Sequence[Forecast], *, study: str, workload: str, train_examples: int, assumptions: Sequence[str]
) -> dict[str, Any]:
    """A forecast as one JSON object."""
    return {
        "study": study,
        "workload": workload,
        "forecast": [_row_json(row, train_examples) for row in rows],
        "pays_up_to_replicas": pays_up_to(rows),
        "assumptions": list(assumptions),
    }


def _row_json(row: Forecast, train_examples: int) -> dict[str, Any]:
    p = row.parameters
    size, boundaries = p.global_batch_size, p.schedule.boundaries
    return {
        "replicas": row.replicas,
        "global_batch_size": size,
        "per_replica_batch_size": p.per_replica_batch_size(row.replicas),
        "accumulation": p.accumulation,
        "learning_rate": p.learning_rate,
        "momentum": p.momentum,
        "schedule": p.schedule.kind,
        "decay_boundaries_examples": list(boundaries),
        "decay_boundaries_epochs": [b / train_examples for b in boundaries],
        "decay_boundaries_steps": [-(-b // size) for b in boundaries],
        "steps_to_target": row.steps.steps,
        "steps_interval": list(row.steps.interval),
        "examples_to_target": row.examples,
        "examples_ratio": row.examples_ratio,
        "seconds_to_target": row.seconds,
        "seconds_interval": list(row.interval),
        "device_seconds": row.device_seconds,
        "speed_up": row.speed_up,
        "efficiency": row.efficiency,
        "steps_are": str(row.steps.source),
        "step_time_is": "profiled" if row.is_profiled else "extrapolated",
        "trainings_in_parallel_over_one_at_a_time": 1.0 / row.efficiency,
    }
