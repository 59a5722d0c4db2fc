"""Findings as text for the terminal: the recommendation in words, the table per batch size, the code to paste."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table

from scalesearch.core.budget import Budget, Spent
from scalesearch.core.recommend import Candidate, Findings, best_value
from scalesearch.core.results import OUTCOME_MEANING, Outcome
from scalesearch.report import words
from scalesearch.report.keras_code import keras_code


def outcome_counts(outcomes: Mapping[Outcome, int]) -> str:
    """`9 reached, 11 capped, 3 diverged`, in the order of `Outcome`."""
    return ", ".join(f"{outcomes[o]} {o.value.lower().replace('_', ' ')}" for o in Outcome if outcomes.get(o))


def spending(budget: Budget, spent: Spent) -> str:
    """What of each limit is spent; without limits, what was spent."""
    shown: dict[str, Callable[[float], str]] = {
        "examples": lambda v: f"{words.count(v)} examples",
        "epochs": lambda v: f"{v:.4g} epochs",
        "device_seconds": lambda v: f"{words.duration(v)} device time",
        "wall_clock_seconds": lambda v: f"{words.duration(v)} wall clock",
        "trials": lambda v: f"{v:.0f} trials",
    }
    limits = budget.limits()
    asked = [f"{show(getattr(spent, unit))} of {show(limits[unit])}" for unit, show in shown.items() if unit in limits]
    others = [show(getattr(spent, unit)) for unit, show in shown.items() if unit not in limits and unit != "epochs"]
    return "; ".join([*asked, *others])


def print_findings(console: Console, findings: Findings, *, replicas: int, train_examples: int, optimizer: str) -> None:
    """The recommendation (or why there is none), then everything that supports it."""
    console.print()
    console.print(f"[bold]Recommendation for {replicas} replica{'s' if replicas != 1 else ''}[/bold]")
    for line in recommendation_lines(findings, replicas=replicas, train_examples=train_examples):
        console.print(f"  {escape(line)}", soft_wrap=not console.is_terminal)
    console.print()
    console.print(_batch_size_table(findings))
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
    runs = f"{best.runs} run{'s' if best.runs != 1 else ''}"
    if reached is None:
        yield f"holds {objective.metric} {best.cost:.5g} at its full length ({runs})"
    else:
        yield (
            f"reaches {objective.metric} {'<' if objective.direction == 'minimize' else '>'} {objective.target:.6g} "
            f"in {words.duration(reached.seconds)}, {reached.steps:,.0f} steps, "
            f"{words.count(reached.examples)} examples ({runs})"
        )
    yield from _against_baseline(best, findings, replicas)
    yield from _regimes(findings)
    for caveat in findings.caveats:
        yield f"not established: {caveat}"


def _nothing_reached(findings: Findings) -> Iterator[str]:
    objective, closest = findings.objective, findings.closest
    if objective.target is None:
        yield "none: no trial has run its full length yet, so nothing can be compared"
    else:
        yield f"none: no trial reached {objective.metric} {objective.target:.6g}"
    if closest is not None:
        value = best_value(closest, objective)
        p = closest.parameters
        yield (
            f"the closest was trial {closest.number} (global batch {p.global_batch_size:,}, learning rate "
            f"{p.learning_rate:.4g}): {objective.metric} {value:.6g}; it {OUTCOME_MEANING[closest.outcome]}"
        )
        yield "give it more budget, a longer `trial.max_examples`, or an easier target"


def _against_baseline(best: Candidate, findings: Findings, replicas: int) -> Iterator[str]:
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
            yield f"{yours} {OUTCOME_MEANING[baseline.best.outcome]}"
    else:
        goal = findings.objective.minimize
        mine, theirs = best.best.reached, baseline.best.reached
        gain = theirs.cost(goal) / mine.cost(goal)
        yield (
            f"{yours}: {words.cost(theirs.cost(goal), goal)}. That is {words.ratio(gain)} less for "
            f"{words.ratio(mine.examples / theirs.examples)} the examples"
        )
    for name, value in best.best.test_metrics.items():
        if name == "test/loss":
            continue  # the loss that was trained on, regularisers apart: the named metrics say it better
        other = baseline.best.test_metrics.get(name)
        yield f"{name} {value:.4g}" + (f" against {other:.4g}" if other is not None else "")


def _regimes(findings: Findings) -> Iterator[str]:
    curve = findings.curve
    if curve is None:
        reached = sum(b.reached > 0 for b in findings.batch_sizes)
        if findings.objective.minimize != "metric":
            yield f"regimes unknown: they need 4 batch sizes that reached the target, there are {reached}"
        return
    sizes = [b.global_batch_size for b in findings.batch_sizes if b.reached]
    yield (
        f"steps to target ≈ {curve.s_min:,.0f} · (1 + {curve.b_crit:,.0f} / batch), to {curve.residual:.0%}: "
        f"perfect scaling up to about {curve.perfect_scaling_up_to:,.0f}, diminishing returns to "
        f"{curve.maximal_data_parallelism_from:,.0f}, nothing gained beyond (critical batch size {curve.b_crit:,.0f}; "
        f"measured from {sizes[0]:,} to {sizes[-1]:,})"
    )


def _batch_size_table(findings: Findings) -> RenderableType:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title="Best per global batch size", title_justify="left")
    for heading in ("global batch", "learning rate", "steps", "examples", "seconds", "reached / trials"):
        table.add_column(heading, justify="right")
    chosen = findings.recommendation.parameters.global_batch_size if findings.recommendation else None
    for row in findings.batch_sizes:
        best, reached = row.best, row.best.reached if row.best else None
        table.add_row(
            f"{row.global_batch_size:,}",
            f"{best.parameters.learning_rate:.4g}" if best else "–",
            f"{reached.steps:,.0f}" if reached else "–",
            words.count(reached.examples) if reached else "–",
            words.duration(reached.seconds) if reached else "–",
            f"{row.reached} / {row.trials}",
            style="bold" if row.global_batch_size == chosen else None,
        )
    return table


def _print_code(console: Console, code: str) -> None:
    """Without wrapping or padding: what is copied must be what was meant."""
    if console.is_terminal:
        console.print(Syntax(code, "python", theme="ansi_dark", background_color="default"), soft_wrap=True)
    else:
        console.print(code, markup=False, highlight=False, soft_wrap=True)
    console.print()
