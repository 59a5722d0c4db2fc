"""How good is a search after how much compute? All methods on simulated workloads whose true optimum is known.

    python tests/benchmarks/search.py --set tuning --methods scaling,tpe --budgets 5,10,20 --seeds 20

Regret is the mean cost of the recommendation over fresh seeds, above that of the true optimum and relative to it; a run
that misses, or takes four times as long as the optimum, counts as 3, and so does a study that has nothing to recommend.
The true optimum is the best on average, with noise. Budgets are in full runs of it. A method is told the space (10
octaves of batch, 4 decades of learning rate, boundaries over a factor of 50), the length of a trial and a first guess
(see `search_environment.problem`).

`--workloads FILE.toml` takes workloads of your own; search_tuning.toml shows the format. Nothing may be tuned on the
held-out set. CMA-ES needs the package `cmaes`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table
from search_environment import Environment, problem, regret_or_miss
from search_methods import methods
from search_truth import Truth, truth
from search_workloads import Case, load_cases

SETS = {name: Path(__file__).with_name(f"search_{name}.toml") for name in ("tuning", "heldout")}
BUDGETS = (3.0, 5.0, 8.0, 10.0, 12.0, 20.0, 50.0, 100.0, 200.0)
ALL = "all"
RESAMPLES = 1000
TRUTH_COLUMNS = ("S_min", "B_crit", "B_opt", "lr", "steps", "T*", "misses")

Row = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Task:
    """One study."""

    case: Case
    method: str
    seed: int
    budgets: tuple[float, ...]
    guess_factor: float


@dataclass(frozen=True, kw_only=True)
class Study:
    """What a study came to: the regret at each budget, None without a recommendation."""

    workload: str
    method: str
    seed: int
    regrets: tuple[float | None, ...]
    trials: int
    seconds_per_suggestion: float


def main() -> None:
    args = _arguments()
    cases = [c for c in load_cases(args.workloads or SETS[args.set]) if not args.only or c.name in args.only]
    known = methods()
    if unknown := [m for m in args.methods or [] if m not in known]:
        sys.exit(f"cannot run {', '.join(unknown)} here; known: {', '.join(known)}")
    names = args.methods or list(known)
    console = Console(width=max(Console().width, 40 + 24 * len(args.budgets)))
    with multiprocessing.Pool(args.processes, initializer=_yield_to_others) as pool:
        truths = list(zip(cases, _shown(pool.imap(truth, cases), len(cases), "true optima"), strict=True))
        if not args.json:
            _print_truths(console, truths)
        tasks = [
            Task(case=c, method=m, seed=s, budgets=args.budgets, guess_factor=args.first_guess)
            for s in range(args.first_seed, args.first_seed + args.seeds)
            for c in cases
            for m in names
        ]
        studies = list(_shown(pool.imap_unordered(run_study, tasks), len(tasks), "studies"))
    set_name = args.workloads.stem if args.workloads else args.set
    rows = list(_rows(set_name, studies, [c.name for c in cases], names, args.budgets))
    if args.json:
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
    else:
        _print_rows(console, rows, studies)


def run_study(task: Task) -> Study:
    """Search once with the largest budget, and look back at the smaller ones."""
    known = truth(task.case)
    posed = problem(task.case, known, seed=task.seed, guess_factor=task.guess_factor)
    environment = Environment(task.case, known, posed, budget=max(task.budgets))
    methods()[task.method](environment)
    seconds = environment.seconds_per_suggestion()
    return Study(
        workload=task.case.name,
        method=task.method,
        seed=task.seed,
        regrets=tuple(environment.regret(b) for b in task.budgets),
        trials=len(environment.results),
        seconds_per_suggestion=seconds,
    )


def _rows(
    name: str, studies: Sequence[Study], workloads: Sequence[str], names: Sequence[str], budgets: Sequence[float]
) -> Iterator[Row]:
    for method in names:
        for workload in (*([ALL] if len(workloads) > 1 else []), *workloads):
            chosen = [s for s in studies if s.method == method and workload in (ALL, s.workload)]
            for i, budget in enumerate(budgets):
                regrets = [s.regrets[i] for s in chosen]
                values = np.array([regret_or_miss(r) for r in regrets])
                yield {
                    "set": name,
                    "workload": workload,
                    "method": method,
                    "budget": budget,
                    "median": round(float(np.median(values)), 4),
                    "median_interval": _interval(values, chosen),
                    "p90": round(float(np.quantile(values, 0.9)), 4),
                    "missed": round(float(np.mean([r is None for r in regrets])), 4),
                    "seeds": len({s.seed for s in chosen}),
                }


def _interval(values: np.ndarray, studies: Sequence[Study]) -> list[float]:
    """90 % bootstrap interval of the median over seeds, for these workloads: each keeps its number of studies."""
    random = np.random.default_rng(0)
    groups = [np.flatnonzero([s.workload == w for s in studies]) for w in sorted({s.workload for s in studies})]
    medians = [np.median(values[np.concatenate([random.choice(g, len(g)) for g in groups])]) for _ in range(RESAMPLES)]
    return [round(float(q), 4) for q in np.quantile(medians, [0.05, 0.95])]


def _print_truths(console: Console, truths: Sequence[tuple[Case, Truth]]) -> None:
    table = Table(
        "workload", *(Column(n, justify="right") for n in TRUTH_COLUMNS), title="True optima", box=SIMPLE_HEAD
    )
    for case, known in truths:
        best = known.best
        row = (
            f"{known.least_steps:,.0f}",
            f"{known.critical_batch:,.0f}",
            f"{best.global_batch_size:,}",
            f"{best.learning_rate:.3g}",
            f"{known.curve[best.global_batch_size].steps:,.0f}",
            f"{known.unit:,.4g}",
            f"{known.misses:.1%}",
        )
        table.add_row(case.name, *row)
    console.print(table)


def _print_rows(console: Console, rows: Sequence[Row], studies: Sequence[Study]) -> None:
    methods_run, budgets = dict.fromkeys(r["method"] for r in rows), dict.fromkeys(r["budget"] for r in rows)
    for workload in dict.fromkeys(r["workload"] for r in rows):
        title = f"{workload}: median \\[90 % interval], 90th percentile, studies without a hit"
        table = Table("method", *(f"{b:g}" for b in budgets), title=title, box=SIMPLE_HEAD)
        for method in methods_run:
            table.add_row(method, *(_cell(r) for r in rows if (r["workload"], r["method"]) == (workload, method)))
        console.print(table)
    table = Table("method", "seconds per suggestion", "trials per study", title="Medians over studies", box=SIMPLE_HEAD)
    for method in methods_run:
        chosen = [s for s in studies if s.method == method]
        seconds, trials = np.median([(s.seconds_per_suggestion, s.trials) for s in chosen], axis=0)
        table.add_row(method, f"{seconds:.3f}", f"{trials:.0f}")
    console.print(table)


def _cell(row: Row) -> str:
    low, high = row["median_interval"]
    return f"{row['median']:.2f} \\[{low:.2f} {high:.2f}]\n{row['p90']:.2f}, {row['missed']:.0%}"


def _shown(results: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The same, with a progress line on stderr."""
    for done, result in enumerate(results, start=1):
        sys.stderr.write(f"\r{what}: {done} of {total}" + ("\n" if done == total else ""))
        sys.stderr.flush()
        yield result


def _yield_to_others() -> None:
    os.nice(5)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(sorted(float(n) for n in text.split(",")))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--set", choices=SETS, default="tuning", help="workloads that come with the benchmark")
    which.add_argument("--workloads", type=Path, metavar="FILE.toml", help="workloads of your own")
    parser.add_argument("--only", type=lambda t: t.split(","), metavar="NAME,…", help="some workloads of the file")
    parser.add_argument("--methods", type=lambda t: t.split(","), metavar="NAME,…", help="by default all that can run")
    parser.add_argument("--budgets", type=_numbers, default=BUDGETS, metavar="N,…", help="in full runs of the optimum")
    parser.add_argument("--seeds", type=int, default=20, help="studies of each workload by each method")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--first-guess", type=float, default=2.5, help="how far off the learning rate guessed is")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="rows instead of tables")
    return parser.parse_args()


if __name__ == "__main__":
    main()
