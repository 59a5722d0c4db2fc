"""Findings as a study would report them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from scalesearch.core.curve import CurvePoint
from scalesearch.core.parameters import Parameters
from scalesearch.core.recommend import Findings, findings
from scalesearch.core.results import Cost, Measurement, Objective, Outcome, TrialResult, crossing, first_crossing
from scalesearch.core.schedule import Piecewise, Schedule

METRIC = "val/classification_error"
OBJECTIVE = Objective(metric=METRIC, direction="minimize", target=0.1, minimize="seconds", crossing="first")
AT_THE_END = Objective(metric=METRIC, direction="minimize", target=None, minimize="metric")
TRAIN_EXAMPLES = 55_000
REACHED, MISSED = (0.9, 0.5, 0.05), (0.9, 0.5, 0.12)


def trial(
    number: int,
    outcome: Outcome = Outcome.REACHED,
    values: Sequence[float] | None = None,
    *,
    batch: int = 64,
    schedule: Schedule | None = None,
    steps_between: int = 10,
    is_baseline: bool = False,
    test_metrics: Mapping[str, float] | None = None,
    reason: str = "",
) -> TrialResult:
    """A trial of two replicas that measured `values`, one each `steps_between` steps of a tenth of a second."""
    if values is None:
        values = REACHED if outcome is Outcome.REACHED else MISSED
    measurements = tuple(
        Measurement(
            step=i * steps_between,
            examples=i * steps_between * batch,
            train_seconds=0.1 * i * steps_between,
            elapsed_seconds=0.2 * i * steps_between,
            train_loss=1.0 if i else math.nan,
            metrics={METRIC: value, "val/loss": 2 * value},
        )
        for i, value in enumerate(values)
    )
    default = Piecewise(learning_rate=0.25 + number / 100, decay_factor=0.1, boundaries=(132_000,))
    return TrialResult(
        number=number,
        parameters=Parameters(global_batch_size=batch, schedule=schedule or default, momentum=0.9),
        seed=number,
        outcome=outcome,
        reason=reason,
        cost=Cost(examples=measurements[-1].examples if measurements else 0, device_seconds=8.0),
        reached=crossing(measurements, OBJECTIVE) if outcome is Outcome.REACHED else None,
        first_reached=first_crossing(measurements, OBJECTIVE),
        measurements=measurements,
        test_metrics=test_metrics or {},
        is_baseline=is_baseline,
        seconds=4.5,
    )


def found(*results: TrialResult, objective: Objective = OBJECTIVE) -> Findings:
    return findings(results, objective)


def along_a_curve(s_min: float, b_crit: float, batches: Sequence[int]) -> list[TrialResult]:
    """A trial at each batch size that reaches the target after about s_min · (1 + b_crit / batch) steps."""
    return [
        trial(n, values=(0.9, 0.1, 0.0), batch=b, steps_between=round(s_min * (1 + b_crit / b)))
        for n, b in enumerate(batches)
    ]


def of_curve() -> Findings:
    """A study of the whole curve: leaders at 16 (once) and 64 (of three runs, one missed); 128 to 512 not reached."""
    leader = trial(0, batch=64).parameters
    results = [
        trial(0, batch=64),
        replace(trial(1, batch=64), parameters=leader),
        replace(trial(2, Outcome.CAPPED, batch=64), parameters=leader),
        trial(3, batch=64, values=(0.9, 0.0)),
        trial(4, batch=16),
        trial(5, Outcome.CAPPED, batch=128),
        trial(6, Outcome.OUT_OF_MEMORY, [], batch=256),
    ]
    points = {
        16: CurvePoint(parameters=results[4].parameters, steps=19.0, interval=(16.0, 22.0)),
        64: CurvePoint(parameters=leader, steps=20.0, interval=(18.0, 23.0)),
    }
    return findings(results, OBJECTIVE, leader=leader, curve_sizes=(16, 64, 128, 256, 512), points=points)
