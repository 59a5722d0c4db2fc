"""Findings as text for the terminal: the recommendation in words, the table per batch size, the code to paste."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table

from scalesearch.core.budget import Budget, Spent
from scalesearch.core.curve import ScalingCurve
from scalesearch.core.recommend import BatchSizeSummary, Candidate, Findings, best_value, cost
from scalesearch.core.results import OUTCOME_MEANING, Outcome
from scalesearch.report import words
from scalesearch.report.keras_code import keras_code
from scalesearch.report.noise_scale import measured_critical_batch_size, noise_scale_lines


def outcome_counts(outcomes: Mapping[Outcome, int]) -> str:
    """`9 reached, 11 capped, 3 diverged`, in the order of `Outcome`."""
    return ", ".join(f"{outcomes[o]} {o.value.lower().replace('_', ' ')}" for o in Outcome if outcomes.get(o))


def spending(budget: Budget, spent: Spent) -> str:
    """What of each limit is spent; without limits, what was spent."""
    shown: dict[str, tuple[Callable[[float], str], str]] = {
        "examples": (words.count, "examples"),
        "epochs": ("{:.4g}".format, "epochs"),
        "device_seconds": (words.duration, "device time"),
        "wall_clock_seconds": (words.duration, "wall clock"),
        "trials": ("{:.0f}".format, "trials"),
    }
    limits = budget.limits()
    asked = [
        f"{show(getattr(spent, unit))} of {show(limits[unit])} {name}"
        for unit, (show, name) in shown.items()
        if unit in limits
    ]
    others = [
        f"{show(getattr(spent, unit))} {name}"
        for unit, (show, name) in shown.items()
        if unit not in limits and unit != "epochs"
    ]
    return "; ".join([*asked, *others])


def print_findings(console: Console, findings: Findings, *, replicas: int, train_examples: int, optimizer: str) -> None:
    """The recommendation (or why there is none), then everything that supports it."""
    console.print()
    console.print(f"[bold]Recommendation for {replicas} replica{'s' if replicas != 1 else ''}[/bold]")
    for line in recommendation_lines(findings, replicas=replicas, train_examples=train_examples):
        console.print(f"  {escape(line)}", soft_wrap=not console.is_terminal)
    console.print()
    if findings.batch_sizes:
        unbounded = None if console.is_terminal else 1000
        console.print(_batch_size_table(findings), width=unbounded, crop=console.is_terminal)
    best = findings.recommendation
    if best is not None:
        code = keras_code(best.parameters, optimizer=optimizer, replicas=replicas)
        console.print("To paste:")
        _print_code(console, code)


def recommendation_lines(findings: Findings, *, replicas: int, train_examples: int) -> Iterator[str]:
    """The recommendation in words: what to set, what it buys, how sure, what is not known."""
    best, objective = findings.recommendation, findings.objective
    if best is None:
        yield from _nothing_reached(findings)
        return
    yield words.settings(best.parameters, replicas=replicas, train_examples=train_examples)
    reached = best.best.reached
    runs = (
        "1 run" if best.runs == 1 else f"{best.runs} runs, {best.missed} missed" if best.missed else f"{best.runs} runs"
    )
    if best.interval is not None:
        low, high = (words.cost(value, objective.minimize) for value in best.interval)
        runs = f"90 %: {low} to {high}, {runs}"
    if reached is None:
        yield f"holds {objective.metric} {best.cost:.5g} at its full length ({runs})"
    else:
        yield (
            f"reaches {words.goal(objective)} in {words.duration(reached.seconds)}, {reached.steps:,.0f} steps, "
            f"{words.count(reached.examples)} examples ({runs})"
        )
    yield from _how_timed(findings)
    yield from _against_baseline(best, findings)
    yield from _test_metrics(best, findings.baseline)
    yield from _regimes(findings)
    sizes = [b.global_batch_size for b in findings.batch_sizes if b.reached]
    yield from noise_scale_lines(best.best, measured_critical_batch_size(findings.curve, sizes))
    for edge in findings.edges:
        yield f"edge of the space: {edge}"
    for caveat in findings.caveats:
        yield f"not established: {caveat}"


def _how_timed(findings: Findings) -> Iterator[str]:
    """Where times are the profile's, what the run that is recommended took by itself."""
    best = findings.recommendation
    if not findings.profiled or best is None or best.best.reached is None:
        return
    reached = best.best.reached
    own = next((m.train_seconds for m in best.best.measurements if m.step == reached.evaluation_step), None)
    itself = f"; trial {best.best.number} itself trained {words.duration(own)}" if own is not None else ""
    yield f"times are steps × the profiled {words.duration(reached.seconds / reached.steps)} of a step, as compared{itself}"


