"""Numbers and parameters in the words of the report, the terminal and MLflow notes."""

from __future__ import annotations

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Goal, Objective
from scalesearch.core.schedule import Linear, Piecewise, Schedule, first_step_from


def duration(seconds: float) -> str:
    """`8.3 s`, `2m 05s`, `1h 13m`."""
    if 1e-9 < seconds < 0.95e-3:
        return f"{seconds * 1e6:.2g} µs" if seconds < 99.5e-6 else f"{seconds * 1e6:.0f} µs"
    if seconds < 0.095:
        return f"{seconds * 1e3:.2g} ms" if seconds > 1e-9 else "0 s"
    if seconds < 9.95:
        return f"{seconds:.1f} s" if seconds >= 0.995 else f"{seconds:.2g} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    return f"{minutes // 60}h {minutes % 60:02d}m"


def signed_duration(seconds: float) -> str:
    """`+ 2 ms`, `− 2 ms`."""
    return f"{'−' if seconds < -1e-9 else '+'} {duration(abs(seconds))}"


def size(size_bytes: float) -> str:
    """`820 MiB`, `1.2 GiB`."""
    mebibytes = size_bytes / 2**20
    return f"{mebibytes:,.0f} MiB" if mebibytes < 1023.5 else f"{mebibytes / 1024:.1f} GiB"


def count(value: float) -> str:
    """`942`, `132k`, `5.1M`: three significant digits."""
    if value < 9_999.5:
        return f"{value:,.0f}"
    rounded = float(f"{value:.3g}")  # before the unit is chosen: 999,600 is 1M, not 1000k
    power, suffix = next(((p, s) for p, s in ((9, "G"), (6, "M")) if rounded >= 10**p), (3, "k"))
    return f"{rounded / 10**power:,.2f}".rstrip("0").rstrip(".") + suffix


def cost(value: float, goal: Goal) -> str:
    """A cost to target with its unit."""
    if goal == "seconds":
        return duration(value)
    return f"{value:.6g}" if goal == "metric" else f"{count(value)} {goal}"


def goal(objective: Objective) -> str:
    """The target with its direction: `val/classification_error < 0.1`."""
    return f"{objective.metric} {'<' if objective.direction == 'minimize' else '>'} {objective.target:.6g}"


def ratio(value: float) -> str:
    """`3.3 ×`, `1.04 ×`."""
    return f"{value:.2f} ×" if value < 2 else f"{value:.1f} ×"


def examples(value: int, *, global_batch_size: int, train_examples: int) -> str:
    """A point of training in all three units: epochs, examples and the first step that starts there."""
    step = first_step_from(value, global_batch_size=global_batch_size)
    return f"{value / train_examples:.3g} epochs ({value:,} examples, step {step:,})"


def settings(parameters: Parameters, *, replicas: int, train_examples: int) -> str:
    """What to set, in one line."""
    batch = f"global batch {parameters.global_batch_size:,}"
    if replicas > 1 or parameters.accumulation > 1:
        share = f"{parameters.per_replica_batch_size(replicas):,} per replica"
        accumulated = f" × {parameters.accumulation} micro-batches" if parameters.accumulation > 1 else ""
        batch += f" ({share}{accumulated})"
    parts = [batch, f"learning rate {parameters.learning_rate:.4g}"]
    if parameters.momentum is not None:
        parts.append(f"momentum {parameters.momentum:.4g}")
    parts.append(_decay(parameters, train_examples))
    return ", ".join(parts)


def short_decay(schedule: Schedule, *, train_examples: int) -> str:
    """When the learning rate falls, in a few words."""
    epochs = [f"{b / train_examples:.3g}" for b in schedule.boundaries]
    if not epochs:
        return "no decay"
    return f"{'linear until' if isinstance(schedule, Linear) else 'decay at'} {' and '.join(epochs)} ep"


def _decay(parameters: Parameters, train_examples: int) -> str:
    schedule = parameters.schedule
    size = parameters.global_batch_size
    points = [examples(b, global_batch_size=size, train_examples=train_examples) for b in schedule.boundaries]
    if isinstance(schedule, Piecewise) and points:
        return f"× {schedule.decay_factor:.3g} after " + " and after ".join(points)
    if isinstance(schedule, Linear):
        return f"falling linearly to × {schedule.end_factor:.3g} until {points[0]}"
    return "no decay"
