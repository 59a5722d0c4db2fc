"""Trials as a study would report them."""

from __future__ import annotations

import math

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Cost, Measurement, Objective, Outcome, TrialResult, crossing, first_crossing
from scalesearch.core.schedule import Piecewise
from scalesearch.tracking import StudyRecord

OBJECTIVE = Objective(
    metric="val/classification_error", direction="minimize", target=0.1, minimize="seconds", crossing="first"
)


def study_record(workload: str, *, name: str = "digits_mlp-r2", **parameters: str) -> StudyRecord:
    return StudyRecord(
        name=name,
        workload=workload,
        objective=OBJECTIVE,
        replicas=2,
        seed=7,
        definition_toml='[workload]\nname = "digits/mlp"\n',
        parameters=parameters,
    )


def parameters(global_batch_size: int = 64, learning_rate: float = 0.25) -> Parameters:
    schedule = Piecewise(learning_rate=learning_rate, decay_factor=0.1, boundaries=(1000, 4000))
    return Parameters(global_batch_size=global_batch_size, schedule=schedule, momentum=0.9)


def measurements(errors: list[float], *, global_batch_size: int = 64) -> tuple[Measurement, ...]:
    """One evaluation every ten steps, the first at step 0."""
    return tuple(
        Measurement(
            step=10 * i,
            examples=10 * i * global_batch_size,
            train_seconds=1.0 * i,
            elapsed_seconds=1.5 * i,
            train_loss=math.nan if i == 0 else 2 * error,
            metrics={"val/classification_error": error, "val/loss": 3 * error},
        )
        for i, error in enumerate(errors)
    )


def trial_result(
    number: int = 0,
    outcome: Outcome = Outcome.REACHED,
    *,
    errors: list[float] | None = None,
    global_batch_size: int = 64,
    learning_rate: float = 0.25,
    reason: str = "",
    is_baseline: bool = False,
) -> TrialResult:
    if errors is None:
        errors = [0.9, 0.4, 0.05] if outcome is Outcome.REACHED else [0.9, 0.4]
    measured = measurements(errors, global_batch_size=global_batch_size)
    last = measured[-1] if measured else None
    return TrialResult(
        number=number,
        parameters=parameters(global_batch_size, learning_rate),
        seed=100 + number,
        outcome=outcome,
        reason=reason,
        cost=Cost(examples=last.examples if last else 0, device_seconds=2 * last.elapsed_seconds if last else 1.0),
        reached=crossing(measured, OBJECTIVE) if outcome is Outcome.REACHED else None,
        first_reached=first_crossing(measured, OBJECTIVE),
        measurements=measured,
        is_baseline=is_baseline,
        seconds=3.0,
    )
