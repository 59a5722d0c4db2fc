"""Figures of a study: pure functions from its trials to matplotlib figures.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart; outcomes differ by marker as well.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from scalesearch.core.curve import ScalingCurve
from scalesearch.core.recommend import BatchSizeSummary
from scalesearch.core.results import Objective, Outcome, TrialResult
from scalesearch.report.words import count, duration

_BLUE, _ORANGE, _VERMILION, _PURPLE, _SKY, _GREY = (
    "#0072B2", "#E69F00", "#D55E00", "#CC79A7", "#56B4E9", "#777777",
)  # fmt: skip

_LOOKS: Mapping[Outcome, tuple[str, str, str]] = {  # label, colour, marker
    Outcome.REACHED: ("reached the target", _BLUE, "o"),
    Outcome.CAPPED: ("stopped: could no longer win", _ORANGE, "v"),
    Outcome.EXHAUSTED: ("full length, target not reached", _SKY, "s"),
    Outcome.DIVERGED: ("diverged", _VERMILION, "X"),
    Outcome.OUT_OF_MEMORY: ("out of memory", _PURPLE, "P"),
    Outcome.INTERRUPTED: ("interrupted", _GREY, "d"),
    Outcome.CRASHED: ("crashed", "black", "*"),
}


def figures(
    results: Sequence[TrialResult],
    objective: Objective,
    *,
    best: TrialResult | None = None,
    curve: ScalingCurve | None = None,
    batch_sizes: Sequence[BatchSizeSummary] = (),
) -> dict[str, Figure]:
    """Every figure for which `results` suffice, by file name without ending.

    Args:
        best: the trial to point out.
        curve: the fit to the steps to target.
        batch_sizes: with their leaders, of a study of the whole curve.
    """
    drawn: dict[str, Figure] = {}
    if _points_reached(results):
        drawn["steps_to_target"] = steps_to_target(results, curve=curve, batch_sizes=batch_sizes)
    if results:
        drawn["trials_by_batch_and_rate"] = trials_by_batch_and_rate(results, objective, best=best)
    if any(len(result.measurements) > 1 for result in results):
        drawn["learning_curves"] = learning_curves(results, objective, best=best)
    if any(result.cost.device_seconds for result in results):
        drawn["budget_use"] = budget_use(results)
    return drawn


def steps_to_target(
    results: Sequence[TrialResult],
    *,
    curve: ScalingCurve | None = None,
    batch_sizes: Sequence[BatchSizeSummary] = (),
) -> Figure:
    """Steps to target against global batch size: all trials that reached it, and the best of each batch size.

    Instead of the best, of a study of the whole curve, what is expected of the leaders in `batch_sizes`, and how far the
    others were tried. At least one trial must have reached the target.
    """
    points = _points_reached(results)
    best: dict[int, float] = {}
    for batch, steps in points:
        best[batch] = min(steps, best.get(batch, math.inf))
    led = {b.global_batch_size: b for b in batch_sizes if b.leader and b.steps_to_target}
    best.update({batch: b.steps_to_target or math.inf for batch, b in led.items()})
    batches = sorted(best)
    figure, axes = _figure("Steps to target against batch size")
    axes.plot(*zip(*points, strict=True), "o", color=_BLUE, alpha=0.35, markersize=5, label="a trial")
    if led:
        points += _draw_leaders(axes, batch_sizes)
    else:
        axes.plot(batches, [best[b] for b in batches], "o-", color=_BLUE, markersize=8, label="best of its batch size")
    smallest = batches[0]
    perfect = [best[smallest] * smallest / b for b in batches]
    if len(batches) > 1:
        axes.plot(batches, perfect, "--", color=_GREY, label="perfect scaling: twice the batch, half the steps")
    if curve is not None:
        fine = [smallest * (batches[-1] / smallest) ** (i / 100) for i in range(101)]
        axes.plot(fine, [curve.steps(b) for b in fine], color=_VERMILION, label="fitted curve")
        if smallest <= curve.b_crit <= batches[-1]:
            label = f"critical batch size: {curve.b_crit:,.0f}"
            axes.axvline(curve.b_crit, color=_VERMILION, linestyle=":", label=label)
    _log2_axis(axes, "x", [b for b, _ in points])
    _log2_axis(axes, "y", [steps for _, steps in points])
    axes.set_xlabel("global batch size (examples per step)")
    axes.set_ylabel("steps to target")
    axes.legend(frameon=False)
    return figure


def _draw_leaders(axes: Axes, batch_sizes: Sequence[BatchSizeSummary]) -> list[tuple[int, float]]:
    """Draw what is expected of each batch size's leader, and how far the others were tried; returns the latter."""
    known = [
        (b.global_batch_size, b.steps_to_target, b.interval) for b in batch_sizes if b.steps_to_target and b.interval
    ]
    below = [steps - interval[0] for _, steps, interval in known]
    above = [interval[1] - steps for _, steps, interval in known]
    axes.errorbar(
        [size for size, _, _ in known], [steps for _, steps, _ in known], yerr=(below, above),
        fmt="o-", color=_BLUE, markersize=8, capsize=4, label="expected of the best parameters, with 90 % interval",
    )  # fmt: skip
    missed = [
        (b.global_batch_size, b.most_examples / b.global_batch_size)
        for b in batch_sizes
        if b.leader is None and b.most_examples
    ]
    if missed:
        axes.plot(
            *zip(*missed, strict=True), "^", color=_ORANGE, markersize=9, label="not reached within so many steps"
        )
    return missed


