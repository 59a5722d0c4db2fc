"""Studies by any method, for each aim."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import search_curve
from pydantic import TypeAdapter
from search_environment import Environment, mean_regret, problem
from search_kept import kept
from search_methods import ABLATED, METHODS, Method
from search_rows import Score, Study
from search_truth import FULL_LENGTH, Truth, truth
from search_workloads import Case

STUDY = TypeAdapter(Study)
BUDGETS = (3.0, 5.0, 8.0, 10.0, 12.0, 20.0, 50.0, 100.0, 200.0)


@dataclass(frozen=True)
class Aim:
    """What is searched for: the methods that can, the budgets by default, how a study is run, and what is printed."""

    methods: Mapping[str, Method]
    budgets: tuple[float, ...]
    cell: str


AIMS = {
    "optimum": Aim(
        METHODS | ABLATED, BUDGETS, "regret, median \\[90 % interval]; 90th percentile, studies without a hit"
    ),
    "curve": Aim(
        search_curve.METHODS,
        search_curve.BUDGETS,
        "error, median over batch sizes and studies \\[90 % interval]; 90th percentile over studies, worst batch size, "
        "share of batch sizes within 10 %, batch sizes without a hit",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Task:
    """One study."""

    aim: str
    case: Case
    method: str
    seed: int
    budgets: tuple[float, ...]
    guess_factor: float


def choose(aim: str, *, named: Sequence[str] | None, ablations: bool = False) -> tuple[list[str], dict[str, str]]:
    """The methods to run, and why those cannot that were not named but would belong here."""
    known = AIMS[aim].methods
    chosen = list(named or (["scaling"] if ablations else [n for n in known if n not in ABLATED]))
    if ablations:
        chosen += [n for n in ABLATED if n not in chosen]
    if unknown := [n for n in chosen if n not in known]:
        raise SystemExit(f"unknown: {', '.join(unknown)}; known with --aim {aim}: {', '.join(known)}")
    missing = {n: f"as it needs the package `{known[n].package}`" for n in chosen if not known[n].can_run}
    if named and missing:
        raise SystemExit("; ".join(f"cannot run {name} here, {why}" for name, why in missing.items()))
    return [n for n in chosen if n not in missing], missing


def kept_study(task: Task, *, folder: Path) -> Study:
    """The study, from `folder` if it was run before, with the same workload, true optimum, method, seed and budgets."""
    made_from = {**vars(task), "case": repr(task.case), "truth": repr(truth(task.case))}
    digest = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:12]
    name = f"{task.case.name}-{task.method}-{task.seed}-{digest}.json".replace("/", "-")

    def find_out() -> str:
        return json.dumps({"made_from": made_from, "study": asdict(run_study(task))}, indent=1)

    return STUDY.validate_python(json.loads(kept(folder / name, find_out))["study"])


def run_study(task: Task) -> Study:
    """Search once with the largest budget, and look at what was recommended within each."""
    case, known = task.case, truth(task.case)
    if task.aim == "curve":
        environment = search_curve.curve_environment(
            case, known, seed=task.seed, guess_factor=task.guess_factor, budgets=task.budgets
        )
    else:
        posed = problem(case, known, seed=task.seed, guess_factor=task.guess_factor)
        full_cost = FULL_LENGTH * known.unit
        environment = Environment(case, posed, unit=known.unit, full_cost=full_cost, budgets=task.budgets)
    AIMS[task.aim].methods[task.method].run(environment)
    seconds = environment.seconds_per_suggestion()
    return Study(
        workload=case.name,
        method=task.method,
        seed=task.seed,
        scores=tuple(_score(task, known, environment.recommended(b)) for b in task.budgets),
        trials=len(environment.largest.results),
        seconds_per_suggestion=seconds,
    )


def _score(task: Task, known: Truth, recommended: Any) -> Score:
    if task.aim == "curve":
        return search_curve.score(task.case, known, recommended)
    return Score(value=mean_regret(task.case, recommended, unit=known.unit), missed=float(recommended is None))
