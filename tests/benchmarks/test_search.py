"""That the benchmark of the search runs, and that its accounts and its measure are right."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from search_environment import Environment, problem
from search_methods import ABLATED, METHODS, Method
from search_rows import Study, rows
from search_studies import AIMS, Task, choose, kept_study, run_study
from search_truth import truth
from search_workloads import load_cases, run_trial

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Outcome
from scalesearch.core.schedule import Constant

SCRIPT = Path(__file__).with_name("search.py")
WORKLOAD = """
[tiny]
target = 0.5
train_examples = 2000
spectrum = { dimension = 50, modes = 12 }
gradient_noise = { variance = 5.0 }
step_time = { saturation_batch = 32.0 }
study = { decays = 1 }
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("workloads") / "mine.toml"
    path.write_text(WORKLOAD)
    return path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_the_rows_of_two_methods(file: Path) -> None:
    names = ["random", "tpe+cap+stop"]
    chosen = ["--methods", ",".join(names), "--budgets", "1,40", "--seeds", "2"]
    done = run("--workloads", str(file), *chosen, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(r["set"], r["workload"], r["method"], r["budget"], r["seeds"]) for r in rows] == [
        ("mine", "tiny", method, budget, 2) for method in names for budget in (1.0, 40.0)
    ]
    for row in rows:
        assert -0.1 < row["median"] <= row["p90"] <= 3.0
        assert row["median_interval"][0] <= row["median"] <= row["median_interval"][1]
        assert 0.0 <= row["missed"] <= 1.0
    assert rows[3]["median"] < 3.0


@pytest.mark.parametrize(("aim", "method"), [("optimum", "random"), ("curve", "tpe+cap")])
def test_a_command_that_was_stopped_goes_on_with_the_studies_that_are_missing(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aim: str, method: str
) -> None:
    """It gives the rows of one that was not stopped."""
    methods = AIMS[aim].methods
    started: list[int] = []
    stops_at = [2]

    def search(environment: Environment) -> None:
        started.append(environment.problem.seed)
        if environment.problem.seed in stops_at:
            raise KeyboardInterrupt
        methods[method].run(environment)

    monkeypatch.setitem(AIMS, aim, replace(AIMS[aim], methods={"stopped": Method("", search)}))
    case, budgets = load_cases(file)[0], (0.5, 1.0)
    tasks = [Task(aim=aim, case=case, method="stopped", seed=s, budgets=budgets, guess_factor=2.5) for s in range(4)]

    def told(studies: list[Study]) -> list[dict[str, object]]:
        return list(rows("mine", studies, [case.name], ["stopped"], budgets))

    with pytest.raises(KeyboardInterrupt):
        [kept_study(task, folder=tmp_path) for task in tasks]
    stops_at.clear()
    continued = [kept_study(task, folder=tmp_path) for task in tasks]
    assert started == [0, 1, 2, 2, 3]
    assert [kept_study(task, folder=tmp_path) for task in tasks] == continued
    assert len(started) == 5
    assert told(continued) == told([run_study(task) for task in tasks])


def test_a_study_that_was_kept_is_not_taken_for_another(file: Path, tmp_path: Path) -> None:
    case = load_cases(file)[0]
    task = Task(aim="optimum", case=case, method="random", seed=0, budgets=(10.0,), guess_factor=2.5)
    others = [
        replace(task, case=replace(case, decays=0)),
        replace(task, method="tpe"),
        replace(task, seed=1),
        replace(task, budgets=(5.0,)),
        replace(task, guess_factor=25.0),
    ]
    studies = [kept_study(t, folder=tmp_path) for t in (task, *others)]
    assert [s.scores for s in studies] == [run_study(t).scores for t in (task, *others)]
    assert len(list(tmp_path.iterdir())) == 6


def test_the_rows_of_kept_studies(file: Path, tmp_path: Path) -> None:
    case, budgets = load_cases(file)[0], (1.0, 3.0)
    first, second = (
        Task(aim="optimum", case=case, method="random", seed=s, budgets=budgets, guess_factor=2.5) for s in range(2)
    )
    kept_study(first, folder=tmp_path)
    [path] = tmp_path.iterdir()
    assert path.name.startswith("tiny-random-0-")
    kept_at = path.stat().st_mtime_ns
    chosen = ["--methods", "random", "--budgets", "1,3", "--seeds", "2", "--keep", str(tmp_path)]
    done = run("--workloads", str(file), *chosen, "--json")
    assert done.returncode == 0, done.stderr
    undisturbed = [run_study(first), run_study(second)]
    assert json.loads(done.stdout) == list(rows("mine", undisturbed, ["tiny"], ["random"], budgets))
    assert path.stat().st_mtime_ns == kept_at
    assert len(list(tmp_path.iterdir())) == 2