def trials_by_batch_and_rate(
    results: Sequence[TrialResult], objective: Objective, *, best: TrialResult | None = None
) -> Figure:
    """Every trial by batch size and learning rate, with its outcome; the usual rules through the baseline."""
    figure, axes = _figure("Every trial by batch size and learning rate", width=9.0)
    for outcome, (label, colour, marker) in _LOOKS.items():
        points = [r.parameters for r in results if r.outcome is outcome]
        if points:
            axes.scatter(
                [p.global_batch_size for p in points],
                [p.learning_rate for p in points],
                s=60, color=colour, marker=marker, label=f"{label} ({len(points)})", alpha=0.85, linewidths=0,
            )  # fmt: skip
    batches = [r.parameters.global_batch_size for r in results]
    rates = [r.parameters.learning_rate for r in results]
    _log2_axis(axes, "x", batches)
    _rate_axis(axes, rates)
    for result in results:
        _annotate_cost(axes, result, objective)
    baseline = next((r for r in results if r.is_baseline), None)
    if baseline is not None:
        _draw_rules(axes, baseline)
        _ring(axes, baseline, "black", "s", "baseline")
    if best is not None:
        _ring(axes, best, _VERMILION, "o", "best")
    axes.set_xlabel("global batch size (examples per step)")
    axes.set_ylabel("learning rate at the start")
    numbers = None if objective.minimize == "metric" else f"numbers: {objective.minimize} to target"
    axes.legend(
        frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0), labelspacing=0.8,
        title=numbers, alignment="left",
    )  # fmt: skip
    return figure


def learning_curves(results: Sequence[TrialResult], objective: Objective, *, best: TrialResult | None = None) -> Figure:
    """The validation metric of every trial against examples seen, coloured by batch size."""
    figure, axes = _figure("Learning curves of all trials")
    batches = [r.parameters.global_batch_size for r in results]
    norm = LogNorm(min(batches), max(max(batches), 2 * min(batches)))
    colours = colormaps["viridis"]
    values = [value for r in results for _, value in _curve(r, objective) if math.isfinite(value)]
    for result in results:
        points = _curve(result, objective)
        if not points:
            continue
        is_best = best is not None and result.number == best.number
        axes.plot(
            *zip(*points, strict=True),
            color=colours(norm(result.parameters.global_batch_size)),
            linewidth=3.0 if is_best else 1.2,
            alpha=1.0 if is_best else 0.7,
            label="best trial" if is_best else None,
        )
    if objective.target is not None:
        axes.axhline(objective.target, color=_VERMILION, linestyle="--", label=f"target {objective.target:g}")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(_thousands))
    _focus(axes, values, objective)
    bar = figure.colorbar(ScalarMappable(norm, colours), ax=axes, label="global batch size")
    ticks = _powers_of_two(min(batches), max(batches))
    bar.set_ticks([float(b) for b in ticks], labels=[f"{b:,}" for b in ticks])
    bar.ax.minorticks_off()
    axes.set_xlabel("examples seen in training")
    axes.set_ylabel(_plain(objective.metric))
    axes.legend(frameon=False)
    return figure


