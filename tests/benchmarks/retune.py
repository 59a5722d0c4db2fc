"""How good is a retune, and how good are the usual rules? Simulated workloads on 2, 4, 8 and 16 devices.

    python tests/benchmarks/retune.py --set tuning --budgets 3,5 --pairs 16
    python tests/benchmarks/retune.py --set heldout --json

An old study of five runs near its optimum, at a sixteenth of the batch that is best on the new machine, is what is known.
Regret is the mean cost of what is recommended over fresh seeds, above that of the true optimum on the new machine and
relative to it; a run that misses counts as 3 (see search.py). Budgets are in full runs of that optimum. Against

    tpe          Optuna's TPE with the rules enqueued first, each trial capped at the best one's cost
    keep, linear, linear-steps, sqrt, sqrt-steps
                 what the rules recommend, without any run; boundaries are kept in examples, or in steps

Time to target is forecast from the old study alone, too, and the same parameters are run: how many 90 % intervals hold it?
Nothing may be tuned on the held-out set.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from retune_cases import Retune, retune
from rich.console import Console
from search_environment import Environment, mean_regret
from search_methods import optuna_trials, tpe_sampler
from search_rows import Score, Study, print_rows, rows
from search_scaling import search
from search_truth import FULL_LENGTH, MISS_REGRET
from search_workloads import SimulatedCase, load_cases, run_trial

from scalesearch.core.known_steps import KnownSteps
from scalesearch.core.parameters import Parameters
from scalesearch.core.retune import RetunePlanner, WarmStart

SETS = {name: Path(__file__).with_name(f"search_{name}.toml") for name in ("tuning", "heldout")}
REPLICAS = (2, 4, 8, 16)
RULES = {
    "keep": ("keep", "examples"),
    "linear": ("linear", "examples"),
    "linear-steps": ("linear", "steps"),
    "sqrt": ("sqrt", "examples"),
    "sqrt-steps": ("sqrt", "steps"),
}


def main() -> None:
    args = _arguments()
    cases = [c for c in load_cases(SETS[args.set]) if not args.only or c.name in args.only]
    pairs = pairs_of(cases, args.pairs, args.first_seed)
    studies: list[Study] = []
    covered: list[bool] = []
    for done, (case, seed, replicas) in enumerate(pairs, start=1):
        posed = retune(case, replicas, seed=seed)
        covered.append(forecast_holds(posed))
        for method in args.methods:
            studies.append(run(posed, method, seed, args.budgets))
            if method == "retune":
                scores = ", ".join(f"{s.value:.2f}" for s in studies[-1].scores)
                sys.stderr.write(f"{done} of {len(pairs)}: {case.name}, {replicas} replicas: {scores}\n")
                sys.stderr.flush()
    found = list(rows(args.set, studies, list(dict.fromkeys(s.workload for s in studies)), args.methods, args.budgets))
    if args.json:
        forecast = {"set": args.set, "method": "forecast", "covered": sum(covered), "cases": len(covered)}
        sys.stdout.write(json.dumps([*found, forecast], indent=1) + "\n")
    else:
        console = Console()
        print_rows(console, found, what="regret, median \\[90 % interval]; 90th percentile, studies without a hit")
        console.print(f"Forecasts whose 90 % interval holds what is measured: {sum(covered)} of {len(covered)}")


def pairs_of(cases: Sequence[SimulatedCase], count: int, first_seed: int) -> list[tuple[SimulatedCase, int, int]]:
    """Workload, seed and number of replicas: every workload before the next seed, with another number each time."""
    pairs = []
    for i in range(count):
        turn, which = divmod(i, len(cases))
        pairs.append((cases[which], first_seed + turn, REPLICAS[(which + turn) % len(REPLICAS)]))
    return pairs


def run(posed: Retune, method: str, seed: int, budgets: Sequence[float]) -> Study:
    """One retune by one method, and what it recommends within each budget."""
    known, case = posed.truth, posed.case
    environment = Environment(
        case, posed.problem, unit=known.unit, full_cost=FULL_LENGTH * known.unit, budgets=tuple(budgets)
    )
    if method in RULES:
        regret = mean_regret(case, _by_rule(posed, method), unit=known.unit)
        scores = [Score(value=regret, missed=float(regret >= MISS_REGRET))] * len(budgets)
        return _study(posed, method, seed, scores, environment)
    if method == "retune":
        _retune(environment, posed)
    else:
        _tpe(environment, posed)
    recommended = [environment.recommended(b) for b in budgets]
    scores = [Score(value=mean_regret(case, r, unit=known.unit), missed=float(r is None)) for r in recommended]
    return _study(posed, method, seed, scores, environment)


def forecast_holds(posed: Retune) -> bool:
    """Whether the interval that is forecast from the old study holds what the same parameters take on the new machine.

    Measured is the median of three runs; one that has not got there after four times the forecast never does.
    """
    case, problem = posed.case, posed.problem
    known = KnownSteps(
        results=posed.old, space=problem.space, objective=case.objective, max_examples=problem.max_examples
    ).steps_to_target()
    forecasts = [f for b in problem.space.batch_sizes.values() if b % posed.replicas == 0 and (f := known.at(b))]
    best = min(forecasts, key=lambda f: f.steps * case.step_seconds(f.parameters.global_batch_size))
    most = FULL_LENGTH * best.steps * case.step_seconds(best.parameters.global_batch_size)
    runs = [run_trial(case, best.parameters, number=0, seed=s, max_cost=most).reached for s in range(3)]
    measured = statistics.median(r.steps if r else math.inf for r in runs)
    return best.interval[0] <= measured <= best.interval[1]


def _study(posed: Retune, method: str, seed: int, scores: Sequence[Score], environment: Environment) -> Study:
    return Study(
        workload=posed.case.name,
        method=method,
        seed=seed,
        scores=tuple(scores),
        trials=len(environment.largest.results),
        seconds_per_suggestion=environment.seconds_per_suggestion(),
    )


def _by_rule(posed: Retune, method: str) -> Parameters:
    name, unit = RULES[method]
    matching = [r.parameters for r in posed.rules if r.name == name and r.boundaries_in == unit]
    return matching[0] if matching else next(r.parameters for r in posed.rules if r.name == name)


def _retune(environment: Environment, posed: Retune) -> None:
    problem = posed.problem
    planner = RetunePlanner(
        space=problem.space,
        objective=posed.case.objective,
        max_examples=problem.max_examples,
        start=WarmStart(
            rules=posed.rules, old=posed.old, adaptive=posed.case.workload.learning_rate.batch_exponent != 0
        ),
        step_seconds=posed.case.step_seconds,
        seed=problem.seed,
    )
    search(environment, planner, planner.recommend)


def _tpe(environment: Environment, posed: Retune) -> None:
    first, *others = dict.fromkeys(r.parameters for r in posed.rules)
    trials = optuna_trials(environment, sampler=tpe_sampler, caps=True, enqueued=(first, *others))
    while environment.has_budget:
        next(trials)


def _arguments() -> argparse.Namespace:
    methods = ["retune", "tpe", *RULES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=SETS, default="tuning")
    parser.add_argument("--only", type=lambda t: t.split(","), metavar="NAME,…", help="some workloads of the set")
    parser.add_argument("--methods", type=lambda t: t.split(","), default=methods, metavar="NAME,…")
    parser.add_argument("--budgets", type=lambda t: tuple(float(n) for n in t.split(",")), default=(3.0, 5.0))
    parser.add_argument(
        "--pairs", type=int, default=16, help="of a workload and a seed, each with a number of replicas"
    )
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="rows instead of tables")
    return parser.parse_args()


if __name__ == "__main__":
    main()
