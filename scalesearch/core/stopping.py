"""When a trial is over by its own measurements: target reached, or diverged."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import takewhile

from scalesearch.core.results import Measurement, Objective, Outcome, crossing

EXPLODED = 10.0  # times the loss at initialisation: no transient of a healthy run is that high
CLIMBED = 0.5  # share of the progress below the initial loss that is lost again
ENOUGH_PROGRESS = 0.5  # climbing is judged only once the loss has fallen below this share of the initial one
LASTING_STEPS = 100  # a climb that has lasted so long is no transient (or half of the steps so far, if that is less)


def verdict(measured: Sequence[Measurement], objective: Objective) -> tuple[Outcome, str] | None:
    """Outcome and reason if the last measurement ends the trial, else None.

    Divergence is judged on the training loss, as a validation loss may climb by mere overfitting: non-finite;
    above EXPLODED times the loss at initialisation; or above the level at which CLIMBED of the progress so far is
    lost, and lastingly so (slow divergence, which never becomes NaN). Runs at the largest stable learning rates, where
    the optima of large batches lie, climb for a while and recover.
    """
    now = measured[-1]
    if reason := _diverged(measured):
        return Outcome.DIVERGED, reason
    value = now.metrics[objective.metric]
    # By no rule does an evaluation show a crossing without meeting the target itself.
    if not objective.met(value) or crossing(measured, objective) is None:
        return None
    read = f"{value:.6g}"
    if objective.crossing == "smoothed":
        median = statistics.median(m.metrics[objective.metric] for m in measured[-3:])
        read = f"{median:.6g}, the median of three evaluations,"
    return Outcome.REACHED, f"{objective.metric} {read} is better than {objective.target:.6g}"


def awaits_confirmation(measured: Sequence[Measurement], objective: Objective) -> bool:
    """Whether the last measurement met the target, and the next one may show that the median of three did.

    Such a trial is not capped yet: where it crossed the target may lie within its cap.
    """
    return objective.crossing == "smoothed" and objective.met(measured[-1].metrics[objective.metric])


def _diverged(measured: Sequence[Measurement]) -> str | None:
    now = measured[-1]
    at = f"after {now.step:,} steps ({now.examples:,} examples)"
    for name, value in (("training loss", now.train_loss), *now.metrics.items()):
        if not math.isfinite(value) and not (name == "training loss" and now.step == 0):
            return f"{name} is {value} {at}"
    initial = measured[0].metrics["val/loss"]
    losses = [m.train_loss for m in measured[1:]]
    if not losses or initial <= 0:
        return None
    if losses[-1] > EXPLODED * initial:
        return f"training loss {losses[-1]:.4g} is over {EXPLODED:g} times that at initialisation {at}"
    if (lowest := _lowest_before_a_lasting_climb(measured[1:], initial)) is not None:
        return f"training loss climbed from {lowest:.4g} to {losses[-1]:.4g} {at}"
    return None


def _lowest_before_a_lasting_climb(measured: Sequence[Measurement], initial: float) -> float | None:
    lowest = min(m.train_loss for m in measured)
    if lowest >= ENOUGH_PROGRESS * initial:
        return None
    limit = lowest + CLIMBED * (initial - lowest)
    above = list(takewhile(lambda m: m.train_loss > limit, reversed(measured)))
    if not above:
        return None
    start, now = above[-1].step, measured[-1].step
    return lowest if now - start >= min(start, LASTING_STEPS) else None
