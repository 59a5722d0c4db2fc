"""What sharing prefixes saves: 35 pairs of decay boundaries at one batch size and rate, side by side in one run.

    python tests/benchmarks/prefixes.py                simulated: the workloads of search_tuning.toml, at their true optima
    python tests/benchmarks/prefixes.py --real         digits/mlp, trained by the engine

Costs are in full runs: what the best of all pairs takes to the target. Every pair is run to the target or its full length;
or stopped early, once it has cost 1.15 times the best so far or its learning curve rules the target out; and the same with
what is shared with earlier pairs not trained again, from the snapshots that a study keeps. A late decay goes first, as its
run is what most others begin with; `shuffled` is another order. All pairs have one seed, so all of them are comparable.

The first boundary of all pairs is at 35 % of a good run or later. Where the true optimum decays much sooner (said in the
title), the best pair is one of the earliest and the others are far from it: little is shared before its boundary, and the best
so far, which stops the others, is bettered until the end.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from search_truth import truth
from search_workloads import load_cases

from scalesearch.core.evaluation import EvaluationPlan
from scalesearch.core.extrapolation import misses_target
from scalesearch.core.parameters import Parameters
from scalesearch.core.prefix import common_measurements
from scalesearch.core.results import Measurement, Objective, crossing
from scalesearch.core.schedule import Piecewise
from scalesearch.core.simulate import SimulatedTrainer
from scalesearch.core.stopping import awaits_confirmation, verdict
from scalesearch.study.snapshot_times import Forking, Overhead, SnapshotTimes

FIRST = (0.35, 0.45, 0.55, 0.65, 0.8, 0.95, 1.1)  # times the examples to target of a good run
SECOND = (1.1, 1.25, 1.5, 2.0, 3.0)  # times the first boundary
CAP = 1.15
LENGTH = 4.0  # of a full-length run, in good runs
SEED = 1


@dataclass(frozen=True, kw_only=True)
class Problem:
    """`good_examples` is about what a good run takes to the target."""

    name: str
    trainer: Any
    objective: Objective
    train_examples: int
    good_examples: float
    base: Parameters
    best_decay: float | None = None
    """The first boundary of the true optimum, if that is known, as a share of `good_examples`."""
    decay_factor: float = 0.1

    @property
    def max_examples(self) -> int:
        return round(LENGTH * self.good_examples)

    def pairs(self) -> list[Parameters]:
        """Late decays first."""
        return [
            replace(
                self.base,
                schedule=Piecewise(
                    learning_rate=self.base.learning_rate,
                    decay_factor=self.decay_factor,
                    boundaries=(first, round(first * second)),
                ),
            )
            for first in sorted((round(self.good_examples * share) for share in FIRST), reverse=True)
            for second in sorted(SECOND, reverse=True)
        ]

    def plan(self, parameters: Parameters) -> EvaluationPlan:
        return EvaluationPlan(
            objective=self.objective,
            boundaries=parameters.schedule.boundaries,
            first_examples=max(1, self.max_examples // 200),
            max_interval_examples=self.train_examples,
            end_examples=self.max_examples,
        )


@dataclass
class Run:
    """What has been trained of a pair, and the states that are kept of it."""

    parameters: Parameters
    measured: list[Measurement]
    states: dict[int, Any]
    new_steps: int = 0
    steps: float | None = None
    """To the target; None: it was missed, or ruled out."""


def run(problem: Problem, parameters: Parameters, earlier: Sequence[Run], *, best: float | None) -> Run:
    """Train a pair from the deepest state of `earlier` ones; with the `best` steps so far, stop once it cannot win."""
    plan, objective = problem.plan(parameters), problem.objective
    measured, start = _shared(parameters, plan, earlier)
    done = Run(parameters, measured, {})
    forks = Forking(decays=2, max_examples=problem.max_examples, limit_bytes=2**32)
    since = measured[-1] if measured else None
    times = SnapshotTimes(parameters, plan, since=since, forks=forks, overhead=Overhead())
    for measurement in problem.trainer.train(parameters, seed=SEED, plan=plan, start=start):
        measured.append(measurement)
        if times.is_fork(measurement):
            times.ask(measurement, to_fork=True)
            times.asked = False
            done.states[measurement.step] = problem.trainer.snapshot()
        if verdict(measured, objective) or _cannot_win(problem, parameters, measured, best):
            break
    done.new_steps = measured[-1].step - (since.step if since else 0)
    reached = crossing(measured, objective)
    done.steps = reached.steps if reached else None
    return done


def _shared(parameters: Parameters, plan: EvaluationPlan, earlier: Sequence[Run]) -> tuple[list[Measurement], Any]:
    """The measurements up to the deepest state on the way, and that state."""
    deepest: tuple[list[Measurement], Any] = ([], None)
    for other in earlier:
        count = common_measurements(other.measured, of=other.parameters, by=parameters, plan=plan)
        for i in range(len(deepest[0]), count):
            if (state := other.states.get(other.measured[i].step)) is not None:
                deepest = other.measured[: i + 1], state
    return deepest


def _cannot_win(problem: Problem, parameters: Parameters, measured: Sequence[Measurement], best: float | None) -> bool:
    if best is None or awaits_confirmation(measured, problem.objective):
        return False
    cap = CAP * best * parameters.global_batch_size
    boundaries = parameters.schedule.boundaries
    missed = misses_target(
        measured, problem.objective, boundaries=boundaries, cap_examples=min(cap, problem.max_examples)
    )
    return measured[-1].examples > cap or missed


def study(problem: Problem, pairs: Sequence[Parameters], *, stops: bool, shares: bool) -> list[Run]:
    """All pairs, one after another."""
    runs: list[Run] = []
    for parameters in pairs:
        best = min((r.steps for r in runs if r.steps is not None), default=None)
        runs.append(run(problem, parameters, runs if shares else (), best=best if stops else None))
    return runs


def rows(problem: Problem) -> Iterator[tuple[str, str, float, float, float]]:
    """Name, order, cost in full runs, best pair found over the best of all, share of the steps that was shared."""
    pairs = problem.pairs()
    shuffled = random.Random(0).sample(pairs, len(pairs))
    everything = study(problem, pairs, stops=False, shares=False)
    best = {r.parameters: r.steps for r in everything if r.steps is not None}
    unit = min(best.values())

    def row(name: str, order: str, runs: Sequence[Run]) -> tuple[str, str, float, float, float]:
        new, all_steps = sum(r.new_steps for r in runs), sum(r.measured[-1].step for r in runs)
        winner = min((r for r in runs if r.steps is not None), key=lambda r: r.steps or 0.0).parameters
        return name, order, new / unit, best[winner] / unit - 1.0, 1.0 - new / all_steps

    yield row("full length", "late first", everything)
    for order, ordered in (("late first", pairs), ("shuffled", shuffled)):
        yield row("stopped early", order, study(problem, ordered, stops=True, shares=False))
        yield row("stopped early and shared", order, study(problem, ordered, stops=True, shares=True))


def simulated() -> Iterator[Problem]:
    for case in load_cases(Path(__file__).with_name("search_tuning.toml")):
        known = truth(case)
        optimum = known.curve[known.best.global_batch_size]
        yield Problem(
            name=case.name,
            trainer=SimulatedTrainer(case.workload),
            objective=case.objective,
            train_examples=case.train_examples,
            good_examples=optimum.examples,
            base=known.best,
            best_decay=known.best.schedule.boundaries[0] / optimum.examples,
            decay_factor=case.decay_factor,
        )


def digits() -> Iterator[Problem]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from scalesearch.core.schedule import Constant
    from scalesearch.training.devices import configure_devices
    from scalesearch.training.engine import MirroredTrainer
    from scalesearch.workloads import load_workload

    workload = load_workload("digits/mlp", {})
    data = workload.load_data()
    yield Problem(
        name="digits/mlp",
        trainer=MirroredTrainer(workload, data, optimizer="momentum", devices=configure_devices(1)),
        objective=Objective(metric="val/cross_entropy_error", direction="minimize", target=0.15, minimize="steps"),
        train_examples=len(data.train),
        good_examples=14_000,
        base=Parameters(global_batch_size=32, schedule=Constant(learning_rate=0.03), momentum=0.9),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", action="store_true", help="digits/mlp by the engine instead of simulated workloads")
    options = parser.parse_args()
    console = Console(width=110)
    for problem in digits() if options.real else simulated():
        title = problem.name
        if problem.best_decay is not None:
            title += f" (the true optimum decays at {problem.best_decay:.0%} of its run)"
        table = Table("35 pairs", "order", "full runs", "best found", "shared", title=title, box=SIMPLE_HEAD)
        for name, order, cost, worse, shared in rows(problem):
            table.add_row(name, order, f"{cost:.1f}", f"{worse:+.1%}", f"{shared:.0%}")
        console.print(table)


if __name__ == "__main__":
    main()
