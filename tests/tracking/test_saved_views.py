from __future__ import annotations

import dataclasses
import json

import pytest

from scalesearch.core.results import Objective
from scalesearch.tracking.saved_views import decode, saved_views

from .trials import OBJECTIVE

CHART = {"runsCountToCompare": 100, "metricSectionId": "scalesearch-optimum", "deleted": False, "isGenerated": False}


def views(objective: Objective = OBJECTIVE, *, study: str = "digits_mlp-r2") -> tuple[dict, dict]:
    tags = saved_views(study, objective, run_id="abc", decays=1, now_ms=1234)
    table, charts = tags.values()
    return decode(table), decode(charts)


def test_a_tag_holds_name_times_and_a_packed_state() -> None:
    tags = saved_views("digits_mlp-r2", OBJECTIVE, run_id="abc", decays=1, now_ms=1234)
    assert list(tags) == [
        "mlflow.sharedViewState.scalesearch-trials-digits-mlp-r2",
        "mlflow.sharedViewState.scalesearch-charts-digits-mlp-r2",
    ]
    for value in tags.values():
        view = json.loads(value)
        assert set(view) == {"name", "createdAt", "updatedAt", "state"}
        assert view["createdAt"] == view["updatedAt"] == 1234
        assert view["state"].startswith("deflate;")
        assert len(value) < 5000  # what a tag of an experiment holds


def test_the_table_lists_the_trials_of_one_study_cheapest_first() -> None:
    table, _ = views()
    state = table["state"]
    assert table["name"] == "Trials by cost to target · digits_mlp-r2"
    assert state["searchFilter"] == "tags.`mlflow.parentRunId` = 'abc'"
    assert (state["orderByKey"], state["orderByAsc"]) == ("metrics.`result/seconds_to_target`", True)
    assert state["selectedColumns"] == state["columnOrder"] == list(state["columnWidths"])
    assert state["selectedColumns"] == [
        "tags.`scalesearch.outcome`",
        "params.`global_batch_size`",
        "params.`learning_rate`",
        "params.`decay_boundaries`",
        "params.`momentum`",
        "metrics.`result/seconds_to_target`",
        "metrics.`result/steps_to_target`",
        "metrics.`result/examples_to_target`",
        "metrics.`result/final_classification_error`",
        "metrics.`result/device_seconds`",
        "tags.`scalesearch.reason`",
    ]


def test_the_charts_show_the_optimum_from_four_sides() -> None:
    _, charts = views()
    state = charts["state"]
    assert charts["name"] == "Optimum charts · digits_mlp-r2"
    assert [section["name"] for section in state["compareRunSections"]] == ["Optimum"]
    assert state["isAccordionReordered"]  # ours stays in front of the sections that MLflow makes of what was logged
    batch = {"key": "log2_global_batch_size", "type": "PARAM"}
    parallel, scatter, contour, line = state["compareRunCharts"]
    assert parallel == CHART | {
        "uuid": "scalesearch-0",
        "type": "PARALLEL",
        "selectedParams": ["log2_global_batch_size", "log10_learning_rate", "decay_boundary_1"],
        "selectedMetrics": ["result/seconds_to_target"],
        "showAllRuns": False,
    }
    assert scatter == CHART | {
        "uuid": "scalesearch-1",
        "type": "SCATTER",
        "xaxis": batch,
        "yaxis": {"key": "result/log2_steps_to_target", "type": "METRIC"},
    }
    assert contour == CHART | {
        "uuid": "scalesearch-2",
        "type": "CONTOUR",
        "xaxis": batch,
        "yaxis": {"key": "log10_learning_rate", "type": "PARAM"},
        "zaxis": {"key": "result/seconds_to_target", "type": "METRIC"},
    }
    assert (line["type"], line["selectedMetricKeys"]) == ("LINE", ["val/classification_error"])
    assert (line["xAxisKey"], line["selectedXAxisMetricKey"]) == ("metric", "progress/examples")


@pytest.mark.parametrize(("direction", "ascending"), [("minimize", True), ("maximize", False)])
def test_a_study_without_a_target_is_ordered_by_its_metric(direction: str, ascending: bool) -> None:
    objective = dataclasses.replace(OBJECTIVE, direction=direction, target=None, minimize="metric")
    table, charts = views(objective)
    state = table["state"]
    assert state["orderByKey"] == "metrics.`result/final_classification_error`"
    assert state["orderByAsc"] is ascending
    assert "to_target" not in json.dumps([table, charts])


def test_any_study_name_makes_a_key() -> None:
    tags = saved_views("größe/1 'x'", OBJECTIVE, run_id="abc", decays=0, now_ms=1)
    assert all(key.isascii() and " " not in key and "/" not in key for key in tags)
