"""A study's findings as one JSON object, the output of `--json`."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from scalesearch.core.budget import Budget, Spent
from scalesearch.core.curve import ScalingCurve
from scalesearch.core.recommend import Candidate, Findings
from scalesearch.report.noise_scale import noise_scale_json


def study_json(
    findings: Findings, *, name: str, workload: str, replicas: int, budget: Budget, spent: Spent
) -> dict[str, Any]:
    """All numbers in natural units; what is not known is null."""
    curve = findings.curve
    return {
        "study": name,
        "workload": workload,
        "aim": "curve" if findings.of_curve else "optimum",
        "objective": asdict(findings.objective),
        "recommendation": _candidate(findings.recommendation, replicas),
        "seconds_are": "profiled" if findings.profiled else "measured",
        "baseline": _candidate(findings.baseline, replicas),
        "batch_sizes": [
            {
                "global_batch_size": b.global_batch_size,
                "steps_to_target": b.steps_to_target,
                "examples_to_target": b.examples_to_target,
                "seconds_to_target": b.seconds_to_target,
                "steps_to_first_crossing": b.steps_to_first_crossing,
                "trials": b.trials,
                "reached": b.reached,
                "steps_interval": b.interval,
                "leader": _candidate(b.leader, replicas),
                "most_examples": b.most_examples,
                "out_of_memory": b.out_of_memory,
            }
            for b in findings.batch_sizes
        ],
        "curve": _curve(curve) if curve else None,
        "gradient_noise_scale": noise_scale_json(findings.recommendation.best if findings.recommendation else None),
        "budget": {unit: {"asked": getattr(budget, unit), "spent": value} for unit, value in asdict(spent).items()},
        "outcomes": {outcome.value: count for outcome, count in findings.outcomes.items()},
        "edges": list(findings.edges),
        "caveats": list(findings.caveats),
    }


def _curve(curve: ScalingCurve) -> dict[str, float]:
    return {
        **asdict(curve),
        "perfect_scaling_up_to": curve.perfect_scaling_up_to,
        "maximal_data_parallelism_from": curve.maximal_data_parallelism_from,
    }


def _candidate(candidate: Candidate | None, replicas: int) -> dict[str, Any] | None:
    if candidate is None:
        return None
    parameters, reached, first = candidate.parameters, candidate.best.reached, candidate.best.first_reached
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
        "steps_to_first_crossing": first.steps if first else None,
        "examples_to_first_crossing": first.examples if first else None,
        "seconds_to_first_crossing": first.seconds if first else None,
        "test_metrics": {k: v if math.isfinite(v) else None for k, v in candidate.best.test_metrics.items()},
        "runs": candidate.runs,
        "missed": candidate.missed,
        "interval": candidate.interval,
        "trial": candidate.best.number,
    }
