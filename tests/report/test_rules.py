"""Rules in words and as JSON."""

from __future__ import annotations

import json
from typing import Any

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Outcome
from scalesearch.core.rule_outcomes import NOT_RUN, RuleOutcome
from scalesearch.core.schedule import Constant
from scalesearch.report.rules import quality_lines, rule_lines, rules_json

PARAMETERS = Parameters(global_batch_size=256, schedule=Constant(learning_rate=0.4))


def fate(**fields: Any) -> str:
    complete = {
        "rule": "linear",
        "boundaries_in": "steps",
        "parameters": PARAMETERS,
        "outcome": Outcome.REACHED,
        "runs": 1,
    }
    [line] = rule_lines([RuleOutcome(**(complete | fields))], "seconds")
    before, _, after = line.partition(": ")
    assert before == "linear, boundaries in steps (global batch 256, learning rate 0.4)"
    return after


def test_what_became_of_a_rule() -> None:
    assert fate(cost=13.4, relative_cost=1.34) == "1.34 × slower, 13 s (1 run)"
    assert fate(cost=13.4, relative_cost=1.0, is_recommended=True, runs=2) == "recommended, 13 s (2 runs)"
    assert fate(cost=9.0, relative_cost=0.9).startswith("0.90 × the time, but not as sure")
    missed = fate(outcome=Outcome.CAPPED, spent=15.0)
    assert missed == "target not reached: stopped, as it could no longer win, after 15 s (1 run)"
    assert fate(outcome=Outcome.DIVERGED) == "target not reached: diverged (1 run)"
    assert fate(outcome=NOT_RUN, runs=0, expected_cost=20.0) == "not run; expected 20 s"
    assert fate(outcome=NOT_RUN, runs=0) == "not run; not expected to get there"
    begun = fate(outcome=NOT_RUN, runs=0, spent=15.0, expected_cost=20.0)
    assert begun == "begun, and broken off after 15 s; expected 20 s"


def test_quality_is_compared_where_it_is_known() -> None:
    lines = list(
        quality_lines({"test/error": [0.1, 0.2]}, {"test/error": [0.16], "test/loss": [1.0], "val/error": [0.3]})
    )
    assert lines == [
        "test/error 0.16 (1 run) against 0.15 before (2 runs)",
        "val/error 0.3 (1 run); of the old configuration it is not known",
    ]


def test_json() -> None:
    reached = RuleOutcome(
        rule="keep",
        boundaries_in="examples",
        parameters=PARAMETERS,
        outcome=Outcome.REACHED,
        runs=2,
        cost=3.0,
        seconds_to_target=3.0,
        relative_cost=1.5,
    )
    nothing = RuleOutcome(rule="model", boundaries_in=None, parameters=None, outcome=NOT_RUN)
    first, last = json.loads(json.dumps(rules_json([reached, nothing])))
    assert {k: first[k] for k in ("rule", "outcome", "seconds_to_target", "relative_cost")} == {
        "rule": "keep",
        "outcome": "REACHED",
        "seconds_to_target": 3.0,
        "relative_cost": 1.5,
    }
    assert (last["outcome"], last["global_batch_size"]) == ("NOT_RUN", None)
