from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from scalesearch.core.noise_scale import GradientNoise
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Outcome
from scalesearch.core.schedule import Constant, Linear
from scalesearch.tracking import content

from .trials import OBJECTIVE, study_record, trial_result


def test_params_of_a_linear_schedule_and_of_a_constant_one() -> None:
    linear = Parameters(global_batch_size=96, schedule=Linear(learning_rate=1.0, decay_examples=500, end_factor=0.01))
    params = content.trial_params(linear, seed=1, replicas=3)
    assert (params["schedule"], params["decay_factor"], params["decay_boundary_1"]) == ("linear", "0.01", "500")
    assert (params["per_replica_batch_size"], params["log2_global_batch_size"]) == ("32", "6.58496")
    assert "momentum" not in params
    constant = Parameters(global_batch_size=8, schedule=Constant(learning_rate=1.0))
    params = content.trial_params(constant, seed=1, replicas=1)
    assert params["decay_boundaries"] == "[]"
    assert "decay_factor" not in params


def test_a_target_that_is_met_before_the_first_step_has_no_logarithm() -> None:
    metrics = content.result_metrics(trial_result(0, errors=[0.01]))
    assert metrics["result/steps_to_target"] == 0.0
    assert "result/log2_steps_to_target" not in metrics


def test_a_first_crossing_is_told_even_where_the_target_does_not_count_as_reached() -> None:
    metrics = content.result_metrics(trial_result(0, Outcome.EXHAUSTED, errors=[0.9, 0.5, 0.0, 0.5]))
    assert not any(name.endswith("_to_target") for name in metrics)
    assert metrics["result/steps_to_first_crossing"] == pytest.approx(18.0, rel=1e-5)
    assert metrics["result/examples_to_first_crossing"] == pytest.approx(18.0 * 64, rel=1e-5)
    assert metrics["result/seconds_to_first_crossing"] == pytest.approx(1.8, rel=1e-5)
    assert "result/steps_to_first_crossing" not in content.result_metrics(trial_result(0, Outcome.EXHAUSTED))


def test_the_gradient_noise_is_told_at_its_evaluations_and_as_a_scale_with_its_interval() -> None:
    result = trial_result(errors=[0.9] * 9)
    noise = GradientNoise(trace=100.0, squared_norm=0.5, samples=2)
    measured = tuple(replace(m, noise=noise) for m in result.measurements)
    of_one = content.measurement_metrics(measured[0], result.parameters)
    assert (of_one["gradient/trace"], of_one["gradient/squared_norm"]) == (100.0, 0.5)
    metrics = content.result_metrics(replace(result, measurements=measured))
    name = "result/gradient_noise_scale"
    assert [metrics[name + end] for end in ("", "_low", "_high")] == [200.0] * 3
    bare = content.result_metrics(result), content.measurement_metrics(result.measurements[0], result.parameters)
    assert not any("gradient" in key for metrics in bare for key in metrics)


def test_the_table_is_json_without_nan() -> None:
    results = [trial_result(0), trial_result(1, Outcome.DIVERGED, errors=[0.9, math.nan])]
    table = json.loads(content.trials_table(results, OBJECTIVE, replicas=2))
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert rows[0]["decay_boundaries"] == "1,000, 4,000"
    assert rows[0]["val/classification_error"] == 0.05
    assert rows[1]["val/classification_error"] is None
    assert rows[1]["seconds_to_target"] is None


def test_names_that_mlflow_refuses_are_made_acceptable() -> None:
    assert content.finite({"val/f1@0.5 [macro]": 1.0}) == {"val/f1_0.5 _macro_": 1.0}


def test_long_texts_are_cut_to_what_mlflow_holds() -> None:
    assert len(content.tag_text("x" * 9000)) == 8000
    record = study_record("a/b", classes="y" * 9000)
    assert len(content.study_params(record)["classes"]) == 6000


@pytest.mark.parametrize(
    ("items", "text"),
    [("a", "a"), ("ab", "a and b"), ("abc", "a, b and c"), ("abcdefgh", "a, b, c, d, e and 3 more")],
)
def test_names(items: str, text: str) -> None:
    assert content.names(list(items)) == text
