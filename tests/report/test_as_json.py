from __future__ import annotations

import json
import math
from typing import Any

import pytest

from scalesearch.core.budget import Budget, Spent
from scalesearch.core.recommend import Findings
from scalesearch.core.results import Outcome
from scalesearch.core.schedule import Constant, Linear
from scalesearch.report.as_json import study_json

from .trials import AT_THE_END, METRIC, along_a_curve, found, of_curve, trial

CANDIDATE = {
    "global_batch_size", "per_replica_batch_size", "accumulation", "replicas", "learning_rate", "momentum", "schedule",
    "decay_boundaries_examples", "decay_factor", "end_factor", "cost", "steps_to_target", "examples_to_target",
    "seconds_to_target", "steps_to_first_crossing", "examples_to_first_crossing", "seconds_to_first_crossing",
    "test_metrics", "runs", "missed", "interval", "trial",
}  # fmt: skip
SPENT = Spent(examples=12_345, epochs=0.5, device_seconds=60.0, wall_clock_seconds=35.5, trials=4)


def as_json(findings: Findings) -> dict[str, Any]:
    """The object after a trip through strict JSON text."""
    result = study_json(
        findings,
        name="quick-r2",
        workload="fashion_mnist/mlp",
        replicas=2,
        budget=Budget(examples=5e6, trials=40),
        spent=SPENT,
    )
    loaded: dict[str, Any] = json.loads(json.dumps(result, allow_nan=False))
    return loaded


def test_the_keys() -> None:
    result = as_json(found(*along_a_curve(100, 60, [8, 32, 128, 512]), trial(9, is_baseline=True, batch=16)))
    assert result.keys() == {
        "study", "workload", "aim", "objective", "recommendation", "baseline", "batch_sizes", "curve", "budget", "outcomes",
        "edges",
        "caveats",
        "gradient_noise_scale",
        "seconds_are",
    }  # fmt: skip
    assert (result["study"], result["workload"]) == ("quick-r2", "fashion_mnist/mlp")
    assert result["objective"] == {
        "metric": METRIC, "direction": "minimize", "target": 0.1, "minimize": "seconds", "crossing": "first",
    }  # fmt: skip
    assert result["recommendation"].keys() == result["baseline"].keys() == CANDIDATE
    assert all(
        row.keys() == {
            "global_batch_size", "steps_to_target", "examples_to_target", "seconds_to_target",
            "steps_to_first_crossing", "trials", "reached", "steps_interval", "leader", "most_examples", "out_of_memory",
        }
        for row in result["batch_sizes"]
    )  # fmt: skip
    assert [row["global_batch_size"] for row in result["batch_sizes"]] == [8, 16, 32, 128, 512]
    assert result["curve"].keys() == {
        "s_min", "b_crit", "sharpness", "residual", "perfect_scaling_up_to", "maximal_data_parallelism_from",
    }  # fmt: skip
    assert result["aim"] == "optimum"
    assert result["outcomes"] == {"REACHED": 5}


def test_the_budget_has_each_unit() -> None:
    assert as_json(found())["budget"] == {
        "examples": {"asked": 5e6, "spent": 12_345},
        "epochs": {"asked": None, "spent": 0.5},
        "device_seconds": {"asked": None, "spent": 60.0},
        "wall_clock_seconds": {"asked": None, "spent": 35.5},
        "trials": {"asked": 40, "spent": 4},
    }


def test_the_recommendation_is_in_natural_units() -> None:
    recommendation = as_json(found(trial(3, test_metrics={"test/classification_error": 0.06})))["recommendation"]
    assert recommendation == {
        "global_batch_size": 64,
        "per_replica_batch_size": 32,
        "accumulation": 1,
        "replicas": 2,
        "learning_rate": 0.28,
        "momentum": 0.9,
        "schedule": "piecewise",
        "decay_boundaries_examples": [132_000],
        "decay_factor": 0.1,
        "end_factor": None,
        "cost": pytest.approx(1.8889, rel=1e-4),
        "steps_to_target": pytest.approx(18.889, rel=1e-4),
        "examples_to_target": pytest.approx(18.889 * 64, rel=1e-4),
        "seconds_to_target": pytest.approx(1.8889, rel=1e-4),
        "steps_to_first_crossing": pytest.approx(18.889, rel=1e-4),
        "examples_to_first_crossing": pytest.approx(18.889 * 64, rel=1e-4),
        "seconds_to_first_crossing": pytest.approx(1.8889, rel=1e-4),
        "test_metrics": {"test/classification_error": 0.06},
        "runs": 1,
        "missed": 0,
        "interval": None,
        "trial": 3,
    }