def _nothing_reached(findings: Findings) -> Iterator[str]:
    objective, closest = findings.objective, findings.closest
    if objective.target is None:
        yield "none: no trial has run its full length yet, so nothing can be compared"
    else:
        yield f"none: no trial reached {words.goal(objective)}"
    if closest is not None:
        value = best_value(closest, objective)
        p = closest.parameters
        alone = ", which no median of three evaluations was" if closest.first_reached is not None else ""
        yield (
            f"the closest was trial {closest.number} (global batch {p.global_batch_size:,}, learning rate "
            f"{p.learning_rate:.4g}): {objective.metric} {value:.6g}{alone}; {OUTCOME_MEANING[closest.outcome]}"
        )
    if objective.target is not None and findings.outcomes:
        yield "give it more budget, a longer `trial.max_examples`, or an easier target"


def _against_baseline(best: Candidate, findings: Findings) -> Iterator[str]:
    baseline = findings.baseline
    if baseline is None:
        return
    p = baseline.parameters
    yours = f"your baseline (global batch {p.global_batch_size:,}, learning rate {p.learning_rate:.4g})"
    if baseline.best.number == best.best.number:
        yield f"that is {yours}: nothing better was found"
        return
    if baseline.best.reached is None or best.best.reached is None:
        if baseline.cost is not None and best.cost is not None:
            yield f"{yours}: {baseline.cost:.5g}"
        else:
            yield f"{yours}: {OUTCOME_MEANING[baseline.best.outcome]}"
        return
    goal = findings.objective.minimize
    mine, theirs = best.best.reached, baseline.best.reached
    gain = f"{words.ratio(theirs.cost(goal) / mine.cost(goal))} {'faster' if goal == 'seconds' else f'fewer {goal}'}"
    price = f" for {words.ratio(mine.examples / theirs.examples)} the examples" if goal != "examples" else ""
    yield f"{yours}: {words.cost(theirs.cost(goal), goal)}. That is {gain}{price}"


def _test_metrics(best: Candidate, baseline: Candidate | None) -> Iterator[str]:
    others = baseline.best.test_metrics if baseline is not None and baseline.best.number != best.best.number else {}
    for name, value in best.best.test_metrics.items():
        if name == "test/loss":
            continue  # the loss that was trained on, regularisers apart: the named metrics say it better
        yield f"{name} {value:.4g}" + (f" against {others[name]:.4g}" if name in others else "")


def _regimes(findings: Findings) -> Iterator[str]:
    curve = findings.curve
    if curve is None:
        reached = sum(b.reached > 0 for b in findings.batch_sizes)
        if findings.objective.minimize != "metric":
            yield f"regimes unknown: they need 4 batch sizes that reached the target, there are {reached}"
        return
    sizes = [b.global_batch_size for b in findings.batch_sizes if b.reached]
    yield f"{_regimes_seen(curve, sizes[0], sizes[-1])} (from {len(sizes)} batch sizes, {sizes[0]:,} to {sizes[-1]:,})"
    if measured_critical_batch_size(curve, sizes) is not None:
        power, root = (f"^{curve.sharpness:.2g}", f"^(1/{curve.sharpness:.2g})") if curve.sharpness > 1.05 else ("", "")
        share = f"{curve.b_crit:,.0f} / batch"
        law = f"(1 + {f'({share}){power}' if power else share}){root}"
        yield (
            f"critical batch size {curve.b_crit:,.0f}: steps to target ≈ {curve.s_min:,.0f} · {law}, to {curve.residual:.0%}"
        )


