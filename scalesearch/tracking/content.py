"""What a study and its trials are called and what is said of them in MLflow: pure functions, no MLflow."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scalesearch.core.noise_scale import of_second_half
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import OUTCOME_MEANING, Measurement, Objective, Outcome, TrialResult
from scalesearch.core.schedule import Linear, Piecewise, rate

STATUS: Mapping[Outcome, str] = {
    Outcome.REACHED: "FINISHED",
    Outcome.EXHAUSTED: "FINISHED",
    Outcome.CAPPED: "KILLED",
    Outcome.INTERRUPTED: "KILLED",
    Outcome.DIVERGED: "FAILED",
    Outcome.OUT_OF_MEMORY: "FAILED",
    Outcome.CRASHED: "FAILED",
}

_LONGEST_PARAM = 6000
_LONGEST_TAG = 8000


@dataclass(frozen=True, kw_only=True)
class StudyRecord:
    """What MLflow is told of a study when it starts.

    `definition_toml` becomes the artifact definition.toml; `parameters` are further params of the study's run
    (budget asked, search ranges …).
    """

    name: str
    workload: str
    objective: Objective
    replicas: int
    seed: int
    definition_toml: str
    parameters: Mapping[str, str] = field(default_factory=dict)


def study_tags(record: StudyRecord) -> dict[str, str]:
    """Tags of a study's run."""
    return {
        "mlflow.runName": record.name,
        "scalesearch.kind": "study",
        "scalesearch.study": record.name,
        "scalesearch.workload": record.workload,
    }


def study_params(record: StudyRecord) -> dict[str, str]:
    """Params of a study's run."""
    objective = record.objective
    target = {} if objective.target is None else {"objective.target": f"{objective.target:g}"}
    own = {
        "objective.metric": objective.metric,
        "objective.minimize": objective.minimize,
        **target,
        "replicas": str(record.replicas),
        "seed": str(record.seed),
    }
    return {_key(name): value[:_LONGEST_PARAM] for name, value in (own | dict(record.parameters)).items()}


def trial_tags(
    record: StudyRecord, number: int, parameters: Parameters, *, parent_run_id: str, is_baseline: bool
) -> dict[str, str]:
    """Tags of a trial's run that are known when it starts."""
    baseline = {"scalesearch.baseline": "true"} if is_baseline else {}
    return {
        "mlflow.parentRunId": parent_run_id,
        "mlflow.runName": trial_name(number, parameters, is_baseline=is_baseline),
        "scalesearch.kind": "trial",
        "scalesearch.study": record.name,
        "scalesearch.trial_number": str(number),
        "scalesearch.workload": record.workload,
        **baseline,
    }


def trial_name(number: int, parameters: Parameters, *, is_baseline: bool) -> str:
    """`trial 12 · batch 512 · lr 0.21`."""
    baseline = " · baseline" if is_baseline else ""
    batch, rate_ = parameters.global_batch_size, parameters.learning_rate
    return f"trial {number}{baseline} · batch {batch} · lr {rate_:.3g}"


def outcome_tags(result: TrialResult) -> dict[str, str]:
    """Tags that say how a trial ended; their presence marks a trial's run as complete."""
    reason = result.reason or OUTCOME_MEANING[result.outcome]
    return {"scalesearch.outcome": result.outcome.value, "scalesearch.reason": tag_text(reason)}


def trial_params(parameters: Parameters, *, seed: int, replicas: int) -> dict[str, str]:
    """The point of the search space in natural units, and on the logarithmic axes of the charts."""
    schedule = parameters.schedule
    numbers: dict[str, float] = {
        "global_batch_size": parameters.global_batch_size,
        "per_replica_batch_size": parameters.per_replica_batch_size(replicas),
        "accumulation": parameters.accumulation,
        "learning_rate": parameters.learning_rate,
        "effective_learning_rate": parameters.effective_learning_rate,
        "log2_global_batch_size": math.log2(parameters.global_batch_size),
        "log10_learning_rate": math.log10(parameters.learning_rate),
        **{f"decay_boundary_{i}": examples for i, examples in enumerate(schedule.boundaries, start=1)},
    }
    if parameters.momentum is not None:
        numbers["momentum"] = parameters.momentum
    if isinstance(schedule, Piecewise):
        numbers["decay_factor"] = schedule.decay_factor
    if isinstance(schedule, Linear):
        numbers["decay_factor"] = schedule.end_factor
    texts = {
        "schedule": type(schedule).__name__.lower(),
        "decay_boundaries": json.dumps(list(schedule.boundaries)),
        "seed": str(seed),
    }
    return {name: _number(value) for name, value in numbers.items()} | texts


def measurement_metrics(measurement: Measurement, parameters: Parameters) -> dict[str, float]:
    """The metrics of one evaluation; its step in MLflow is the optimizer step."""
    noise = measurement.noise
    return finite(
        {
            **measurement.metrics,
            "train/loss": measurement.train_loss,
            "progress/examples": measurement.examples,
            "progress/train_seconds": measurement.train_seconds,
            "progress/elapsed_seconds": measurement.elapsed_seconds,
            "progress/learning_rate": rate(parameters.schedule, measurement.examples),
            **({} if noise is None else {"gradient/trace": noise.trace, "gradient/squared_norm": noise.squared_norm}),
        }
    )


