"""Trials as a study would report them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Cost, Measurement, Objective, Outcome, TrialResult, crossing, first_crossing
from scalesearch.core.schedule import Constant

METRIC = "val/classification_error"
OBJECTIVE = Objective(metric=METRIC, direction="minimize", target=0.1, minimize="steps", crossing="first")
SMOOTHED = replace(OBJECTIVE, crossing="smoothed")


def measurement(step: int, value: float, *, batch: int = 64, loss: float = 1.0, val_loss: float = 2.0) -> Measurement:
    """A measurement after `step` steps of 0.5 s each; loading took one second."""
    return Measurement(
        step=step,
        examples=step * batch,
        train_seconds=0.5 * step,
        elapsed_seconds=1.0 + step,
        train_loss=loss if step else math.nan,
        metrics={METRIC: value, "val/loss": val_loss},
    )


def trial(
    number: int,
    values: Sequence[float],
    outcome: Outcome,
    *,
    batch: int = 64,
    learning_rate: float = 0.1,
    objective: Objective = OBJECTIVE,
    is_baseline: bool = False,
) -> TrialResult:
    """A trial that measured `values`, one every ten steps from step 0 on."""
    measurements = tuple(measurement(10 * i, v, batch=batch) for i, v in enumerate(values))
    return TrialResult(
        number=number,
        parameters=Parameters(global_batch_size=batch, schedule=Constant(learning_rate=learning_rate)),
        seed=number,
        outcome=outcome,
        reason="",
        cost=Cost(examples=measurements[-1].examples if measurements else 0, device_seconds=1.0),
        reached=crossing(measurements, objective) if outcome is Outcome.REACHED else None,
        first_reached=first_crossing(measurements, objective),
        measurements=measurements,
        is_baseline=is_baseline,
    )