def _regimes_seen(curve: ScalingCurve, smallest: int, largest: int) -> str:
    """The regimes within the batch sizes measured; of what lies outside, only that it was not seen."""
    perfect, maximal = curve.perfect_scaling_up_to, curve.maximal_data_parallelism_from
    if perfect >= largest:
        return f"perfect scaling throughout: its end was not seen up to batch {largest:,}"
    if maximal <= smallest:
        return f"nothing gained by larger batches: no scaling was seen from batch {smallest:,} on"
    below = f"no perfect scaling seen from batch {smallest:,} on"
    regimes = [f"perfect scaling up to about {perfect:,.0f}" if perfect >= smallest else below]
    if maximal <= largest:
        regimes.append(f"diminishing returns to about {maximal:,.0f}, almost nothing gained beyond")
    else:
        regimes.append(f"diminishing returns beyond, whose end was not seen up to {largest:,}")
    return ", ".join(regimes)


def batch_size_rows(findings: Findings) -> Iterator[tuple[str, ...]]:
    """The best per global batch size as text: the headings first, then a row for each size."""
    if findings.of_curve:
        yield from _curve_rows(findings.batch_sizes)
        return
    objective = findings.objective
    if objective.minimize == "metric":
        yield "global batch", "learning rate", objective.metric, "trials"
    else:
        yield "global batch", "learning rate", "steps", "examples", "seconds", "reached / trials"
    for row in findings.batch_sizes:
        best, reached = row.best, row.best.reached if row.best else None
        size, rate = f"{row.global_batch_size:,}", f"{best.parameters.learning_rate:.4g}" if best else "–"
        if objective.minimize == "metric":
            value = cost(best, objective) if best else None
            yield size, rate, f"{value:.5g}" if value is not None else "–", f"{row.trials}"
        elif reached:
            costs = f"{reached.steps:,.0f}", words.count(reached.examples), words.duration(reached.seconds)
            yield size, rate, *costs, f"{row.reached} / {row.trials}"
        else:
            yield size, rate, "–", "–", "–", f"{row.reached} / {row.trials}"


def _curve_rows(batch_sizes: Sequence[BatchSizeSummary]) -> Iterator[tuple[str, ...]]:
    yield "global batch", "learning rate", "decays after", "steps", "90 %", "examples", "seconds", "runs"
    for row in batch_sizes:
        size, leader = f"{row.global_batch_size:,}", row.leader
        if leader is None or row.interval is None or row.steps_to_target is None:
            yield size, "–", "–", *_why_not_reached(row), "–", "–", f"{row.trials}"
            continue
        examples, seconds = row.examples_to_target or 0.0, row.seconds_to_target or 0.0
        decays = ", ".join(words.count(b) for b in leader.parameters.schedule.boundaries if b < examples)
        low, high = row.interval
        yield (
            size,
            f"{leader.parameters.learning_rate:.4g}",
            decays or "–",
            f"{row.steps_to_target:,.0f}",
            f"{low:,.0f}–{high:,.0f}",
            words.count(examples),
            words.duration(seconds),
            "once" if leader.runs == 1 else f"{leader.runs}" + (f", {leader.missed} missed" if leader.missed else ""),
        )


def _why_not_reached(row: BatchSizeSummary) -> tuple[str, str]:
    if row.out_of_memory:
        return "out of memory", "–"
    if not row.most_examples:
        return "not tried", "–"
    return "not reached", f"within {words.count(row.most_examples / row.global_batch_size)}"


def _batch_size_table(findings: Findings) -> RenderableType:
    title = "Best per global batch size" if not findings.of_curve else "Steps to target at every global batch size"
    narrow = findings.of_curve  # to fit into 80 columns
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=narrow, title=title, title_justify="left")
    headings, *rows = batch_size_rows(findings)
    for heading in headings:
        table.add_column(heading, justify="right")
    chosen = findings.recommendation.parameters.global_batch_size if findings.recommendation else None
    for summary, cells in zip(findings.batch_sizes, rows, strict=True):
        table.add_row(*cells, style="bold" if summary.global_batch_size == chosen else None)
    return table


def _print_code(console: Console, code: str) -> None:
    """Without wrapping or padding: what is copied must be what was meant."""
    if console.is_terminal:
        console.print(Syntax(code, "python", theme="ansi_dark", background_color="default"), soft_wrap=True)
    else:
        console.print(code, markup=False, highlight=False, soft_wrap=True)
    console.print()