def result_metrics(result: TrialResult) -> dict[str, float]:
    """What a trial came to. Its cost to target only if it reached the target: a bound is not a cost.

    The first crossing (`TrialResult.first_reached`) is there even if the study's own rule counts it for nothing.
    """
    metrics = {
        "result/device_seconds": result.cost.device_seconds,
        "result/examples": float(result.cost.examples),
    }
    if result.shared_steps:
        metrics["result/shared_steps"] = float(result.shared_steps)  # of another trial, which has paid for them
    if result.reached is not None:
        metrics["result/steps_to_target"] = result.reached.steps
        if result.reached.steps > 0:  # MLflow's axes are linear
            metrics["result/log2_steps_to_target"] = math.log2(result.reached.steps)
        metrics["result/examples_to_target"] = result.reached.examples
        metrics["result/seconds_to_target"] = result.reached.seconds
    if result.first_reached is not None:
        metrics["result/steps_to_first_crossing"] = result.first_reached.steps
        metrics["result/examples_to_first_crossing"] = result.first_reached.examples
        metrics["result/seconds_to_first_crossing"] = result.first_reached.seconds
    metrics |= _noise_scale(result)
    if result.measurements:
        last = result.measurements[-1].metrics
        metrics |= {final_metric(name): value for name, value in last.items()}
    metrics |= {name if name.startswith("test/") else f"test/{name}": v for name, v in result.test_metrics.items()}
    return {name: float(f"{value:.6g}") for name, value in finite(metrics).items()}  # MLflow shows every digit


def _noise_scale(result: TrialResult) -> dict[str, float]:
    """With its 90 % interval, whose upper end may be missing."""
    scale = of_second_half(m.noise for m in result.measurements)
    if scale is None:
        return {}
    low, high = scale.interval
    name = "result/gradient_noise_scale"
    return {name: scale.value, f"{name}_low": low, f"{name}_high": high}


def final_metric(name: str) -> str:
    """The name of a metric's last value: `val/loss` -> `result/final_loss`."""
    return "result/final_" + name.removeprefix("val/").replace("/", "_")


def cost_metric(objective: Objective) -> str:
    """The metric by which trials are ordered."""
    if objective.minimize == "metric":
        return final_metric(objective.metric)
    return f"result/{objective.minimize}_to_target"


def best_tags(best: TrialResult) -> dict[str, str]:
    """The optimum, on the study's run. Tags, since params cannot change when the study goes on."""
    parameters = best.parameters
    momentum = {} if parameters.momentum is None else {"best.momentum": _number(parameters.momentum)}
    return {
        "best.trial_number": str(best.number),
        "best.global_batch_size": str(parameters.global_batch_size),
        "best.learning_rate": _number(parameters.learning_rate),
        **momentum,
        "best.decay_boundaries": json.dumps(list(parameters.schedule.boundaries)),
    }


def best_metrics(best: TrialResult) -> dict[str, float]:
    """The optimum's numbers, on the study's run."""
    results = {
        "best." + name.removeprefix("result/").replace("/", "_"): value
        for name, value in result_metrics(best).items()
        if not name.startswith("result/log2")
    }
    parameters = best.parameters
    return results | {
        "best.global_batch_size": float(parameters.global_batch_size),
        "best.learning_rate": parameters.learning_rate,
    }


def trials_table(results: Sequence[TrialResult], objective: Objective, *, replicas: int) -> str:
    """All trials as a table, in the JSON that MLflow shows as one (pandas' orient="split")."""
    columns = [
        "trial", "outcome", "global_batch_size", "per_replica_batch_size", "learning_rate", "momentum",
        "decay_boundaries", "seconds_to_target", "steps_to_target", "examples_to_target", objective.metric,
        "device_seconds", "examples", "baseline", "reason",
    ]  # fmt: skip
    rows = [_row(result, objective, replicas) for result in results]
    return json.dumps({"columns": columns, "data": rows}, allow_nan=False)


def _row(result: TrialResult, objective: Objective, replicas: int) -> list[object]:
    parameters, reached = result.parameters, result.reached
    last = result.measurements[-1].metrics[objective.metric] if result.measurements else math.nan
    return [
        result.number,
        result.outcome.value,
        parameters.global_batch_size,
        parameters.per_replica_batch_size(replicas),
        _short(parameters.learning_rate),
        parameters.momentum,
        ", ".join(f"{examples:,}" for examples in parameters.schedule.boundaries),
        None if reached is None else _short(reached.seconds),
        None if reached is None else round(reached.steps, 1),
        None if reached is None else round(reached.examples),
        _short(last),
        _short(result.cost.device_seconds),
        result.cost.examples,
        "yes" if result.is_baseline else "",
        result.reason,
    ]


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """`metrics` without the values that are not numbers: MLflow sorts NaN first and stores inf as 1.8e308."""
    return {_key(name): float(value) for name, value in metrics.items() if math.isfinite(value)}


def tag_text(text: str) -> str:
    """`text`, cut to what a tag holds."""
    return text if len(text) <= _LONGEST_TAG else text[: _LONGEST_TAG - 1] + "…"


def quoted(text: str) -> str:
    """`text` as a string of MLflow's search language, which has no escapes."""
    return f'"{text}"' if "'" in text else f"'{text}'"


def names(items: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`; of more than six the first five and a count."""
    shown = list(items) if len(items) <= 6 else [*items[:5], f"{len(items) - 5} more"]
    *head, last = shown
    return f"{', '.join(head)} and {last}" if head else last


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def _key(name: str) -> str:
    # What MLflow allows in the name of a metric, a param or a tag.
    return re.sub(r"[^\w.\-/ ]", "_", name)
