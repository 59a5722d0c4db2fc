"""Core types to JSON values and back, as they are kept in trial attributes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from scalesearch.core.budget import measured_cost
from scalesearch.core.curve import CurvePoint
from scalesearch.core.noise_scale import GradientNoise
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Cost, Measurement, Outcome, Reached, TrialResult

WHY = "why"  # user attribute of a trial: what the search runs it for

PARAMETERS = TypeAdapter(Parameters)
CURVE = TypeAdapter(dict[int, CurvePoint])
_REACHED: TypeAdapter[Reached | None] = TypeAdapter(Reached | None)
_COST = TypeAdapter(Cost)

_NOISE: TypeAdapter[GradientNoise | None] = TypeAdapter(GradientNoise | None)

_COLUMNS = ("step", "examples", "train_seconds", "elapsed_seconds", "train_loss")


def measurements_to_json(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """Columns, which take a third of the room of a list of objects; non-finite numbers become null or strings."""
    metrics = measurements[0].metrics if measurements else {}
    noise = [_NOISE.dump_python(m.noise, mode="json") for m in measurements]
    return {
        **{name: [_to_json(getattr(m, name)) for m in measurements] for name in _COLUMNS},
        "metrics": {name: [_to_json(m.metrics[name]) for m in measurements] for name in metrics},
        **({"noise": noise} if any(noise) else {}),
    }


def measurements_from_json(columns: Mapping[str, Any]) -> tuple[Measurement, ...]:
    """The inverse of `measurements_to_json`."""
    noise = columns.get("noise") or [None] * len(columns["step"])
    return tuple(
        Measurement(
            step=step,
            examples=columns["examples"][i],
            train_seconds=_from_json(columns["train_seconds"][i]),
            elapsed_seconds=_from_json(columns["elapsed_seconds"][i]),
            train_loss=_from_json(columns["train_loss"][i]),
            metrics={name: _from_json(values[i]) for name, values in columns["metrics"].items()},
            noise=_NOISE.validate_python(noise[i]),
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
        "first_reached": _REACHED.dump_python(result.first_reached, mode="json"),
        "test_metrics": {name: _to_json(value) for name, value in result.test_metrics.items()},
        "seconds": result.seconds,
        "ruled_out_steps": result.ruled_out_steps,
        "shared_steps": result.shared_steps,
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
        # Until there was a choice of rules, every trial went by the paper's, and ended there.
        first_reached=_REACHED.validate_python(result.get("first_reached", result["reached"])),
        measurements=measurements_from_json(attributes["measurements"]),
        test_metrics={name: _from_json(value) for name, value in result["test_metrics"].items()},
        is_baseline=attributes.get("is_baseline", False),
        why=attributes.get(WHY, ""),
        seconds=result["seconds"],
        ruled_out_steps=result["ruled_out_steps"],
        shared_steps=result.get("shared_steps", 0),
    )


def interrupted_from_json(number: int, attributes: Mapping[str, Any], *, replicas: int) -> TrialResult:
    """A trial whose driver was killed, by the same attributes but its result: with what it is known to have cost."""
    measurements = measurements_from_json(attributes["measurements"]) if "measurements" in attributes else ()
    shared_steps = attributes.get("shared_steps", 0) if measurements else 0
    return TrialResult(
        number=number,
        parameters=PARAMETERS.validate_python(attributes["parameters"]),
        seed=attributes["seed"],
        outcome=Outcome.INTERRUPTED,
        reason="its driver was killed",
        cost=measured_cost(measurements, shared_steps=shared_steps, replicas=replicas),
        reached=None,
        measurements=measurements,
        is_baseline=attributes.get("is_baseline", False),
        why=attributes.get(WHY, ""),
        shared_steps=shared_steps,
    )


def _to_json(value: float) -> float | str:
    # JSON has no NaN or infinity, and PostgreSQL's JSON types refuse Python's spelling of them.
    return value if math.isfinite(value) else str(value)


def _from_json(value: float | str) -> float:
    return float(value)
