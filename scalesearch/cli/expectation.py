"""What a retune may expect of its budget, said before anything is trained."""

from __future__ import annotations

from rich.console import Console

from scalesearch.cli.study_profile import ProfiledStudy
from scalesearch.core.budget import Budget
from scalesearch.core.forecast import StepsAt
from scalesearch.report import words
from scalesearch.report.say import say
from scalesearch.study.retuning import Retuning

ENOUGH_RUNS = 3.0  # full runs: what a retune usually takes


def say_what_is_expected(retune: Retuning, at_start: ProfiledStudy, budget: Budget, console: Console) -> None:
    """What is taken over, what the old study lets expect here, and whether the budget can pay for it."""
    for sentence in retune.told:
        say(console, f"Taken over: {sentence}")
    study = retune.present.study
    if study is None or not retune.warm_start.old:
        return
    steps = study.known_steps().steps_to_target()
    resolved, step_seconds = at_start.resolved, at_start.step_seconds
    known = [k for b in resolved.space.batch_sizes.values() if (k := steps.at(b)) is not None]
    if not known:
        return

    def cost(k: StepsAt) -> float:
        size = k.parameters.global_batch_size
        return k.steps * (step_seconds(size) if step_seconds is not None else float(size))

    best = min(known, key=cost)
    size = best.parameters.global_batch_size
    seconds = best.steps * step_seconds(size) if step_seconds is not None else None
    took = f" in about {words.duration(seconds)} of training" if seconds is not None else ""
    say(
        console, f"Expected: the target at global batch {size:,} ({best.source}){took}, {words.count(best.steps)} steps"
    )
    runs = _full_runs(
        budget, examples=best.steps * size, seconds=seconds, replicas=resolved.replicas, epoch=resolved.train_examples
    )
    if runs is not None and runs < ENOUGH_RUNS:
        little = "which is less than one: expect no recommendation" if runs < 1.0 else "which is little"
        say(console, f"The budget is worth {runs:.1f} such runs, {little}. Allow about {ENOUGH_RUNS:g}")


def _full_runs(budget: Budget, *, examples: float, seconds: float | None, replicas: int, epoch: int) -> float | None:
    """How many runs to the target the tightest limit pays for, evaluation and start apart; None without any such limit."""
    shares = []
    if budget.examples is not None:
        shares.append(budget.examples / examples)
    if budget.epochs is not None:
        shares.append(budget.epochs * epoch / examples)
    if budget.trials is not None:
        shares.append(float(budget.trials))
    if budget.device_seconds is not None and seconds is not None:
        shares.append(budget.device_seconds / (seconds * replicas))
    if budget.wall_clock_seconds is not None and seconds is not None:
        shares.append(budget.wall_clock_seconds / seconds)
    return min(shares, default=None)
