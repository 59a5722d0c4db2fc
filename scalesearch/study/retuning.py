"""What a retune takes over from a study, or from a configuration alone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Objective, Outcome, TrialResult, crossing
from scalesearch.core.retune import WarmStart
from scalesearch.core.scaling_rules import Rule, scaling_rules
from scalesearch.core.space import SearchSpace
from scalesearch.definition import ResolvedStudy, StudyDefinition, resolve
from scalesearch.definition.schema import BaselineSection
from scalesearch.errors import StudyError
from scalesearch.study.past import PastStudy

ADAPTIVE = ("adam", "adamw")
RULES = TypeAdapter(tuple[Rule, ...])


@dataclass(frozen=True, kw_only=True)
class Present:
    """The configuration that is moved, on how many replicas it runs, and where it is known from.

    `study` is the study that found it, if any. `quality` are the metrics of its runs at the target: {name: values}.
    Without `parameters`, they are those of `config`, once it is known how long an epoch is.
    """

    replicas: int
    source: str
    parameters: Parameters | None = None
    config: BaselineSection | None = None
    study: PastStudy | None = None
    quality: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @staticmethod
    def of(study: PastStudy) -> Present:
        """What a study recommends."""
        return Present(
            parameters=study.leader,
            replicas=study.resolved.replicas,
            source=f"study {study.name}",
            study=study,
            quality=quality_of(study.results, study.leader, study.resolved.objective),
        )


@dataclass(frozen=True, kw_only=True)
class Retuning:
    """A retune made concrete for its machine. `told` is what the user should know of what is taken over, in sentences."""

    present: Present
    resolved: ResolvedStudy
    warm_start: WarmStart
    told: tuple[str, ...] = ()

    def within(self, space: SearchSpace) -> Retuning:
        """The same in a space, in as many micro-batches as that has."""
        start = self.warm_start
        rules = tuple(replace(rule, parameters=space.accumulated(rule.parameters)) for rule in start.rules)
        old = tuple(replace(result, parameters=space.accumulated(result.parameters)) for result in start.old)
        return replace(
            self,
            resolved=replace(self.resolved, space=space),
            warm_start=replace(start, rules=rules, old=old),
        )

    def as_json(self) -> dict[str, Any]:
        """What a report of it needs."""
        return {
            "from": self.present.source,
            "from_replicas": self.present.replicas,
            "rules": RULES.dump_python(self.warm_start.rules, mode="json"),
            "quality": {name: list(values) for name, values in self.present.quality.items()},
            "told": list(self.told),
        }


def retuning(present: Present, definition: StudyDefinition, resolved: ResolvedStudy) -> Retuning:
    """Fit what is known to the present definition, on `resolved.replicas` replicas.

    Raises StudyError if there is no target.
    """
    study, objective = present.study, resolved.objective
    if objective.minimize == "metric":
        raise StudyError('a retune needs a target: `objective.minimize = "metric"` has none')
    if objective.target is None and study is not None:
        objective = replace(objective, target=study.resolved.objective.target)
    if objective.target is None:
        raise StudyError(
            '`objective.target = "baseline"` is not known yet: give a number as target, or a study as --from'
        )
    parameters = present.parameters or _of_config(present.config, definition, resolved)
    growth = resolved.replicas / present.replicas
    rules = scaling_rules(parameters, growth=growth, divisor=resolved.space.batch_sizes.divisor)
    old: tuple[TrialResult, ...]
    told, old, forgets = _of_sizes(parameters, rules), (), False
    if study is not None:
        old, forgets, more = _taken_over(study, definition, resolved, objective)
        told += more
    found = Retuning(
        present=present,
        # The old configuration is one of the rules: no baseline is run before anything else.
        resolved=replace(resolved, objective=objective, baseline=None, target_from_baseline=False),
        warm_start=WarmStart(
            rules=rules, old=old, forgets_old=forgets, adaptive=definition.workload.optimizer in ADAPTIVE
        ),
        told=tuple(told),
    )
    return found.within(resolved.space)


def check_same_workload(study: PastStudy, definition: StudyDefinition) -> None:
    """Raise StudyError if a study is of another workload than a definition."""
    if study.workload != definition.workload.name:
        raise StudyError(
            f"study {study.name} is of {study.workload}, the definition of {definition.workload.name}: neither steps to "
            "target nor learning rates carry over. Give a study of this workload as --from, or your present settings as "
            "--from-config"
        )


def quality_of(results: Sequence[TrialResult], parameters: Parameters, objective: Objective) -> dict[str, list[float]]:
    """The objective's and the test metrics of all runs of `parameters` that reached the target, where they ended."""
    quality: dict[str, list[float]] = {}
    for result in results:
        if result.parameters == parameters and result.reached is not None:
            value = statistics.median(m.metrics[objective.metric] for m in result.measurements[-3:])
            metrics = {objective.metric: value, **result.test_metrics}
            for name, metric in metrics.items():
                quality.setdefault(name, []).append(metric)
    return quality


