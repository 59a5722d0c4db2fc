from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from scalesearch.core.results import Outcome, TrialResult
from scalesearch.tracking import MlflowTracker, NullTracker
from scalesearch.tracking.saved_views import decode

from .conftest import CLOSE_SECONDS
from .trials import study_record, trial_result

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")

OpenTracker = Callable[..., MlflowTracker]


def tell_trial(tracker: MlflowTracker, result: TrialResult) -> None:
    tracker.trial_started(result.number, result.parameters, seed=result.seed, is_baseline=result.is_baseline)
    for measurement in result.measurements:
        tracker.trial_measured(result.number, measurement)
    tracker.trial_ended(result)


def tell_end(
    tracker: MlflowTracker,
    results: Sequence[TrialResult],
    *,
    best: TrialResult | None = None,
    finished: bool = True,
    note: str = "**Optimum**",
) -> None:
    tracker.study_ended(
        note_markdown=note,
        results=results,
        figures={"steps_to_target": Figure()},
        best=best,
        finished=finished,
        summary_metrics={"budget.examples_spent": 1e6, "nowhere": math.inf},
        summary_tags={"stopped_by": "the budget"},
    )
    tracker.close(CLOSE_SECONDS)


class Stored:
    """What MLflow holds of a workload."""

    def __init__(self, uri: str, workload: str) -> None:
        from mlflow.tracking import MlflowClient

        self.client = MlflowClient(tracking_uri=uri)
        self.experiment = self.client.get_experiment_by_name(workload)
        assert self.experiment is not None
        self.runs = list(self.client.search_runs([self.experiment.experiment_id]))

    def study(self) -> Any:
        (run,) = [run for run in self.runs if run.data.tags["scalesearch.kind"] == "study"]
        return run

    def trial(self, number: int) -> Any:
        (run,) = [r for r in self.runs if r.data.tags.get("scalesearch.trial_number") == str(number)]
        return run

    def steps(self, number: int, metric: str = "progress/examples") -> list[int]:
        history = self.client.get_metric_history(self.trial(number).info.run_id, metric)
        return sorted(point.step for point in history)


def test_a_trial_is_one_run_with_its_parameters_measurements_and_results(
    open_tracker: OpenTracker, tracking_uri: str, workload: str
) -> None:
    tracker = open_tracker()
    result = trial_result(3, is_baseline=True)
    tracker.study_started(study_record(workload))
    tell_trial(tracker, result)
    tell_end(tracker, [result], best=result)

    assert tracker.problems() == ()
    stored = Stored(tracking_uri, workload)
    trial = stored.trial(3)
    assert trial.info.run_name == "trial 3 · baseline · batch 64 · lr 0.25"
    assert trial.data.tags["mlflow.parentRunId"] == stored.study().info.run_id
    assert trial.data.tags["scalesearch.baseline"] == "true"
    assert trial.data.params == {
        "global_batch_size": "64",
        "per_replica_batch_size": "32",
        "accumulation": "1",
        "learning_rate": "0.25",
        "effective_learning_rate": "2.5",
        "log2_global_batch_size": "6",
        "log10_learning_rate": "-0.60206",
        "momentum": "0.9",
        "schedule": "piecewise",
        "decay_factor": "0.1",
        "decay_boundaries": "[1000, 4000]",
        "decay_boundary_1": "1000",
        "decay_boundary_2": "4000",
        "seed": "103",
    }
    assert stored.steps(3) == [0, 10, 20]
    assert stored.steps(3, "val/classification_error") == [0, 10, 20]
    assert stored.steps(3, "train/loss") == [10, 20]  # NaN at step 0 is left out
    assert stored.steps(3, "progress/learning_rate") == [0, 10, 20]
    assert result.reached is not None
    assert trial.data.metrics["result/steps_to_target"] == pytest.approx(result.reached.steps, rel=1e-5)
    assert trial.data.metrics["result/seconds_to_target"] == pytest.approx(result.reached.seconds, rel=1e-5)
    assert trial.data.metrics["result/device_seconds"] == 6.0
    assert trial.data.metrics["result/final_classification_error"] == 0.05


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Outcome.REACHED, "FINISHED"),
        (Outcome.EXHAUSTED, "FINISHED"),
        (Outcome.CAPPED, "KILLED"),
        (Outcome.INTERRUPTED, "KILLED"),
        (Outcome.DIVERGED, "FAILED"),
        (Outcome.OUT_OF_MEMORY, "FAILED"),
        (Outcome.CRASHED, "FAILED"),
    ],
)
def test_status_and_reason_by_outcome(
    open_tracker: OpenTracker, tracking_uri: str, workload: str, outcome: Outcome, status: str
) -> None:
    tracker = open_tracker()
    tracker.study_started(study_record(workload))
    tell_trial(tracker, trial_result(0, outcome, reason="because of the weather"))
    tracker.close(CLOSE_SECONDS)

    trial = Stored(tracking_uri, workload).trial(0)
    assert trial.info.status == status
    assert trial.data.tags["scalesearch.outcome"] == outcome.value
    assert trial.data.tags["scalesearch.reason"] == "because of the weather"
    assert ("result/seconds_to_target" in trial.data.metrics) == (outcome is Outcome.REACHED)