def budget_use(results: Sequence[TrialResult]) -> Figure:
    """Device seconds spent by outcome: horizontal bars."""
    spent: dict[Outcome, list[float]] = defaultdict(list)
    for result in results:
        spent[result.outcome].append(result.cost.device_seconds)
    total = sum(map(sum, spent.values()))
    outcomes = sorted(spent, key=lambda outcome: sum(spent[outcome]))
    figure, axes = _figure("Where the budget went", height=1.4 + 0.5 * len(outcomes))
    for row, outcome in enumerate(outcomes):
        seconds, trials = sum(spent[outcome]), len(spent[outcome])
        axes.barh(row, seconds, height=0.65, color=_LOOKS[outcome][1])
        share = f"  {seconds / total:.0%}, {trials} trial{'s' if trials > 1 else ''}"
        axes.text(seconds, row, share, va="center", fontsize=10)
    axes.set_yticks(range(len(outcomes)), [_LOOKS[outcome][0] for outcome in outcomes])
    axes.set_xlim(0, 1.3 * max(map(sum, spent.values())))
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"device seconds (replicas × seconds; {total:,.0f} in all)")
    return figure


def _figure(title: str, *, width: float = 7.5, height: float = 5.0) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontweight="bold")
    axes.grid(visible=True, color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _points_reached(results: Sequence[TrialResult]) -> list[tuple[int, float]]:
    """(global batch size, steps to target); a target met before the first step has no place on the axes."""
    return [(r.parameters.global_batch_size, r.reached.steps) for r in results if r.reached and r.reached.steps]


def _curve(result: TrialResult, objective: Objective) -> list[tuple[int, float]]:
    # A logarithmic axis has no place for the evaluation before the first step.
    return [(m.examples, m.metrics[objective.metric]) for m in result.measurements if m.examples > 0]


def _focus(axes: Axes, values: Sequence[float], objective: Objective) -> None:
    """Keep one exploded trial from squashing all others: show what lies between the best and the median start."""
    if len(values) < 2:
        return
    ordered = sorted(values)
    cut = len(ordered) // 20
    low, high = ordered[0], ordered[-1]
    if objective.direction == "minimize":
        high = ordered[-1 - cut]
    else:
        low = ordered[cut]
    if objective.target is not None:
        low, high = min(low, objective.target), max(high, objective.target)
    if high > low:
        axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))


def _annotate_cost(axes: Axes, result: TrialResult, objective: Objective) -> None:
    if result.reached is None or objective.minimize == "metric":
        return
    cost = result.reached.cost(objective.minimize)
    axes.annotate(
        duration(cost) if objective.minimize == "seconds" else count(cost),
        (result.parameters.global_batch_size, result.parameters.learning_rate),
        xytext=(9, 7),
        textcoords="offset points",
        fontsize=8,
        color=_BLUE,
        path_effects=[withStroke(linewidth=3, foreground="white")],
    )


def _draw_rules(axes: Axes, baseline: TrialResult) -> None:
    batch, rate = baseline.parameters.global_batch_size, baseline.parameters.learning_rate
    low, high = axes.get_xlim()
    bottom, top = axes.get_ylim()
    for power, style, label in ((1.0, "--", "linear scaling rule"), (0.5, ":", "square root rule")):
        rates = [rate * (b / batch) ** power for b in (low, high)]
        axes.plot((low, high), rates, style, color=_GREY, label=label, zorder=1)
    axes.set(xlim=(low, high), ylim=(bottom, top))


def _ring(axes: Axes, result: TrialResult, colour: str, marker: str, label: str) -> None:
    axes.scatter(
        [result.parameters.global_batch_size],
        [result.parameters.learning_rate],
        s=230, facecolors="none", edgecolors=colour, marker=marker, linewidths=1.8, label=label,
    )  # fmt: skip


def _log2_axis(axes: Axes, which: str, values: Sequence[float]) -> None:
    low, high = min(values) / 1.5, max(values) * 1.5  # a factor above two: at least one tick
    ticks = _powers_of_two(low, high)
    axis = axes.xaxis if which == "x" else axes.yaxis
    axes.set(**{f"{which}scale": "log", f"{which}lim": (low, high)})
    axis.set_ticks(ticks, labels=[f"{tick:,}" for tick in ticks])
    axis.set_minor_locator(NullLocator())


def _rate_axis(axes: Axes, rates: Sequence[float]) -> None:
    axes.set(yscale="log", ylim=(min(rates) / 1.8, max(rates) * 1.8))
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _powers_of_two(low: float, high: float) -> list[int]:
    """The powers of two from `low` to `high`, at most nine of them."""
    first, last = math.ceil(math.log2(max(low, 1))), math.floor(math.log2(high))
    stride = max(1, math.ceil((last - first + 1) / 9))
    return [2**exponent for exponent in range(first, last + 1, stride)]


def _thousands(value: float, _: int) -> str:
    return f"{value:,.0f}"


def _plain(metric: str) -> str:
    split, _, name = metric.rpartition("/")
    words = name.replace("_", " ")
    return f"{words} ({'validation' if split == 'val' else split})" if split else words