def test_a_hit_at_the_cap_is_confirmed_by_one_more_evaluation(file: Path) -> None:
    quiet = file.with_name("quiet.toml")
    quiet.write_text(WORKLOAD + "run_noise = { speed = 0.0, level = 0.0, evaluation = 0.0 }")
    [case] = load_cases(quiet)
    parameters = Parameters(global_batch_size=32, schedule=Constant(learning_rate=0.5))
    per_step = case.cost_per_step(32)

    def capped_at(steps: int) -> tuple[Outcome, int]:
        result = run_trial(case, parameters, number=0, seed=0, max_cost=(steps + 0.5) * per_step)
        return result.outcome, result.measurements[-1].step

    whole = run_trial(case, parameters, number=0, seed=0, max_cost=1000 * per_step)
    assert whole.reached is not None
    before = math.ceil(whole.reached.steps) - 1
    assert capped_at(before) == (Outcome.CAPPED, before)
    assert capped_at(whole.measurements[-2].step) == (Outcome.REACHED, whole.measurements[-1].step)


def test_a_mistake_in_the_file_is_named(file: Path) -> None:
    wrong = file.with_name("wrong.toml")
    wrong.write_text(WORKLOAD.replace("spectrum", "spektrum"))
    done = run("--workloads", str(wrong))
    assert done.returncode != 0
    assert "wrong.toml: tiny: unknown key `spektrum`: did you mean `spectrum`?" in done.stderr


def test_an_unknown_method_is_refused() -> None:
    done = run("--methods", "magic")
    assert done.returncode != 0
    assert "unknown: magic; known with --aim optimum: random" in done.stderr


def test_the_help_names_every_method() -> None:
    done = run("--help")
    assert done.returncode == 0, done.stderr
    for name in (*METHODS, *ABLATED):
        assert f"  {name} " in done.stdout


def test_methods_that_cannot_run_here_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = replace(METHODS["cmaes"], module="a_package_that_is_not_there")
    aim = replace(AIMS["optimum"], methods={"random": METHODS["random"], "cmaes": absent})
    monkeypatch.setitem(AIMS, "optimum", aim)
    why = "as it needs the package `cmaes`"
    assert choose("optimum", named=None) == (["random"], {"cmaes": why})
    with pytest.raises(SystemExit, match=f"cannot run cmaes here, {why}"):
        choose("optimum", named=["random", "cmaes"])


def test_ablations_are_run_beside_the_whole() -> None:
    assert choose("optimum", named=None, ablations=True)[0] == ["scaling", *ABLATED]
    assert not set(ABLATED) & set(choose("optimum", named=None)[0])


def test_the_time_of_suggestions(file: Path) -> None:
    chosen = ["--suggestion-time", "--methods", "random,scaling", "--budgets", "4,8"]
    done = run("--workloads", str(file), *chosen, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(r["method"], r["budget"], r["seeds"]) for r in rows] == [
        (method, trials, 5) for method in ("random", "scaling") for trials in (4.0, 8.0)
    ]
    random, ours = ([r["median"] for r in rows if r["method"] == m] for m in ("random", "scaling"))
    assert 0.0 < max(random) < min(ours) < 5.0


def test_a_first_guess_that_is_ten_times_worse(file: Path) -> None:
    """Its learning rate is ten times as far off, to either side; the rest of the problem is the same."""
    case = load_cases(file)[0]
    for seed in range(6):
        near, far = (problem(case, truth(case), seed=seed, guess_factor=f) for f in (2.5, 25.0))
        assert replace(far, first_guess=near.first_guess) == near
        size = near.first_guess.global_batch_size
        best = truth(case).curve[size].parameters.learning_rate
        off = [math.log(p.first_guess.learning_rate / best) for p in (near, far)]
        allowed = near.space.learning_rate
        wanted = best * math.exp(off[0] * math.log(25.0) / math.log(2.5))
        assert off[1] == pytest.approx(math.log(allowed.clip(wanted) / best), abs=1e-6)
