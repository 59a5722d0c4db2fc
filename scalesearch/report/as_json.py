"""A study's findings as one JSON object, the output of `--json`."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from scalesearch.core.budget import Budget, Spent
from scalesearch.core.recommend import Candidate, Findings


def study_json(
    findings: Findings, *, name: str, workload: str, replicas: int, budget: Budget, spent: Spent
) -> dict[str, Any]:
    """All numbers in natural units; what is not known is null."""
    curve = findings.curve
    return {
        "study": name,
        "workload": workload,
        "objective": asdict(findings.objective),
        "recommendation": _candidate(findings.recommendation, replicas),
        "baseline": _candidate(findings.baseline, replicas),
        "batch_sizes": [
            {
                "global_batch_size": b.global_batch_size,
                "steps_to_target": b.steps_to_target,
                "examples_to_target": b.examples_to_target,
                "seconds_to_target": b.seconds_to_target,
                "trials": b.trials,
                "reached": b.reached,
            }
            for b in findings.batch_sizes
        ],
        "curve": {"s_min": curve.s_min, "b_crit": curve.b_crit, "residual": curve.residual} if curve else None,
        "budget": {unit: {"asked": getattr(budget, unit), "spent": value} for unit, value in asdict(spent).items()},
        "outcomes": {outcome.value: count for outcome, count in findings.outcomes.items()},
        "caveats": list(findings.caveats),
    }


def _candidate(candidate: Candidate | None, replicas: int) -> dict[str, Any] | None:
    if candidate is None:
        return None
    parameters, reached = candidate.parameters, candidate.best.reached
    schedule = parameters.schedule
    return {
        "global_batch_size": parameters.global_batch_size,
        "per_replica_batch_size": parameters.per_replica_batch_size(replicas),
        "accumulation": parameters.accumulation,
        "replicas": replicas,
        "learning_rate": parameters.learning_rate,
        "momentum": parameters.momentum,
        "schedule": schedule.kind,
        "decay_boundaries_examples": list(schedule.boundaries),
        "decay_factor": getattr(schedule, "decay_factor", None),
        "end_factor": getattr(schedule, "end_factor", None),
        "cost": candidate.cost,
        "steps_to_target": reached.steps if reached else None,
        "examples_to_target": reached.examples if reached else None,
        "seconds_to_target": reached.seconds if reached else None,
        "test_metrics": {k: v if math.isfinite(v) else None for k, v in candidate.best.test_metrics.items()},
        "runs": candidate.runs,
        "missed": candidate.missed,
        "interval": candidate.interval,
        "trial": candidate.best.number,
    }
