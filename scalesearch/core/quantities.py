"""Amounts with a unit, as people write them: "20 epochs", "5e6 examples", "50 %", "2h", "30m", "4 GiB"."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

from scalesearch.core.budget import Budget

ExampleUnit = Literal["examples", "epochs", "%"]

_DECIMAL = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
_NUMBER = rf"({_DECIMAL}(?:e[+-]?[0-9]+)?)"
_AMOUNT = re.compile(rf"\s*{_NUMBER}\s*(examples?|epochs?|%)\s*", re.IGNORECASE)
_DURATION = re.compile(rf"\s*(?:({_DECIMAL})\s*h)?\s*(?:({_DECIMAL})\s*m)?\s*(?:({_DECIMAL})\s*s)?\s*", re.IGNORECASE)
_BYTES = re.compile(rf"\s*{_NUMBER}\s*([kMGT]?)(i?)B\s*", re.IGNORECASE)
_LIMIT = re.compile(rf"\s*{_NUMBER}\s*(ex|ep|trials?)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Amount:
    """A number of training examples, before the size of the data set is known. `%` is of a full-length trial."""

    value: float
    unit: ExampleUnit

    def examples(self, *, train_examples: int, max_examples: int | None = None) -> int:
        """The amount in examples, at least 1."""
        if self.unit == "%":
            if max_examples is None:
                raise ValueError("a percentage needs a full length to refer to")
            return max(1, round(self.value / 100.0 * max_examples))
        scale = train_examples if self.unit == "epochs" else 1
        return max(1, round(self.value * scale))

    def __str__(self) -> str:
        value = int(self.value) if self.value.is_integer() else self.value
        return f"{value} {self.unit}"


def parse_amount(value: Any) -> Amount:
    """`20 epochs`, `5e6 examples`, `50 %`; a bare number is examples."""
    if isinstance(value, Amount):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf:
        return Amount(float(value), "examples")
    if isinstance(value, str) and (match := _AMOUNT.fullmatch(value)) and 0 < float(match[1]) < math.inf:
        unit = match[2].lower().rstrip("s") if match[2] != "%" else "%"
        units: dict[str, ExampleUnit] = {"example": "examples", "epoch": "epochs", "%": "%"}
        return Amount(float(match[1]), units[unit])
    raise ValueError('expected a positive amount such as "20 epochs", "5e6 examples" or "50 %"')


def parse_seconds(value: Any) -> float:
    """`90s`, `30m`, `2h`, `1h30m`; a bare number is seconds."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and value.strip() and (match := _DURATION.fullmatch(value)):
        hours, minutes, seconds = (float(g or 0) for g in match.groups())
        return 3600 * hours + 60 * minutes + seconds
    raise ValueError('expected a duration such as "90s", "30m", "2h" or "1h30m"')


def parse_bytes(value: Any) -> int:
    """`4 GiB`, `500 MB`; a bare number is bytes."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return int(value)
    if isinstance(value, str) and (match := _BYTES.fullmatch(value)) and math.isfinite(float(match[1])):
        power = " KMGT".index(match[2].upper() or " ")
        return int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    raise ValueError('expected a size such as "4 GiB" or "500 MB"')


def parse_budget(text: str) -> Budget:
    """`10m`, `2h`, `5e6ex`, `40ep`, `25trials`, `device:2h`, or several separated by commas.

    A duration bounds the wall clock; `device:` before it, the time on devices with each replica counted.
    """
    limits: dict[str, float] = {}
    for part in text.split(","):
        unit, limit = _parse_limit(part)
        if unit in limits:
            raise ValueError(f"{part.strip()!r} is a second limit of one unit in {text!r}: give each unit once")
        limits[unit] = limit
    if not all(0 < v < math.inf for v in limits.values()):
        raise ValueError(f"a budget must be positive and finite, but got {text!r}")
    if "trials" in limits and limits["trials"] != int(limits["trials"]):
        raise ValueError(f"a number of trials must be whole, but got {limits['trials']:g}")
    trials = int(limits.pop("trials")) if "trials" in limits else None
    return Budget(**limits, trials=trials)


def _parse_limit(text: str) -> tuple[str, float]:
    """The unit, as a `Budget` calls it, and the limit."""
    if match := _LIMIT.fullmatch(text):
        return {"ex": "examples", "ep": "epochs"}.get(match[2].lower(), "trials"), float(match[1])
    unit, duration = "wall_clock_seconds", text
    if text.strip().lower().startswith("device:"):
        unit, duration = "device_seconds", text.split(":", 1)[1]
    try:
        return unit, parse_seconds(duration)
    except ValueError:
        raise ValueError(
            f"{text.strip()!r} is not a budget: expected e.g. 30m, 2h, 5e6ex, 40ep, 25trials or device:2h"
        ) from None