def _of_config(config: BaselineSection | None, definition: StudyDefinition, resolved: ResolvedStudy) -> Parameters:
    """In examples, as if on one replica."""
    assert config is not None
    run = definition.run.model_copy(update={"accumulation": 1})
    alone = definition.model_copy(update={"baseline": config, "run": run})
    metric, direction = resolved.objective.metric, resolved.objective.direction
    found = resolve(
        alone,
        replicas=1,
        train_examples=resolved.train_examples,
        metrics=[metric],
        maximize=[metric] if direction == "maximize" else [],
    )
    assert found.baseline is not None
    return found.baseline


def _of_sizes(present: Parameters, rules: Sequence[Rule]) -> list[str]:
    kept, size = rules[0].parameters.global_batch_size, present.global_batch_size
    return [f"a global batch of {size} cannot be shared equally here: {kept} stands for `keep`"] if kept != size else []


def _taken_over(
    study: PastStudy, definition: StudyDefinition, resolved: ResolvedStudy, objective: Objective
) -> tuple[tuple[TrialResult, ...], bool, list[str]]:
    """The old trials as the present objective reads them, whether they are only for the start, and why."""
    before = study.resolved.objective
    if (before.metric, before.direction) != (objective.metric, objective.direction):
        return (
            (),
            False,
            [f"metric: {before.metric} there, {objective.metric} here: only the old settings are taken over"],
        )
    old, told = study.results, list[str]()
    if (before.target, before.crossing) != (objective.target, objective.crossing):
        old = tuple(_read_again(r, objective) for r in old)
        hits = sum(r.reached is not None for r in old)
        told.append(
            f"target: {before.target:g} there, {objective.target:g} here: the old curves are read anew, and {hits} of "
            f"{len(old)} reach it"
        )
    changes = [f"{key}: {a!r} there, {b!r} here" for key, a, b in _workload_changes(study.definition, definition)]
    if study.resolved.train_examples != resolved.train_examples:
        changes.append(f"training examples: {study.resolved.train_examples:,} there, {resolved.train_examples:,} here")
    told += [f"{change}: the old curves count until a run here has reached the target" for change in changes]
    return old, bool(changes), told


def _workload_changes(then: StudyDefinition, now: StudyDefinition) -> list[tuple[str, Any, Any]]:
    a, b = then.fingerprint(), now.fingerprint()
    keys = sorted(k for k in {*a, *b} if k.startswith("workload.") and a.get(k) != b.get(k))
    return [(k, a.get(k), b.get(k)) for k in keys]


def _read_again(result: TrialResult, objective: Objective) -> TrialResult:
    """An old result as another target or rule reads it."""
    reached = crossing(result.measurements, objective) if result.outcome is not Outcome.DIVERGED else None
    if reached is not None:
        return replace(result, outcome=Outcome.REACHED, reached=reached)
    outcome = Outcome.CAPPED if result.outcome is Outcome.REACHED else result.outcome
    return replace(result, outcome=outcome, reached=None)
