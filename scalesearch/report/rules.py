"""How the usual rules fared in a retune, and whether quality is kept: in words and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scalesearch.core.results import Goal, Outcome
from scalesearch.core.rule_outcomes import NOT_RUN, RuleOutcome
from scalesearch.report import words


def rule_lines(outcomes: Sequence[RuleOutcome], goal: Goal) -> Iterator[str]:
    """One line for each rule: `linear: 1.34 × slower`."""
    for o in outcomes:
        name = o.rule if o.boundaries_in is None or o.rule == "keep" else f"{o.rule}, boundaries in {o.boundaries_in}"
        if o.parameters is not None:
            p = o.parameters
            name += f" (global batch {p.global_batch_size:,}, learning rate {p.learning_rate:.4g})"
        yield f"{name}: {_fate(o, goal)}"


def _fate(o: RuleOutcome, goal: Goal) -> str:
    runs = f"{o.runs} run{'s' if o.runs != 1 else ''}"
    if o.outcome == NOT_RUN:
        expected = (
            f"expected {words.cost(o.expected_cost, goal)}"
            if o.expected_cost is not None
            else "not expected to get there"
        )
        fate = f"begun, and broken off after {words.cost(o.spent, goal)}" if o.spent else "not run"
        return f"{fate}; {expected}" if o.parameters is not None else "no trial of its own"
    if o.cost is None:
        return (
            f"target not reached: {_MISSES[Outcome(o.outcome)]}"
            + (f" after {words.cost(o.spent, goal)}" if o.spent else "")
            + f" ({runs})"
        )
    if o.is_recommended:
        return f"recommended, {words.cost(o.cost, goal)} ({runs})"
    assert o.relative_cost is not None
    compared = (
        f"{words.ratio(o.relative_cost)} slower" if goal == "seconds" else f"{words.ratio(o.relative_cost)} the {goal}"
    )
    if o.relative_cost < 1.0:
        compared = f"{words.ratio(o.relative_cost)} the {'time' if goal == 'seconds' else goal}, but not as sure"
    return f"{compared}, {words.cost(o.cost, goal)} ({runs})"


_MISSES: Mapping[Outcome, str] = {
    Outcome.CAPPED: "stopped, as it could no longer win,",
    Outcome.EXHAUSTED: "not within its full length,",
    Outcome.DIVERGED: "diverged",
    Outcome.OUT_OF_MEMORY: "does not fit in memory",
}


def quality_lines(old: Mapping[str, Sequence[float]], new: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Each metric of the recommendation at the target against that of the old configuration."""
    for name, values in new.items():
        if name == "test/loss":
            continue
        here = f"{name} {statistics.fmean(values):.4g} ({len(values)} run{'s' if len(values) != 1 else ''})"
        before = old.get(name)
        if not before:
            yield f"{here}; of the old configuration it is not known"
            continue
        yield f"{here} against {statistics.fmean(before):.4g} before ({len(before)} run{'s' if len(before) != 1 else ''})"


def rules_json(outcomes: Sequence[RuleOutcome]) -> list[dict[str, Any]]:
    """The rules of `--json`."""
    return [
        {
            "rule": o.rule,
            "boundaries_in": o.boundaries_in,
            "outcome": str(o.outcome),
            "seconds_to_target": o.seconds_to_target,
            "relative_cost": o.relative_cost,
            "cost": o.cost,
            "expected_cost": o.expected_cost,
            "runs": o.runs,
            "is_recommended": o.is_recommended,
            "global_batch_size": o.parameters.global_batch_size if o.parameters else None,
            "learning_rate": o.parameters.learning_rate if o.parameters else None,
            "decay_boundaries_examples": list(o.parameters.schedule.boundaries) if o.parameters else None,
        }
        for o in outcomes
    ]
