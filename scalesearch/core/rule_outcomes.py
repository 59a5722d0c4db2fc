"""How the usual rules fared in a retune, against what is recommended."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from scalesearch.core.parameters import Parameters
from scalesearch.core.range_trials import is_range
from scalesearch.core.recommend import in_profiled_seconds
from scalesearch.core.results import Goal, Objective, Outcome, TrialResult
from scalesearch.core.scaling_rules import Rule, Unit

NOT_RUN: Final = "NOT_RUN"


@dataclass(frozen=True, kw_only=True)
class RuleOutcome:
    """What became of a rule, or of what the model proposed.

    `outcome` is REACHED if any run reached the target. `cost` is the median of those that did, in the unit of the goal,
    and `relative_cost` that over the recommendation's. Of a rule that was not run, `expected_cost` is the model's; of one
    that did not get there, `spent` is how far its longest run went, in the unit of the goal.
    """

    rule: Literal["keep", "linear", "sqrt", "model"]
    boundaries_in: Unit | None
    parameters: Parameters | None
    outcome: Outcome | Literal["NOT_RUN"]
    runs: int = 0
    cost: float | None = None
    seconds_to_target: float | None = None
    relative_cost: float | None = None
    expected_cost: float | None = None
    spent: float | None = None
    is_recommended: bool = False


NO_TRIAL_OF_ITS_OWN = RuleOutcome(rule="model", boundaries_in=None, parameters=None, outcome=NOT_RUN)


def rule_outcomes(
    rules: Sequence[Rule],
    expected_costs: Sequence[float | None],
    results: Sequence[TrialResult],
    objective: Objective,
    *,
    recommended: Parameters | None,
    step_seconds: Callable[[int], float] | None,
) -> list[RuleOutcome]:
    """One for each rule and one for the model: its best parameters that no rule gave.

    Args:
        rules, expected_costs: the rules, with what the model expects of each.
        results: all finished trials of the retune.
        objective: what is minimised.
        recommended: what the retune recommends.
        step_seconds: seconds per step at a global batch size, as costs are compared; None: what each run took.
    """
    if step_seconds is not None:
        results = [in_profiled_seconds(r, step_seconds) for r in results]
    results = [r for r in results if not is_range(r)]
    counted = [r for r in results if r.outcome not in (Outcome.INTERRUPTED, Outcome.CRASHED)]

    def median(parameters: Parameters | None, goal: Goal) -> float | None:
        values = [r.reached.cost(goal) for r in counted if r.parameters == parameters and r.reached]
        return statistics.median(values) if values else None

    best = median(recommended, objective.minimize)

    def outcome(
        name: Literal["keep", "linear", "sqrt", "model"], unit: Unit | None, p: Parameters, expected: float | None
    ) -> RuleOutcome:
        runs = [r for r in counted if r.parameters == p]
        begun = runs or [r for r in results if r.parameters == p]
        cost = median(p, objective.minimize)
        return RuleOutcome(
            rule=name,
            boundaries_in=unit,
            parameters=p,
            outcome=Outcome.REACHED if cost is not None else runs[-1].outcome if runs else NOT_RUN,
            runs=len(runs),
            cost=cost,
            seconds_to_target=median(p, "seconds"),
            relative_cost=cost / best if cost is not None and best is not None else None,
            expected_cost=expected if not runs else None,
            spent=max((_spent(r, objective, step_seconds) for r in begun), default=None) if cost is None else None,
            is_recommended=p == recommended,
        )

    found = [outcome(r.name, r.boundaries_in, r.parameters, e) for r, e in zip(rules, expected_costs, strict=True)]
    by_rule = {r.parameters for r in rules}
    own = [r for r in counted if r.parameters not in by_rule]
    hits = [r.parameters for r in own if r.reached]
    if hits:
        best_own = recommended if recommended in hits else min(hits, key=lambda p: median(p, objective.minimize) or 0.0)
        assert best_own is not None
        found.append(outcome("model", None, best_own, None))
    else:
        longest = max(own, key=lambda r: r.examples, default=None)
        found.append(outcome("model", None, longest.parameters, None) if longest else NO_TRIAL_OF_ITS_OWN)
    return found


def _spent(result: TrialResult, objective: Objective, step_seconds: Callable[[int], float] | None) -> float:
    """How far a run came, in the unit of the goal."""
    last = result.measurements[-1] if result.measurements else None
    if last is None:
        return 0.0
    size = result.parameters.global_batch_size
    seconds = last.step * step_seconds(size) if step_seconds else last.train_seconds
    return {"seconds": seconds, "steps": float(last.step), "examples": float(last.examples), "metric": 0.0}[
        objective.minimize
    ]
