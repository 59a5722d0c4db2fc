"""That the curve benchmark measures what it says."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from search_curve import METHODS, curve_environment, curve_problem, score, sizes_of
from search_environment import Environment
from search_truth import Truth, truth
from search_workloads import SimulatedCase, load_cases
from test_search import SCRIPT, WORKLOAD

from scalesearch.core.results import TrialResult
from scalesearch.core.schedule import Piecewise


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("workloads") / "mine.toml"
    path.write_text(WORKLOAD)
    return path


@pytest.fixture(scope="module")
def case(file: Path) -> SimulatedCase:
    return load_cases(file)[0]


@pytest.fixture(scope="module")
def known(case: SimulatedCase) -> Truth:
    return truth(case)


def environment(case: SimulatedCase, known: Truth, *budgets: float, seed: int = 0) -> Environment:
    return curve_environment(case, known, seed=seed, guess_factor=2.5, budgets=budgets)


def test_the_optima_are_without_error(case: SimulatedCase, known: Truth) -> None:
    assert len(sizes_of(known)) == 11
    found = score(case, known, {size: known.curve[size].parameters for size in sizes_of(known)})
    assert found.value == pytest.approx(0.0, abs=1e-6)
    assert found.more == {"worst": pytest.approx(0.0, abs=1e-6), "share_within_10_percent": 1.0}
    assert found.missed == 0.0


def test_a_batch_size_without_a_recommendation_is_a_miss(case: SimulatedCase, known: Truth) -> None:
    found = score(case, known, {size: known.curve[size].parameters for size in sizes_of(known)[1:]})
    assert found.value == pytest.approx(0.0, abs=1e-6)
    assert found.more["worst"] == 3.0
    assert found.more["share_within_10_percent"] == pytest.approx(10 / 11)
    assert found.missed == pytest.approx(1 / 11)
    few = score(case, known, {size: known.curve[size].parameters for size in sizes_of(known)[:5]})
    assert few.value == score(case, known, None).value == 3.0


def test_the_error_is_that_of_the_steps(case: SimulatedCase, known: Truth) -> None:
    size = sizes_of(known)[3]
    optimum = known.curve[size]
    schedule = optimum.parameters.schedule
    assert isinstance(schedule, Piecewise)
    slower = replace(schedule, learning_rate=schedule.learning_rate / 2)
    errors = {}
    for rate, changed in (("half", slower), ("none", replace(schedule, learning_rate=1e-9))):
        parameters = replace(optimum.parameters, schedule=changed)
        others = {s: known.curve[s].parameters for s in sizes_of(known)}
        errors[rate] = score(case, known, {**others, size: parameters}).more["worst"]
    assert 0.1 < errors["half"] < 3.0
    assert errors["none"] == 3.0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_is_asked_can_be_found(case: SimulatedCase, known: Truth, seed: int) -> None:
    """The optimum of every batch size lies in the space and within the lengths of trials that are told."""
    posed = curve_problem(case, known, seed=seed, guess_factor=2.5)
    assert posed.space.batch_sizes.values() == sizes_of(known)
    for size in sizes_of(known):
        optimum = known.curve[size]
        assert posed.lengths[size] == pytest.approx(2.0 * optimum.examples, rel=0.01)
        assert 1.4 * optimum.examples < posed.max_examples
        nearest = posed.space.nearest(optimum.parameters)
        assert nearest.learning_rate == pytest.approx(optimum.parameters.learning_rate)
        assert nearest.schedule.boundaries == pytest.approx(optimum.parameters.schedule.boundaries, rel=0.01)


def test_the_baselines_search_each_batch_size_in_turn(case: SimulatedCase, known: Truth) -> None:
    studied = environment(case, known, 12.0)
    METHODS["paper"].run(studied)
    sizes = sizes_of(known)
    assert [r.parameters.global_batch_size for r in studied.results[:22]] == [*sizes, *sizes]
    paid = sum(r.measurements[-1].examples for r in studied.results)
    assert studied.spent == pytest.approx(paid / sum(known.curve[s].examples for s in sizes))
    assert 12.0 <= studied.spent < 13.0
    for result in studied.results:
        length = 2.0 * known.curve[result.parameters.global_batch_size].examples
        assert result.measurements[-1].examples <= 1.06 * length + 2 * result.parameters.global_batch_size
    best: dict[int, TrialResult] = {}
    for r in studied.results:
        size = r.parameters.global_batch_size
        if r.reached and (size not in best or r.reached.steps < best[size].reached.steps):
            best[size] = r
    assert studied.recommended(1e9) == {size: r.parameters for size, r in best.items()}


def test_a_cap_is_the_best_at_its_batch_size(case: SimulatedCase, known: Truth) -> None:
    studied = environment(case, known, 15.0)
    METHODS["tpe+cap"].run(studied)
    best: dict[int, float] = {}
    capped = 0
    for r in studied.results:
        size = r.parameters.global_batch_size
        if size in best:
            capped += 1
            assert r.measurements[-1].examples <= 1.06 * best[size] + 2 * size
        if r.reached:
            best[size] = min(r.reached.examples, best.get(size, math.inf))
    assert capped > 20


def test_the_rows_of_our_curve(file: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--workloads", str(file), "--aim", "curve", "--methods", "scaling,tpe+cap"]
    done = subprocess.run([*command, "--budgets", "2", "--seeds", "1", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ours, tpe = json.loads(done.stdout)
    keys = {"set", "workload", "method", "budget", "median", "median_interval", "p90", "missed", "seeds"}
    assert keys | {"worst", "share_within_10_percent"} == ours.keys() == tpe.keys()
    assert [(r["workload"], r["method"], r["budget"], r["seeds"]) for r in (ours, tpe)] == [
        ("tiny", "scaling", 2.0, 1),
        ("tiny", "tpe+cap", 2.0, 1),
    ]
    assert ours["median"] < 0.3 < tpe["median"]