def test_values_that_are_no_numbers_are_left_out(open_tracker: OpenTracker, tracking_uri: str, workload: str) -> None:
    tracker = open_tracker()
    result = trial_result(0, Outcome.DIVERGED, errors=[0.9, math.inf, math.nan])
    tracker.study_started(study_record(workload))
    tell_trial(tracker, result)
    tell_end(tracker, [result])

    stored = Stored(tracking_uri, workload)
    assert stored.steps(0) == [0, 10, 20]
    assert stored.steps(0, "val/classification_error") == [0]
    values = [value for run in stored.runs for value in run.data.metrics.values()]
    assert all(math.isfinite(value) and value < 1e300 for value in values)
    assert "nowhere" not in stored.study().data.metrics


def test_the_study_run_holds_note_table_figures_definition_and_optimum(
    open_tracker: OpenTracker, tracking_uri: str, workload: str, folder: Path
) -> None:
    tracker = open_tracker()
    results = [trial_result(0, is_baseline=True), trial_result(1, Outcome.OUT_OF_MEMORY, errors=[])]
    tracker.study_started(study_record(workload, **{"budget.examples": "1e6"}))
    for result in results:
        tell_trial(tracker, result)
    tell_end(tracker, results, best=results[0], note="**Optimum**: 64")

    stored = Stored(tracking_uri, workload)
    study = stored.study()
    assert study.info.status == "FINISHED"
    assert study.data.tags["mlflow.note.content"] == "**Optimum**: 64"
    assert study.data.tags["stopped_by"] == "the budget"
    assert study.data.tags["best.global_batch_size"] == "64"
    assert study.data.tags["best.decay_boundaries"] == "[1000, 4000]"
    assert study.data.metrics["best.learning_rate"] == 0.25
    assert study.data.metrics["budget.examples_spent"] == 1e6
    assert study.data.params["budget.examples"] == "1e6"
    assert stored.experiment.artifact_location.startswith("file:///")
    assert (folder / "mlartifacts").is_dir()
    local = Path(stored.client.download_artifacts(study.info.run_id, ""))
    assert (local / "definition.toml").read_text() == '[workload]\nname = "digits/mlp"\n'
    assert (local / "figures/steps_to_target.png").read_bytes().startswith(b"\x89PNG")
    content = json.loads((local / "trials.json").read_text())
    assert [row[:3] for row in content["data"]] == [[0, "REACHED", 64], [1, "OUT_OF_MEMORY", 64]]
    assert json.loads(study.data.tags["mlflow.loggedArtifacts"]) == [{"path": "trials.json", "type": "table"}]


def test_the_best_mark_moves(open_tracker: OpenTracker, tracking_uri: str, workload: str) -> None:
    results = [trial_result(0), trial_result(1)]
    for best in results:  # the second session goes on with the first one's runs
        tracker = open_tracker()
        tracker.study_started(study_record(workload))
        tell_end(tracker, results, best=best)

    stored = Stored(tracking_uri, workload)
    assert "scalesearch.best" not in stored.trial(0).data.tags
    assert stored.trial(1).data.tags["scalesearch.best"] == "true"


