"""Saved views of MLflow's runs page, and links to what a study wrote.

MLflow keeps a shared view as a tag of the experiment. The format is internal to MLflow (seen to work in 3.17.2);
where it changes, the views are lost and nothing else.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalesearch.core.results import Objective
from scalesearch.tracking.content import cost_metric, final_metric

State = dict[str, Any]

_TAG_PREFIX = "mlflow.sharedViewState."
_DEFLATE = "deflate;"
_RUNS_TO_COMPARE = 100
_SECTION = "scalesearch-optimum"


@dataclass(frozen=True, kw_only=True)
class Links:
    """Where to look in MLflow's UI: each is what follows the server's address (`#/experiments/…`)."""

    trials: str
    charts: str
    study: str


def links(experiment_id: str, run_id: str, study: str) -> Links:
    """Links to the two saved views and to the study's run."""
    # Without the workflow type, MLflow shows its pages for language models around what is linked.
    workflow = "workflowType=machine_learning"
    runs = f"#/experiments/{experiment_id}/runs?{workflow}&viewStateShareKey="
    return Links(
        trials=f"{runs}{_key('trials', study)}",
        charts=f"{runs}{_key('charts', study)}&compareRunsMode=CHART",
        study=f"#/experiments/{experiment_id}/runs/{run_id}?{workflow}",
    )


def saved_views(study: str, objective: Objective, *, run_id: str, decays: int, now_ms: int) -> dict[str, str]:
    """The experiment tags that hold the views `Trials by cost to target` and `Optimum charts` of one study.

    Args:
        run_id: the study's run.
        decays: number of decay boundaries that the charts show.
        now_ms: milliseconds since the epoch.
    """
    views = {
        "trials": ("Trials by cost to target", _table(run_id, objective)),
        "charts": ("Optimum charts", _charts(run_id, objective, decays)),
    }
    return {
        _TAG_PREFIX + _key(kind, study): _encode(f"{title} · {study}", state, now_ms)
        for kind, (title, state) in views.items()
    }


def decode(tag_value: str) -> State:
    """The view in a tag: `name`, `createdAt`, `updatedAt` and the decoded `state`."""
    view: State = json.loads(tag_value)
    packed = view["state"].removeprefix(_DEFLATE)
    return {**view, "state": json.loads(zlib.decompress(base64.b64decode(packed)))}


def _encode(name: str, state: Mapping[str, Any], now_ms: int) -> str:
    packed = base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()
    return json.dumps(
        {"name": name, "createdAt": now_ms, "updatedAt": now_ms, "state": _DEFLATE + packed},
        ensure_ascii=False,
    )


def _key(kind: str, study: str) -> str:
    safe = "".join(c if c.isascii() and c.isalnum() else "-" for c in study)
    return f"scalesearch-{kind}-{safe}"


def _table(run_id: str, objective: Objective) -> State:
    widths = _column_widths(objective)
    return {
        "searchFilter": f"tags.`mlflow.parentRunId` = '{run_id}'",
        "orderByKey": f"metrics.`{cost_metric(objective)}`",
        "orderByAsc": objective.minimize != "metric" or objective.direction == "minimize",
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": list(widths),
        "columnOrder": list(widths),
        "columnWidths": widths,
        "runsHiddenMode": "SHOWALL",
        "viewMaximized": False,
        "runListHidden": False,
        "isAccordionReordered": False,
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "groupBy": None,
        "groupsExpanded": {},
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
    }


def _column_widths(objective: Objective) -> dict[str, int]:
    """Columns of the table in their order, with the pixels that their headings need."""
    measured = {
        "metrics.`result/seconds_to_target`": 170,
        "metrics.`result/steps_to_target`": 160,
        "metrics.`result/examples_to_target`": 180,
    }
    return {
        "tags.`scalesearch.outcome`": 150,
        "params.`global_batch_size`": 130,
        "params.`learning_rate`": 110,
        "params.`decay_boundaries`": 140,
        "params.`momentum`": 100,
        **({} if objective.minimize == "metric" else measured),
        f"metrics.`{final_metric(objective.metric)}`": 200,
        "metrics.`result/device_seconds`": 160,
        "tags.`scalesearch.reason`": 400,
    }


def _charts(run_id: str, objective: Objective, decays: int) -> State:
    cost = cost_metric(objective)
    height = cost if objective.minimize == "metric" else "result/log2_steps_to_target"
    boundaries = [f"decay_boundary_{i}" for i in range(1, decays + 1)]
    charts: list[State] = [
        {
            "type": "PARALLEL",
            "selectedParams": ["log2_global_batch_size", "log10_learning_rate", *boundaries],
            "selectedMetrics": [cost],
            "showAllRuns": False,
        },
        {
            "type": "SCATTER",
            "xaxis": _axis("log2_global_batch_size", "PARAM"),
            "yaxis": _axis(height, "METRIC"),
        },
        {
            "type": "CONTOUR",
            "xaxis": _axis("log2_global_batch_size", "PARAM"),
            "yaxis": _axis("log10_learning_rate", "PARAM"),
            "zaxis": _axis(cost, "METRIC"),
        },
        {
            "type": "LINE",
            "metricKey": objective.metric,
            "selectedMetricKeys": [objective.metric],
            "xAxisKey": "metric",
            "selectedXAxisMetricKey": "progress/examples",
            "xAxisScaleType": "linear",
            "scaleType": "linear",
            "lineSmoothness": 0,
            "useGlobalXaxisKey": False,
            "useGlobalLineSmoothing": True,
            "range": {},
        },
    ]
    section = {"uuid": _SECTION, "name": "Optimum", "display": True, "isReordered": False}
    return {
        **_table(run_id, objective),
        "isAccordionReordered": True,  # else MLflow sorts the sections of its own, such as `gradient`, before ours
        "compareRunSections": [{**section, "deleted": False, "isGenerated": False}],
        "compareRunCharts": [_chart(f"scalesearch-{i}", chart) for i, chart in enumerate(charts)],
    }


def _axis(key: str, kind: str) -> State:
    return {"key": key, "type": kind}


def _chart(uuid: str, chart: State) -> State:
    return {
        "uuid": uuid,
        "runsCountToCompare": _RUNS_TO_COMPARE,
        "metricSectionId": _SECTION,
        "deleted": False,
        "isGenerated": False,
        **chart,
    }
