"""Core types to JSON values and back, as they are kept in trial attributes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Cost, Measurement, Outcome, Reached, TrialResult

PARAMETERS = TypeAdapter(Parameters)
_REACHED: TypeAdapter[Reached | None] = TypeAdapter(Reached | None)
_COST = TypeAdapter(Cost)

_COLUMNS = ("step", "examples", "train_seconds", "elapsed_seconds", "train_loss")


def measurements_to_json(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """Columns, which take a third of the room of a list of objects; non-finite numbers become null or strings."""
    metrics = measurements[0].metrics if measurements else {}
    return {
        **{name: [_to_json(getattr(m, name)) for m in measurements] for name in _COLUMNS},
        "metrics": {name: [_to_json(m.metrics[name]) for m in measurements] for name in metrics},
    }


def measurements_from_json(columns: Mapping[str, Any]) -> tuple[Measurement, ...]:
    """The inverse of `measurements_to_json`."""
    return tuple(
        Measurement(
            step=step,
            examples=columns["examples"][i],
            train_seconds=_from_json(columns["train_seconds"][i]),
            elapsed_seconds=_from_json(columns["elapsed_seconds"][i]),
            train_loss=_from_json(columns["train_loss"][i]),
            metrics={name: _from_json(values[i]) for name, values in columns["metrics"].items()},
        )
        for i, step in enumerate(columns["step"])
    )


def result_to_json(result: TrialResult) -> dict[str, Any]:
    """How a trial ended, without its parameters, seed and measurements, which are kept beside it."""
    return {
        "outcome": result.outcome.value,
        "reason": result.reason,
        "cost": _COST.dump_python(result.cost, mode="json"),
        "reached": _REACHED.dump_python(result.reached, mode="json"),
        "test_metrics": {name: _to_json(value) for name, value in result.test_metrics.items()},
        "seconds": result.seconds,
        "ruled_out_steps": result.ruled_out_steps,
    }


def result_from_json(number: int, attributes: Mapping[str, Any]) -> TrialResult:
    """A finished trial from the attributes `parameters`, `seed`, `measurements`, `result` and `is_baseline`."""
    result = attributes["result"]
    return TrialResult(
        number=number,
        parameters=PARAMETERS.validate_python(attributes["parameters"]),
        seed=attributes["seed"],
        outcome=Outcome(result["outcome"]),
        reason=result["reason"],
        cost=_COST.validate_python(result["cost"]),
        reached=_REACHED.validate_python(result["reached"]),
        measurements=measurements_from_json(attributes["measurements"]),
        test_metrics={name: _from_json(value) for name, value in result["test_metrics"].items()},
        is_baseline=attributes.get("is_baseline", False),
        seconds=result["seconds"],
        ruled_out_steps=result["ruled_out_steps"],
    )


def _to_json(value: float) -> float | str:
    # JSON has no NaN or infinity, and PostgreSQL's JSON types refuse Python's spelling of them.
    return value if math.isfinite(value) else str(value)


def _from_json(value: float | str) -> float:
    return float(value)
