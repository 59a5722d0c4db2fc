"""A profile in words and tables, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from scalesearch.core.profile import PRECISION, Profile, ProfilePoint, ReplicaProfile
from scalesearch.core.step_time_model import StepTimeModel
from scalesearch.report import words
from scalesearch.report.say import say

_WHY_NO_LARGER = {
    "memory": "larger ones do not fit in memory",
    "definition": "the largest that the definition asks for",
    "time": "larger ones were not tried: the time was up",
}


def print_profile(console: Console, profile: Profile, model: StepTimeModel | None) -> None:
    """A table for each number of replicas, then the fit; `model` None: nothing fitted in memory."""
    for part in profile.by_replicas:
        console.print()
        console.print(_table(profile, part), crop=console.is_terminal, width=None if console.is_terminal else 1000)
        for line in replica_lines(part):
            say(console, f"  {line}")
    console.print()
    for line in model_lines(profile, model):
        say(console, line)


def replica_lines(part: ReplicaProfile) -> Iterator[str]:
    """What holds for all sizes of a number of replicas."""
    largest = part.largest_per_replica_batch_size
    if not largest:
        yield "no batch fits in memory, not even 1 example per replica"
        return
    yield f"largest per-replica batch: {largest:,} ({_WHY_NO_LARGER[part.limited_by]})"
    yield f"compiling and first step: {words.duration(part.compile_seconds)}, in none of the times above"


def model_lines(profile: Profile, model: StepTimeModel | None) -> Iterator[str]:
    """The step-time model, how well it fits, and what it does not know."""
    if model is None:
        yield "No step-time model: nothing was measured."
        return
    f, several = model.formula, len(model.measured_replicas) > 1
    parts = [
        f"at least {words.duration(f.launch)}",
        f"{words.duration(f.per_example)} per example of a replica",
        f"saturation {f.saturation:.2g}",
    ]
    if several:
        parts.append(f"K replicas slow one another by K^{f.contention:.2f}")
        parts.append(f"synchronisation of 2 replicas {words.duration(f.synchronisation)}")
    if any(p.accumulation > 1 for p in profile.points):
        parts.append(f"a further micro-batch {words.signed_duration(f.accumulating)} beside its compute")
    yield "Step time: " + "; ".join(parts)
    if model.error is not None:
        yield f"Error of the fit at sizes left out in turn: {model.error:.1%} (root mean square)"
    yield "It is fitted to the column `quiet`: the fastest tenth of the steps, which what else runs here disturbs least."
    wide = [p for p in profile.points if p.relative_error > PRECISION]
    if wide:
        worst = max(p.relative_error for p in wide)
        yield (
            f"{len(wide)} of {len(profile.points)} medians are not known within {PRECISION:.0%} (the worst within "
            f"{worst:.0%}): the time was up; a longer --limit or a quieter machine helps"
        )
    if several or model.measured_replicas[0] > 1:
        yield f"Other numbers of replicas: {model.assumption()}."
    if profile.fingerprint.hardware.get("kind") == "CPU":
        yield "CPU replicas share this machine's cores and memory: their scaling says nothing about several GPUs."


def profile_rows(profile: Profile, part: ReplicaProfile) -> Iterator[tuple[str, ...]]:
    """The measured sizes as text: the headings first."""
    yield "per replica", "batch", "step", "95 %", "quiet", "ex./s", "effic.", "input", "memory"
    for p in part.points:
        efficiency = profile.scaling_efficiency(p)
        share = f"{p.per_replica_batch_size:,}" + (f" × {p.accumulation}" if p.accumulation > 1 else "")
        yield (
            share,
            f"{p.global_batch_size:,}",
            words.duration(p.step_seconds),
            f"± {p.relative_error:.1%}",
            words.duration(p.undisturbed_seconds),
            words.count(p.examples_per_second),
            f"{efficiency:.0%}" if efficiency is not None else "–",
            f"{p.input_share:.0%}",
            words.size(p.memory_bytes) if p.memory_bytes is not None else "–",
        )


def profile_json(profile: Profile, model: StepTimeModel | None, *, reused: list[int]) -> dict[str, Any]:
    """A profile as one JSON object; `reused` are the numbers of replicas that were not measured anew."""
    return {
        "fingerprint": profile.fingerprint.flat(),
        "replicas": [
            {
                "replicas": part.replicas,
                "largest_per_replica_batch_size": part.largest_per_replica_batch_size,
                "limited_by": part.limited_by,
                "compile_seconds": part.compile_seconds,
                "profile_seconds": part.seconds,
                "reused": part.replicas in reused,
                "points": [_point_json(profile, point) for point in part.points],
            }
            for part in profile.by_replicas
        ],
        "model": _model_json(model) if model is not None else None,
    }


def _point_json(profile: Profile, p: ProfilePoint) -> dict[str, Any]:
    return {
        "per_replica_batch_size": p.per_replica_batch_size,
        "accumulation": p.accumulation,
        "global_batch_size": p.global_batch_size,
        "step_seconds": p.step_seconds,
        "step_seconds_95": list(p.interval),
        "undisturbed_seconds": p.undisturbed_seconds,
        "spread": p.spread,
        "blocks": p.blocks,
        "steps": p.steps,
        "examples_per_second": p.examples_per_second,
        "scaling_efficiency": profile.scaling_efficiency(p),
        "input_share": p.input_share,
        "memory_bytes": p.memory_bytes,
    }


def _model_json(model: StepTimeModel) -> dict[str, Any]:
    f = model.formula
    return {
        "launch_seconds": f.launch,
        "per_example_seconds": f.per_example,
        "saturation": f.saturation,
        "contention": f.contention,
        "synchronisation_seconds": f.synchronisation,
        "synchronisation_growth": f.growth,
        "accumulating_seconds": f.accumulating,
        "relative_error_at_left_out_sizes": model.error,
    }


def _table(profile: Profile, part: ReplicaProfile) -> Table:
    kind = profile.fingerprint.hardware.get("kind", "")
    title = f"{part.replicas} {kind} replica{'s' if part.replicas > 1 else ''}"
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True, title=title, title_justify="left")
    headings, *rows = profile_rows(profile, part)
    for heading in headings:
        table.add_column(heading, justify="right")
    for cells in rows:
        table.add_row(*cells)
    return table
