"""From the results of a study to what it establishes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from scalesearch.core.curve import CurvePoint, ScalingCurve, fit_scaling_curve
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Objective, Outcome, Reached, TrialResult


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A parameter point with the trials that ran it; `best` is the one that stands for it.

    `cost` is what the study minimises, in the unit of its goal; None if the target was not reached. `runs` are the
    trials that came to an end of their own, neither interrupted nor crashed, of which `missed` did not get there.
    """

    best: TrialResult
    cost: float | None
    runs: int
    missed: int = 0
    interval: tuple[float, float] | None = None
    """90 % interval of the mean cost, from the runs that got there (geometric mean, Student's t); None below two."""

    @property
    def parameters(self) -> Parameters:
        return self.best.parameters


@dataclass(frozen=True, kw_only=True)
class BatchSizeSummary:
    """All trials at one global batch size; steps, examples and seconds are to target, None if never reached.

    They are those of the best trial or, in a study of the whole curve, what is expected of `leader`, with the 90 %
    `interval` of its steps. `steps_to_first_crossing` are those of the paper's rule, whatever the study's is.
    `most_examples` is the longest that a trial was trained.
    """

    global_batch_size: int
    trials: int
    reached: int
    steps_to_target: float | None
    examples_to_target: float | None
    seconds_to_target: float | None
    steps_to_first_crossing: float | None
    best: TrialResult | None
    most_examples: int = 0
    out_of_memory: bool = False
    leader: Candidate | None = None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a study has established so far. `closest` is the trial that came nearest to the target.

    `of_curve`: whether the aim is the whole curve, so that `batch_sizes` holds every size of the space. `profiled`: whether
    seconds to target, here and in `results`, are steps times the profiled seconds of a step, which is what the search
    compares.
    """

    objective: Objective
    recommendation: Candidate | None
    baseline: Candidate | None
    batch_sizes: tuple[BatchSizeSummary, ...]
    curve: ScalingCurve | None
    outcomes: Mapping[Outcome, int]
    closest: TrialResult | None
    caveats: tuple[str, ...]
    edges: tuple[str, ...] = ()
    of_curve: bool = False
    profiled: bool = False
    results: tuple[TrialResult, ...] = ()


MUCH_FASTER = 0.85  # of the recommendation's cost: a single run below it needs a word


def best_value(result: TrialResult, objective: Objective) -> float | None:
    """The best value of the objective's metric that the trial measured, or None without a finite one."""
    values = [m.metrics[objective.metric] for m in result.measurements]
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return None
    return min(finite) if objective.direction == "minimize" else max(finite)


def cost(result: TrialResult, objective: Objective) -> float | None:
    """What the study minimises (or, for a metric, optimises), or None if the trial did not get there."""
    if objective.minimize == "metric":
        if result.outcome is not Outcome.EXHAUSTED:
            return None
        return result.measurements[-1].metrics[objective.metric]
    return result.reached.cost(objective.minimize) if result.reached else None


