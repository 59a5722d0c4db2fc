"""What a retune established beside its recommendation: how the usual rules fared, and whether quality is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Objective, TrialResult
from scalesearch.core.rule_outcomes import RuleOutcome, rule_outcomes
from scalesearch.report.rules import quality_lines, rule_lines, rules_json
from scalesearch.search.storage import StudyStore
from scalesearch.study.retuning import RULES, quality_of


@dataclass(frozen=True, kw_only=True)
class RetuneSummary:
    """`quality` are the metrics at the target of the old configuration and of the recommended one, run by run."""

    source: str
    objective: Objective
    outcomes: Sequence[RuleOutcome]
    told: Sequence[str]
    quality: tuple[Mapping[str, Sequence[float]], Mapping[str, Sequence[float]]]

    @staticmethod
    def of(
        store: StudyStore,
        results: Sequence[TrialResult],
        objective: Objective,
        *,
        recommended: Parameters | None,
        step_seconds: Callable[[int], float] | None,
    ) -> RetuneSummary | None:
        """None if the study is no retune."""
        kept = store.attribute("retune")
        if kept is None:
            return None
        rules = RULES.validate_python(kept["rules"])
        return RetuneSummary(
            source=kept["from"],
            objective=objective,
            outcomes=rule_outcomes(
                rules,
                store.attribute("expected_costs_of_rules") or [None] * len(rules),
                results,
                objective,
                recommended=recommended,
                step_seconds=step_seconds,
            ),
            told=kept["told"],
            quality=(kept["quality"], quality_of(results, recommended, objective) if recommended else {}),
        )

    def lines(self) -> Iterator[str]:
        """It in words."""
        yield f"The usual rules, from {self.source}:"
        for line in rule_lines(self.outcomes, self.objective.minimize):
            yield f"  {line}"
        qualities = list(quality_lines(*self.quality))
        if qualities:
            yield "Quality at the target, recommended against old:"
            for line in qualities:
                yield f"  {line}"
        for sentence in self.told:
            yield f"Taken over: {sentence}"

    def as_json(self) -> dict[str, Any]:
        """What `--json` has beside what it has of any study."""
        old, new = self.quality
        return {
            "from": self.source,
            "rules": rules_json(self.outcomes),
            "quality": {name: {"old": list(old.get(name, ())), "new": list(values)} for name, values in new.items()},
            "told": list(self.told),
        }
