"""How good is a search after how much compute? All methods on simulated workloads whose true optimum is known.

    python tests/benchmarks/search.py --set tuning --methods scaling,tpe --budgets 5,10,20 --seeds 20

Regret is the mean cost of the recommendation over fresh seeds, above that of the true optimum and relative to it; a run
that misses, or takes four times as long as the optimum, counts as 3, and so does a study that has nothing to recommend.
The true optimum is the best on average, with noise. Budgets are in full runs of it. A method is told the space (10
octaves of batch, 4 decades of learning rate, boundaries over a factor of 50), the length of a trial and a first guess
(see `search_environment.problem`).

    … --first-guess 25 --methods scaling --budgets 10          the learning rate guessed is ten times further off
    … --ablations --budgets 5,10,20                            our search without each of its parts
    … --aim curve --budgets 1,2,3,6                            steps to target at 11 batch sizes (see search_curve.py)
    … --aim curve --methods paper --budgets 60,110,200 --seeds 3
    … --suggestion-time                                        seconds per suggestion after 100 and 1,000 trials

    … --live fashion_mnist/mlp digits/mlp --methods scaling,tpe --budgets 5,10,20 --seeds 8

trains real workloads, those of search_live.toml, by our engine; a step costs its examples and a fixed number more. Their
true optima were found once, by `--make-truth NAME`.

With `--keep FOLDER`, each study is kept in a file once it is finished. A command that was stopped goes on with the
others; one with further methods, seeds or workloads runs only these. Use a new folder when a method has changed.

`--workloads FILE.toml` takes workloads of your own; search_tuning.toml shows the format. Nothing may be tuned on the
held-out set. What some methods need besides is installed by `pip install -e '.[benchmark]'`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import search_suggestion_time
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table
from search_live import live_cases
from search_live_truth import make_truth
from search_methods import listed
from search_rows import print_effort, print_rows, rows
from search_studies import AIMS, Task, choose, kept_study, run_study
from search_truth import Truth, truth
from search_workloads import Case, load_cases

SETS = {name: Path(__file__).with_name(f"search_{name}.toml") for name in ("tuning", "heldout")}
TRUTH_COLUMNS = ("S_min", "B_crit", "B_opt", "lr", "steps", "T*", "misses", "sd log cost")

TIMES = "seconds per suggestion after so many trials, median \\[90 % interval]; 90th percentile"

T = TypeVar("T")


def main() -> None:
    args = _arguments()
    if args.make_truth:
        make_truth(live_cases([args.make_truth])[0])
        return
    cases = _cases(args)
    names, missing = choose(args.aim, named=args.methods, ablations=args.ablations)
    console = Console(width=max(Console().width, 40 + 24 * len(args.budgets)), stderr=args.json)
    with multiprocessing.Pool(args.processes, initializer=_yield_to_others) as pool:
        truths = list(zip(cases, _shown(pool.imap(truth, cases), len(cases), "true optima"), strict=True))
        _print_truths(console, truths)
        if args.suggestion_time:
            pool.close()
            studies = list(search_suggestion_time.suggestion_times(*truths[0], names, args.budgets))
        else:
            tasks = _tasks(args, cases, names)
            study = partial(kept_study, folder=args.keep) if args.keep else run_study
            # In their order, as the intervals depend on it.
            studies = list(_shown(pool.imap(study, tasks), len(tasks), "studies"))
    set_name = "live" if args.live else args.workloads.stem if args.workloads else args.set
    workloads = list(dict.fromkeys(s.workload for s in studies))
    found = list(rows(set_name, studies, workloads, names, args.budgets))
    if args.json:
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
    elif args.suggestion_time:
        print_rows(console, found, what=TIMES, digits=4)
    else:
        print_rows(console, found, what=AIMS[args.aim].cell)
        print_effort(console, studies)
    for name, why in missing.items():
        console.print(f"not run: {name}, {why}", highlight=False)


def _cases(args: argparse.Namespace) -> list[Case]:
    if args.live:
        return [*live_cases(args.live)]
    return [c for c in load_cases(args.workloads or SETS[args.set]) if not args.only or c.name in args.only]


def _tasks(args: argparse.Namespace, cases: Sequence[Case], names: Sequence[str]) -> list[Task]:
    return [
        Task(aim=args.aim, case=c, method=m, seed=s, budgets=args.budgets, guess_factor=args.first_guess)
        for s in range(args.first_seed, args.first_seed + args.seeds)
        for c in cases
        for m in names
    ]


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
            f"{known.log_cost_sd:.2f}",
        )
        table.add_row(case.name, *row)
    console.print(table)


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


def _names(text: str) -> list[str]:
    return text.split(",")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=listed(), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--set", choices=SETS, default="tuning", help="workloads that come with the benchmark")
    which.add_argument("--live", nargs="+", metavar="NAME", help="real workloads of search_live.toml")
    which.add_argument("--make-truth", metavar="NAME", help="find the true optimum of a real workload: minutes")
    which.add_argument("--workloads", type=Path, metavar="FILE.toml", help="workloads of your own")
    parser.add_argument("--only", type=_names, metavar="NAME,…", help="some workloads of the file")
    parser.add_argument("--aim", choices=AIMS, default="optimum", help="the optimum, or the curve over batch sizes")
    parser.add_argument("--methods", type=_names, metavar="NAME,…", help="by default all that can run")
    parser.add_argument("--ablations", action="store_true", help="our search, and without each of its parts")
    parser.add_argument("--budgets", type=_numbers, metavar="N,…", help="in full runs of the optimum")
    parser.add_argument("--seeds", type=int, default=20, help="studies of each workload by each method")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--first-guess", type=float, default=2.5, help="how far off the learning rate guessed is")
    parser.add_argument("--suggestion-time", action="store_true", help="on the first workload, one method at a time")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where finished studies are kept, and found again")
    parser.add_argument("--processes", type=int, help="by default 2, or 1 for real workloads")
    parser.add_argument("--json", action="store_true", help="rows instead of tables")
    args = parser.parse_args()
    args.processes = args.processes or (1 if args.live else 2)
    if args.keep and args.suggestion_time:
        parser.error("--keep does not go with --suggestion-time, which measures anew")
    if args.aim != "optimum" and (args.suggestion_time or args.ablations):
        parser.error("--suggestion-time and --ablations are of --aim optimum")
    if args.aim != "optimum" and args.live:
        parser.error("--live is of --aim optimum: the error of a curve is measured without noise")
    if args.budgets is None:
        args.budgets = search_suggestion_time.TRIALS if args.suggestion_time else AIMS[args.aim].budgets
    return args


if __name__ == "__main__":
    main()
