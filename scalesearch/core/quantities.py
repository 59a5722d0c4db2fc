"""Amounts with a unit, as people write them: "20 epochs", "5e6 examples", "50 %", "2h", "30m"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from scalesearch.core.budget import Budget

ExampleUnit = Literal["examples", "epochs", "%"]

_AMOUNT = re.compile(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*(examples?|epochs?|%)\s*", re.IGNORECASE)
_DURATION = re.compile(r"\s*(?:([0-9.]+)\s*h)?\s*(?:([0-9.]+)\s*m)?\s*(?:([0-9.]+)\s*s)?\s*", re.IGNORECASE)
_LIMIT = re.compile(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*(ex|ep|trials?)\s*", re.IGNORECASE)


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
        return f"{self.value:g} {self.unit}"


def parse_amount(value: Any) -> Amount:
    """`20 epochs`, `5e6 examples`, `50 %`; a bare number is examples."""
    if isinstance(value, Amount):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
        return Amount(float(value), "examples")
    if isinstance(value, str) and (match := _AMOUNT.fullmatch(value)) and float(match[1]) > 0:
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


def parse_budget(text: str) -> Budget:
    """`10m`, `2h`, `5e6ex`, `40ep`, `25trials`, `device:2h`, or several separated by commas.

    A duration bounds the wall clock; `device:` before it, the time on devices with each replica counted.
    """
    limits: dict[str, float] = {}
    for part in text.split(","):
        if part.strip().lower().startswith("device:"):
            limits["device_seconds"] = parse_seconds(part.split(":", 1)[1])
        elif match := _LIMIT.fullmatch(part):
            unit = {"ex": "examples", "ep": "epochs"}.get(match[2].lower(), "trials")
            limits[unit] = float(match[1])
        else:
            try:
                limits["wall_clock_seconds"] = parse_seconds(part)
            except ValueError:
                raise ValueError(
                    f"{part.strip()!r} is not a budget: expected e.g. 30m, 2h, 5e6ex, 40ep, 25trials or device:2h"
                ) from None
    if any(v <= 0 for v in limits.values()):
        raise ValueError(f"a budget must be positive, but got {text!r}")
    if "trials" in limits and limits["trials"] != int(limits["trials"]):
        raise ValueError(f"a number of trials must be whole, but got {limits['trials']:g}")
    trials = int(limits.pop("trials")) if "trials" in limits else None
    return Budget(**limits, trials=trials)