def findings(
    results: Sequence[TrialResult],
    objective: Objective,
    *,
    leader: Parameters | None = None,
    curve_sizes: Sequence[int] = (),
    points: Mapping[int, CurvePoint] | None = None,
    edges: Sequence[str] = (),
    step_seconds: Callable[[int], float] | None = None,
    recommends_accumulated: bool = True,
) -> Findings:
    """Sum up the finished trials of a study.

    Args:
        results: its finished trials.
        objective: what it minimises.
        leader: the parameters that the search believes in: they are recommended, by their run of median cost (of two in
            the middle, the dearer one), rather than the single best run.
        curve_sizes: the global batch sizes at which a study of the whole curve measures it.
        points: what that study believes of those that have reached the target.
        edges: what the edge rule says of the recommendation, in sentences.
        step_seconds: the profiled seconds per step at a global batch size; without them, runs count by what they took.
        recommends_accumulated: whether batches in several micro-batches may be recommended.
    """
    profiled = step_seconds is not None and objective.minimize == "seconds"
    if step_seconds is not None and profiled:
        results = [in_profiled_seconds(r, step_seconds) for r in results]
    ranked = sorted(_with_cost(results, objective), key=lambda rc: _ascending(rc[1], objective))
    may_be = [r for r, _ in ranked if recommends_accumulated or r.parameters.accumulation == 1]
    led = [r for r in may_be if r.parameters == leader] or may_be[:1]
    recommendation = _candidate(led[len(led) // 2], results, objective) if led else None
    batch_sizes = _batch_sizes(results, objective, curve_sizes, points or {})
    steps = {b.global_batch_size: b.steps_to_target for b in batch_sizes if b.steps_to_target is not None}
    curve = fit_scaling_curve(steps)
    # An interrupted baseline is run again: the one that got furthest stands for it.
    baselines = sorted((r for r in results if r.is_baseline), key=lambda r: (r.reached is None, -len(r.measurements)))
    return Findings(
        objective=objective,
        recommendation=recommendation,
        baseline=_candidate(_typical(baselines[0], ranked), results, objective) if baselines else None,
        batch_sizes=batch_sizes,
        curve=curve,
        outcomes=Counter(r.outcome for r in results),
        closest=_closest(results, objective),
        caveats=(
            *_only_measured(() if recommends_accumulated else [r for r, _ in ranked]),
            *_caveats(recommendation, ranked, batch_sizes, curve, bool(curve_sizes)),
        ),
        of_curve=bool(curve_sizes),
        profiled=profiled,
        results=tuple(results),
        edges=tuple(edges) if recommendation else (),
    )


def in_profiled_seconds(result: TrialResult, step_seconds: Callable[[int], float]) -> TrialResult:
    """As if every step had taken what the profile says: a machine that was busy for a while does not change the ranking."""
    per_step = step_seconds(result.parameters.global_batch_size)

    def profiled(reached: Reached | None) -> Reached | None:
        return replace(reached, seconds=reached.steps * per_step) if reached is not None else None

    return replace(result, reached=profiled(result.reached), first_reached=profiled(result.first_reached))


def _with_cost(results: Iterable[TrialResult], objective: Objective) -> list[tuple[TrialResult, float]]:
    return [(r, c) for r in results if (c := cost(r, objective)) is not None]


def _ascending(value: float, objective: Objective) -> float:
    maximized = objective.minimize == "metric" and objective.direction == "maximize"
    return -value if maximized else value


def _candidate(result: TrialResult, results: Sequence[TrialResult], objective: Objective) -> Candidate:
    same = [r for r in results if r.parameters == result.parameters]
    cut_short = (Outcome.INTERRUPTED, Outcome.CRASHED)
    runs = sum(r.outcome not in cut_short for r in same)
    costs = [c for _, c in _with_cost(same, objective)]
    return Candidate(
        best=result,
        cost=cost(result, objective),
        runs=runs,
        missed=runs - len(costs),
        interval=_interval(costs) if objective.minimize != "metric" else None,
    )


def _interval(costs: Sequence[float]) -> tuple[float, float] | None:
    if len(costs) < 2 or min(costs) <= 0:
        return None
    logs = np.log(costs)
    half = stats.t.ppf(0.95, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
    return float(np.exp(logs.mean() - half)), float(np.exp(logs.mean() + half))


def _typical(baseline: TrialResult, ranked: Sequence[tuple[TrialResult, float]]) -> TrialResult:
    """The median of all runs of the baseline's parameters; of two in the middle the cheaper one, so as not to flatter us."""
    same = [r for r, _ in ranked if r.parameters == baseline.parameters]
    return same[(len(same) - 1) // 2] if same else baseline


def _batch_sizes(
    results: Sequence[TrialResult], objective: Objective, sizes: Sequence[int], points: Mapping[int, CurvePoint]
) -> tuple[BatchSizeSummary, ...]:
    tried = {r.parameters.global_batch_size for r in results}
    return tuple(_at_batch_size(size, results, objective, points.get(size)) for size in sorted({*tried, *sizes}))


def _at_batch_size(
    size: int, results: Sequence[TrialResult], objective: Objective, point: CurvePoint | None
) -> BatchSizeSummary:
    here = [r for r in results if r.parameters.global_batch_size == size]
    reached = [r.reached for r in here if r.reached is not None]
    crossed = [r.first_reached for r in here if r.first_reached is not None]
    best = min(_with_cost(here, objective), key=lambda rc: _ascending(rc[1], objective), default=None)
    summary = BatchSizeSummary(
        global_batch_size=size,
        trials=len(here),
        reached=len(reached),
        steps_to_target=min((r.steps for r in reached), default=None),
        examples_to_target=min((r.examples for r in reached), default=None),
        seconds_to_target=min((r.seconds for r in reached), default=None),
        steps_to_first_crossing=min((r.steps for r in crossed), default=None),
        best=best[0] if best else None,
        most_examples=max((r.examples for r in here), default=0),
        out_of_memory=any(r.outcome is Outcome.OUT_OF_MEMORY for r in here),
    )
    led = sorted((r for r in here if point and r.reached and r.parameters == point.parameters), key=_steps)
    if point is None or not led:
        return summary
    typical = led[len(led) // 2]
    seconds_per_step = typical.reached.seconds / typical.reached.steps if typical.reached else math.nan
    return replace(
        summary,
        steps_to_target=point.steps,
        examples_to_target=point.steps * size,
        seconds_to_target=point.steps * seconds_per_step,
        leader=_candidate(typical, here, objective),
        interval=point.interval,
    )


def _steps(result: TrialResult) -> float:
    return result.reached.steps if result.reached else math.inf


def _closest(results: Sequence[TrialResult], objective: Objective) -> TrialResult | None:
    measured = [(r, v) for r in results if (v := best_value(r, objective)) is not None]
    if not measured:
        return None
    sign = 1.0 if objective.direction == "minimize" else -1.0
    return min(measured, key=lambda rv: sign * rv[1])[0]


def _only_measured(ranked: Sequence[TrialResult]) -> Iterable[str]:
    sizes = sorted({r.parameters.global_batch_size for r in ranked if r.parameters.accumulation > 1})
    if sizes:
        yield (
            f"whether to use global batch {', '.join(map(str, sizes))}: measured in micro-batches, as it does not fit at once, "
            'and not recommended (`run.accumulation = "measure"`)'
        )


def _caveats(
    recommendation: Candidate | None,
    ranked: Sequence[tuple[TrialResult, float]],
    batch_sizes: Sequence[BatchSizeSummary],
    curve: ScalingCurve | None,
    of_curve: bool,
) -> Iterable[str]:
    if recommendation is None:
        return
    fastest, least = ranked[0]
    if fastest.parameters != recommendation.parameters and least < MUCH_FASTER * (recommendation.cost or 0.0):
        yield (
            f"trial {fastest.number} (global batch {fastest.parameters.global_batch_size:,}) was faster, "
            f"at {least / (recommendation.cost or 1.0):.0%} of the cost, but settings like it missed the target or took "
            "longer, so it is taken for luck"
        )
    if recommendation.runs == 1:
        yield "the recommendation was run once: a single best run is partly luck, so expect somewhat more"
    if recommendation.missed:
        yield (
            f"{recommendation.missed} of {recommendation.runs} runs of the recommendation did not reach the target "
            "within what the search gave them"
        )
    once = [b for b in batch_sizes if (b.leader.runs if b.leader else b.trials) == 1]
    if once:
        yield "run only once: global batch " + ", ".join(str(b.global_batch_size) for b in once)
    unreached = [b for b in batch_sizes if of_curve and not b.reached]
    if unreached:
        yield "the target was not reached at global batch " + ", ".join(str(b.global_batch_size) for b in unreached)
    if curve is not None and not any(b.leader for b in batch_sizes):
        yield (
            "S(B) is fitted to the best trials found so far, which are upper bounds: "
            "batch sizes with few trials look worse than they are"
        )