def test_continuing_a_study_doubles_nothing(open_tracker: OpenTracker, tracking_uri: str, workload: str) -> None:
    first = trial_result(0)
    tracker = open_tracker()
    tracker.study_started(study_record(workload, **{"budget.examples": "1e6"}))
    tell_trial(tracker, first)
    tell_end(tracker, [first], finished=False)
    assert Stored(tracking_uri, workload).study().info.status == "KILLED"

    second = trial_result(1, Outcome.CAPPED)
    tracker = open_tracker()
    tracker.study_started(study_record(workload, **{"budget.examples": "2e6"}))
    tracker.trial_ended(first)
    tell_trial(tracker, second)
    tell_end(tracker, [first, second])

    assert tracker.problems() == ()
    stored = Stored(tracking_uri, workload)
    assert len(stored.runs) == 3
    assert stored.study().info.status == "FINISHED"
    assert stored.steps(0) == [0, 10, 20]
    assert stored.study().data.params["budget.examples"] == "1e6"
    assert stored.study().data.tags["budget.examples"] == "2e6"


def test_a_new_study_under_the_name_of_a_deleted_one_gets_a_run_of_its_own(
    open_tracker: OpenTracker, tracking_uri: str, workload: str
) -> None:
    for learning_rate in (0.25, 0.5):
        tracker = open_tracker()
        result = trial_result(0, learning_rate=learning_rate)
        tracker.study_started(study_record(workload))
        tell_trial(tracker, result)
        tell_end(tracker, [result])

    stored = Stored(tracking_uri, workload)
    studies = {r.info.run_id: r for r in stored.runs if r.data.tags["scalesearch.kind"] == "study"}
    assert sorted("scalesearch.superseded" in r.data.tags for r in studies.values()) == [False, True]
    rates = {
        "scalesearch.superseded" in studies[r.data.tags["mlflow.parentRunId"]].data.tags: r.data.params
        for r in stored.runs
        if r.data.tags["scalesearch.kind"] == "trial"
    }
    assert (rates[True]["learning_rate"], rates[False]["learning_rate"]) == ("0.25", "0.5")


KILLED_STUDY = """
import os, signal, sys, time
from pathlib import Path
from scalesearch.tracking import MlflowTracker
from tests.tracking.trials import study_record, trial_result

uri, artifacts, workload = sys.argv[1:]
tracker = MlflowTracker(tracking_uri=uri, artifact_folder=Path(artifacts))
tracker.study_started(study_record(workload))
for number in (0, 1):
    result = trial_result(number)
    tracker.trial_started(number, result.parameters, seed=result.seed, is_baseline=False)
tracker.trial_measured(0, trial_result(0).measurements[0])
from mlflow.tracking import MlflowClient
client = MlflowClient(tracking_uri=uri)
while True:
    experiment = client.get_experiment_by_name(workload)
    runs = client.search_runs([experiment.experiment_id]) if experiment else []
    if len(runs) == 3 and any("progress/examples" in run.data.metrics for run in runs):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
"""


def test_runs_left_by_a_killed_process_are_repaired_or_completed(
    open_tracker: OpenTracker, tracking_uri: str, workload: str, folder: Path
) -> None:
    root = Path(__file__).parents[2]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_STUDY, tracking_uri, str(folder / "mlartifacts"), workload],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        timeout=120,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    left = Stored(tracking_uri, workload)
    assert {run.info.status for run in left.runs} == {"RUNNING"}

    tracker = open_tracker()
    tracker.study_started(study_record(workload))
    tracker.trial_ended(trial_result(0, Outcome.INTERRUPTED))  # the storage knows it; trial 1 it does not
    tell_end(tracker, [trial_result(0, Outcome.INTERRUPTED)])

    stored = Stored(tracking_uri, workload)
    assert len(stored.runs) == 3
    assert stored.study().info.status == "FINISHED"
    assert stored.trial(0).data.tags["scalesearch.outcome"] == "INTERRUPTED"
    assert stored.steps(0) == [0, 10]
    assert stored.trial(1).info.status == "KILLED"
    assert "scalesearch.outcome" not in stored.trial(1).data.tags
    assert "process ended" in stored.trial(1).data.tags["scalesearch.reason"]


def test_the_end_of_the_study_writes_trials_that_were_never_told(
    open_tracker: OpenTracker, tracking_uri: str, workload: str
) -> None:
    tracker = open_tracker()
    tracker.study_started(study_record(workload))
    tell_end(tracker, [trial_result(0), trial_result(1, Outcome.DIVERGED)])

    stored = Stored(tracking_uri, workload)
    assert stored.steps(0) == [0, 10, 20]
    assert stored.trial(0).info.end_time - stored.trial(0).info.start_time == 3000
    assert stored.trial(1).info.status == "FAILED"