def test_other_schedules() -> None:
    linear = Linear(learning_rate=0.3, decay_examples=1000, end_factor=0.01)
    recommendation = as_json(found(trial(0, schedule=linear)))["recommendation"]
    assert recommendation["schedule"] == "linear"
    assert recommendation["decay_boundaries_examples"] == [1000]
    assert (recommendation["decay_factor"], recommendation["end_factor"]) == (None, 0.01)
    constant = as_json(found(trial(0, schedule=Constant(learning_rate=0.3))))["recommendation"]
    assert constant["decay_boundaries_examples"] == []


def test_a_first_crossing_that_did_not_count_is_there() -> None:
    result = as_json(found(trial(0, Outcome.EXHAUSTED, (0.9, 0.5, 0.0, 0.5), is_baseline=True)))
    assert (result["baseline"]["steps_to_target"], result["baseline"]["steps_to_first_crossing"]) == (None, 18.0)
    [row] = result["batch_sizes"]
    assert (row["steps_to_target"], row["steps_to_first_crossing"]) == (None, 18.0)


def test_nothing_reached_is_null() -> None:
    result = as_json(found(trial(0, Outcome.EXHAUSTED, is_baseline=True), trial(1, Outcome.CRASHED, [])))
    assert result["recommendation"] is None
    assert result["curve"] is None
    assert result["baseline"]["steps_to_target"] is None
    assert result["baseline"]["cost"] is None
    assert result["batch_sizes"] == [
        {
            "global_batch_size": 64,
            "steps_to_target": None,
            "examples_to_target": None,
            "seconds_to_target": None,
            "steps_to_first_crossing": None,
            "trials": 2,
            "reached": 0,
            "steps_interval": None,
            "leader": None,
            "most_examples": 1280,
            "out_of_memory": False,
        }
    ]
    assert result["outcomes"] == {"EXHAUSTED": 1, "CRASHED": 1}


def test_a_curve_has_a_leader_with_an_interval_at_each_batch_size() -> None:
    result = as_json(of_curve())
    assert result["aim"] == "curve"
    by_size = {row["global_batch_size"]: row for row in result["batch_sizes"]}
    assert by_size[64]["steps_to_target"] == 20.0
    assert by_size[64]["steps_interval"] == [18.0, 23.0]
    assert by_size[64]["leader"].keys() == CANDIDATE
    assert (by_size[256]["leader"], by_size[256]["out_of_memory"]) == (None, True)
    assert (by_size[512]["steps_to_target"], by_size[512]["trials"]) == (None, 0)


def test_no_trials_at_all() -> None:
    result = as_json(found())
    assert (result["recommendation"], result["baseline"]) == (None, None)
    assert (result["batch_sizes"], result["outcomes"], result["caveats"]) == ([], {}, [])


def test_the_metric_of_a_study_without_a_target_is_its_cost() -> None:
    result = as_json(found(trial(0, Outcome.EXHAUSTED, (0.9, 0.3)), objective=AT_THE_END))
    assert result["objective"]["target"] is None
    assert result["recommendation"]["cost"] == 0.3
    assert result["recommendation"]["steps_to_target"] is None


def test_what_is_not_finite_is_null() -> None:
    wild = {"test/loss": math.nan, "test/classification_error": 0.5, "test/margin": math.inf}
    result = as_json(found(trial(0, test_metrics=wild), trial(1, Outcome.DIVERGED, (0.9, math.nan), is_baseline=True)))
    assert result["recommendation"]["test_metrics"] == {
        "test/loss": None,
        "test/classification_error": 0.5,
        "test/margin": None,
    }
