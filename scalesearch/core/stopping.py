"""When a trial is over by its own measurements: target reached, or diverged."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scalesearch.core.results import Measurement, Objective, Outcome

EXPLODED = 10.0  # times the loss at initialisation: no transient of a healthy run is that high
CLIMBED = 0.5  # share of the progress below the initial loss that is lost again
ENOUGH_PROGRESS = 0.5  # climbing is judged only once the loss has fallen below this share of the initial one


def verdict(measured: Sequence[Measurement], objective: Objective) -> tuple[Outcome, str] | None:
    """Outcome and reason if the last measurement ends the trial, else None.

    Divergence is judged on the training loss, as a validation loss may climb by mere overfitting: non-finite;
    above EXPLODED times the loss at initialisation; or, in two measurements running, above the level at which
    CLIMBED of the progress so far is lost (slow divergence, which never becomes NaN).
    """
    now = measured[-1]
    if reason := _diverged(measured):
        return Outcome.DIVERGED, reason
    value = now.metrics[objective.metric]
    if objective.met(value):
        return Outcome.REACHED, f"{objective.metric} {value:.6g} is better than {objective.target:.6g}"
    return None


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
    lowest = min(losses)
    limit = lowest + CLIMBED * (initial - lowest)
    if lowest < ENOUGH_PROGRESS * initial and min(losses[-2:]) > limit:
        return f"training loss climbed from {lowest:.4g} to {losses[-1]:.4g} {at}"
    return None