def test_a_study_that_stops_without_a_word_leaves_nothing_running(
    open_tracker: OpenTracker, tracking_uri: str, workload: str
) -> None:
    tracker = open_tracker()
    result = trial_result(0)
    tracker.study_started(study_record(workload))
    tracker.trial_started(0, result.parameters, seed=1, is_baseline=False)
    tracker.close(CLOSE_SECONDS)

    assert {run.info.status for run in Stored(tracking_uri, workload).runs} == {"KILLED"}


def test_measurements_are_written_in_batches(
    open_tracker: OpenTracker, tracking_uri: str, workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    written: list[int] = []
    log_batch = MlflowClient.log_batch

    def counted(client: Any, run_id: str, metrics: Sequence[Any] = (), **others: Any) -> Any:
        written.append(len(metrics))
        return log_batch(client, run_id, metrics=metrics, **others)

    monkeypatch.setattr(MlflowClient, "log_batch", counted)
    tracker = open_tracker()
    result = trial_result(0, Outcome.EXHAUSTED, errors=[0.5] * 400)
    tracker.study_started(study_record(workload))
    tell_trial(tracker, result)
    tracker.close(CLOSE_SECONDS)

    assert Stored(tracking_uri, workload).steps(0) == list(range(0, 4000, 10))
    assert sum(written) > 400 * 6
    assert len([count for count in written if count]) <= 6  # 2800 values, at most 1000 a call, and the results
    assert max(written) <= 1000


def test_what_mlflow_did_not_take_at_first_is_written_later(
    open_tracker: OpenTracker, tracking_uri: str, workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    create_run = MlflowClient.create_run
    failures = iter([None, OSError("disk full")])  # the study's run is created, the trial's is not at first

    def failing(client: Any, *args: Any, **others: Any) -> Any:
        if error := next(failures, None):
            raise error
        return create_run(client, *args, **others)

    monkeypatch.setattr(MlflowClient, "create_run", failing)
    tracker = open_tracker()
    results = [trial_result(0), trial_result(1)]
    tracker.study_started(study_record(workload))
    for result in results:
        tell_trial(tracker, result)
    tell_end(tracker, results, best=results[0])

    assert tracker.problems() == ()
    stored = Stored(tracking_uri, workload)
    assert stored.steps(0) == stored.steps(1) == [0, 10, 20]


def test_params_that_mlflow_did_not_take_at_the_start_are_written_at_the_end(
    open_tracker: OpenTracker, tracking_uri: str, workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    log_batch = MlflowClient.log_batch
    failures = iter([OSError("disk full")])

    def failing(client: Any, run_id: str, *, params: Sequence[Any] = (), **others: Any) -> Any:
        if any(param.key == "global_batch_size" for param in params) and (error := next(failures, None)):
            raise error
        return log_batch(client, run_id, params=params, **others)

    monkeypatch.setattr(MlflowClient, "log_batch", failing)
    tracker = open_tracker()
    result = trial_result(0)
    tracker.study_started(study_record(workload))
    tell_trial(tracker, result)
    tell_end(tracker, [result])

    assert next(failures, None) is None
    assert tracker.problems() == ()
    assert Stored(tracking_uri, workload).trial(0).data.params["global_batch_size"] == "64"


def test_a_trial_that_mlflow_refuses_is_named_and_stops_no_other(
    open_tracker: OpenTracker, tracking_uri: str, workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    create_run = MlflowClient.create_run

    def failing(client: Any, *args: Any, **others: Any) -> Any:
        if others["tags"].get("scalesearch.trial_number") == "1":
            raise OSError("disk full")
        return create_run(client, *args, **others)

    monkeypatch.setattr(MlflowClient, "create_run", failing)
    tracker = open_tracker()
    results = [trial_result(number) for number in range(3)]
    tracker.study_started(study_record(workload))
    for result in results:
        tell_trial(tracker, result)
    tell_end(tracker, results, best=results[1])

    assert tracker.problems() == (f"MLflow at {tracking_uri} lacks trial 1: disk full",)
    stored = Stored(tracking_uri, workload)
    assert stored.trial(2).info.status == "FINISHED"
    assert stored.study().info.status == "FINISHED"


def test_a_server_that_is_away_costs_nothing_but_the_copy(
    open_tracker: OpenTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    tracker = open_tracker("http://127.0.0.1:9")
    result = trial_result(0)
    tracker.study_started(study_record("digits/mlp"))
    tell_trial(tracker, result)
    started = time.monotonic()
    tell_end(tracker, [result])

    assert time.monotonic() - started < 30
    assert tracker.links is None
    said = " ".join(tracker.problems())
    assert "http://127.0.0.1:9" in said
    assert "the study" in said
    assert "trial 0" in said


def test_nothing_waits_for_a_slow_mlflow_but_close_and_not_for_long(
    open_tracker: OpenTracker, workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    may_go_on = threading.Event()
    create_run = MlflowClient.create_run

    def slow(client: Any, *args: Any, **others: Any) -> Any:
        may_go_on.wait(60)
        return create_run(client, *args, **others)

    monkeypatch.setattr(MlflowClient, "create_run", slow)
    tracker = open_tracker()
    started = time.monotonic()
    tracker.study_started(study_record(workload))
    tell_trial(tracker, trial_result(0))
    tracker.close(timeout=0.2)
    assert time.monotonic() - started < 2
    assert any("trial 0" in problem for problem in tracker.problems())

    may_go_on.set()
    tracker.close(CLOSE_SECONDS)
    assert tracker.problems() == ()


def test_a_deleted_experiment_is_reported_with_its_remedy(
    open_tracker: OpenTracker, tracking_uri: str, workload: str
) -> None:
    tracker = open_tracker()
    tracker.study_started(study_record(workload))
    tracker.close(CLOSE_SECONDS)
    stored = Stored(tracking_uri, workload)
    stored.client.delete_experiment(stored.experiment.experiment_id)

    tracker = open_tracker()
    tracker.study_started(study_record(workload))
    tracker.close(CLOSE_SECONDS)
    (problem,) = tracker.problems()
    assert "mlflow experiments restore" in problem


def test_the_links_lead_to_the_saved_views(open_tracker: OpenTracker, tracking_uri: str, workload: str) -> None:
    tracker = open_tracker()
    result = trial_result(0)
    tracker.study_started(study_record(workload))
    tell_trial(tracker, result)
    tell_end(tracker, [result])

    stored = Stored(tracking_uri, workload)
    links = tracker.links
    assert links is not None
    for link, name in ((links.trials, "Trials by cost to target"), (links.charts, "Optimum charts")):
        key = link.split("viewStateShareKey=")[1].split("&")[0]
        view = decode(stored.experiment.tags[f"mlflow.sharedViewState.{key}"])
        assert view["name"] == f"{name} · digits_mlp-r2"
        assert stored.study().info.run_id in view["state"]["searchFilter"]
        assert "decay_boundary_2" in json.dumps(view["state"]) or name != "Optimum charts"
    assert stored.study().info.run_id in links.study


def test_nothing_is_printed(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from scalesearch.tracking import MlflowTracker\n"
        "from tests.tracking.trials import study_record, trial_result\n"
        "t = MlflowTracker(tracking_uri=f'sqlite:///{sys.argv[1]}/new.db', artifact_folder=Path(sys.argv[1]))\n"
        "assert 'mlflow' not in sys.modules\n"
        "t.study_started(study_record('a/b')); t.trial_ended(trial_result(0))\n"
        "t.study_ended(note_markdown='', results=[], figures={}, best=None, finished=True,"
        " summary_metrics={}, summary_tags={})\n"
        "t.close(90); assert not t.problems(), t.problems()\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=root,
        env={k: v for k, v in os.environ.items() if not k.startswith("MLFLOW")} | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_null_tracker_takes_everything() -> None:
    tracker = NullTracker()
    result = trial_result(0)
    tracker.study_started(study_record("digits/mlp"))
    tracker.trial_started(0, result.parameters, seed=1, is_baseline=False)
    tracker.trial_measured(0, result.measurements[0])
    tracker.trial_ended(result)
    tracker.study_ended(
        note_markdown="", results=[], figures={}, best=None, finished=True, summary_metrics={}, summary_tags={}
    )
    tracker.close(1.0)
    assert (tracker.links, tracker.problems()) == (None, ())
