"""What a running study shows: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from scalesearch.core.budget import Budget, Spent, largest_share
from scalesearch.core.parameters import Parameters
from scalesearch.core.recommend import Findings, best_value
from scalesearch.core.results import Measurement, Objective, Outcome, TrialResult
from scalesearch.core.space import SearchSpace
from scalesearch.report import words
from scalesearch.report.say import say
from scalesearch.report.terminal import outcome_counts

_STYLES = {Outcome.REACHED: "green", Outcome.CAPPED: "yellow", Outcome.EXHAUSTED: "yellow"}


class StudyProgress:
    """A context in which a study's trials are shown as they go; writes to `console` only."""

    def __init__(
        self, console: Console, *, budget: Budget, objective: Objective, space: SearchSpace, train_examples: int
    ) -> None:
        self._console = console
        self._budget = budget
        self._objective = objective
        self._searched = space.searched()
        self._train_examples = train_examples
        self._progress = Progress(
            TextColumn("budget"),
            BarColumn(bar_width=20),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID = self._progress.add_task("", total=1.0)
        self._running = ""
        self._standing = ""

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def trial_started(self, number: int, parameters: Parameters, spent: Spent) -> None:
        """Show a trial that begins."""
        self._running = f"trial {number} ({self._point(parameters)})"
        self._show(spent, self._running)

    def note(self, sentence: str) -> None:
        """Print a sentence among the trials."""
        say(self._console, sentence, style="yellow")

    def trial_measured(self, measurement: Measurement, spent: Spent) -> None:
        """Show how far the running trial is."""
        value = measurement.metrics[self._objective.metric]
        target = f" → {self._objective.target:.4g}" if self._objective.target is not None else ""
        self._show(spent, f"{self._running}: {value:.4g}{target}")

    def trial_ended(self, result: TrialResult, findings: Findings, spent: Spent) -> None:
        """Print a trial's line and show the new standing."""
        self._objective = findings.objective
        best = findings.recommendation
        incumbent = (
            f"best {words.cost(best.cost, self._objective.minimize)} · " if best and best.cost is not None else ""
        )
        self._standing = incumbent + outcome_counts(findings.outcomes)
        share = "" if self._console.is_terminal else f"{largest_share(self._budget, spent):>4.0%} "
        style = _STYLES.get(result.outcome, "red")
        compared = next((r for r in findings.results if r.number == result.number), result)
        say(self._console, share + self._line(compared), style=style)
        self._show(spent, "")

    def _line(self, result: TrialResult) -> str:
        value = best_value(result, self._objective)
        reached = f"best {value:.4g}" if value is not None else "nothing measured"
        if result.reached is not None:
            reached = words.cost(result.reached.cost(self._objective.minimize), self._objective.minimize) + " to target"
        label = "baseline" if result.is_baseline else "trial"
        surprising = result.outcome in (Outcome.CRASHED, Outcome.DIVERGED, Outcome.OUT_OF_MEMORY)
        proposed = f" · {result.why}" if result.why else ""
        ended = f": {result.reason}" if surprising else ""
        return (
            f"{label:>8} {result.number:<3} {self._point(result.parameters):<40} {result.outcome.value:<11} {reached}, "
            f"{words.count(result.cost.examples)} examples, {words.duration(result.seconds)}{proposed}{ended}"
        )

    def _point(self, parameters: Parameters) -> str:
        """What tells a trial from others."""
        accumulated = f" in {parameters.accumulation} micro-batches" if parameters.accumulation > 1 else ""
        parts = [f"batch {parameters.global_batch_size}{accumulated}", f"lr {parameters.learning_rate:.3g}"]
        if "momentum" in self._searched and parameters.momentum is not None:
            parts.append(f"momentum {parameters.momentum:.3g}")
        return ", ".join([*parts, words.short_decay(parameters.schedule, train_examples=self._train_examples)])

    def _show(self, spent: Spent, running: str) -> None:
        parts = [p for p in (_left(self._budget, spent), running, self._standing) if p]
        self._progress.update(
            self._task, completed=largest_share(self._budget, spent), description=" · ".join(parts), refresh=True
        )


def _left(budget: Budget, spent: Spent) -> str:
    limits = budget.limits()
    for unit in ("wall_clock_seconds", "device_seconds"):
        if unit in limits:
            return f"{words.duration(max(limits[unit] - getattr(spent, unit), 0.0))} left"
    return ""
