"""The usual rules by which a configuration is moved to other hardware."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from scalesearch.core.curve_standing import scaled
from scalesearch.core.parameters import Parameters

RuleName = Literal["keep", "linear", "sqrt"]
Unit = Literal["examples", "steps"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule and what it makes of the present configuration; its decay boundaries are kept in `boundaries_in`.

    `keep` leaves everything as it is, the global batch size too. `linear` and `sqrt` keep the batch per replica, so that
    the global batch grows with the replicas, and multiply the learning rate by that growth or by its square root.
    """

    name: RuleName
    boundaries_in: Unit
    parameters: Parameters


def scaling_rules(present: Parameters, *, growth: float, divisor: int) -> tuple[Rule, ...]:
    """What the rules make of `present` on hardware with `growth` times as many replicas.

    Global batch sizes are the nearest ones that `divisor` (replicas × accumulation) divides. Without decay boundaries,
    and for `keep`, both units are the same, and without growth all rules are.
    """
    size = present.global_batch_size
    kept, grown = _nearest(size, divisor), _nearest(size * growth, divisor)
    rules = [Rule(name="keep", boundaries_in="examples", parameters=scaled(present, kept, rate=1.0, examples=1.0))]
    ratio = grown / size
    for name, rate in (("linear", ratio), ("sqrt", math.sqrt(ratio))):
        for unit, examples in (("examples", 1.0), ("steps", ratio)):
            if unit == "examples" or present.schedule.boundaries:
                parameters = scaled(present, grown, rate=rate, examples=examples)
                rules.append(Rule(name=name, boundaries_in=unit, parameters=parameters))  # type: ignore[arg-type]
    return tuple(rules)


def _nearest(size: float, divisor: int) -> int:
    return max(round(size / divisor), 1) * divisor
