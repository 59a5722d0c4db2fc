"""One study in MLflow: its experiment, its run, its trials' runs. Every method raises what MLflow raises."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Measurement, TrialResult
from scalesearch.errors import StudyError
from scalesearch.tracking import content
from scalesearch.tracking.clock import now_ms
from scalesearch.tracking.content import StudyRecord
from scalesearch.tracking.saved_views import Links, links, saved_views

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

_METRICS_PER_CALL = 1000  # limits of MLflow
_TEXTS_PER_CALL = 100
_TABLE = "trials.json"
_LEFT_RUNNING = "its process ended without saying how the trial ended"


@dataclass(frozen=True, kw_only=True)
class StudyEnd:
    """What MLflow is told at the end of a study; `figures` are PNG files by name."""

    note_markdown: str
    results: Sequence[TrialResult]
    figures: Mapping[str, bytes]
    best: TrialResult | None
    finished: bool
    summary_metrics: Mapping[str, float]
    summary_tags: Mapping[str, str]


@dataclass(frozen=True)
class _Child:
    run_id: str
    start_ms: int
    complete: bool


class StudyCopy:
    """The runs of one study. Opening it continues the run of the study of that name, if there is one."""

    def __init__(self, client: MlflowClient, record: StudyRecord, *, artifacts: Path | None, start_ms: int):
        self._client = client
        self._record = record
        self._experiment_id = _experiment(client, record.workload, artifacts)
        self._children: dict[int, _Child] = {}
        self._begun: set[int] = set()
        self._before: Run | None = None
        run = self._find_run()
        if run is None:
            self._run_id = self._new_run(start_ms)
        else:
            self._run_id = run.info.run_id
            self._before = run
            self._continue_run(run)

    @property
    def links(self) -> Links:
        """Where people look at this study."""
        return links(self._experiment_id, self._run_id, self._record.name)

    def start_trial(self, number: int, parameters: Parameters, *, seed: int, is_baseline: bool, start_ms: int) -> None:
        """Create the trial's run."""
        if number in self._children:
            # No number starts twice: the study's storage is a new one under the name of one that was deleted.
            self._start_over(start_ms)
        self._new_child(number, parameters, is_baseline=is_baseline, start_ms=start_ms)
        self._log_trial_params(number, parameters, seed=seed)

    def add_measurements(self, number: int, parameters: Parameters, measurements: Sequence[Measurement]) -> None:
        """Write evaluations of a started trial, in as few calls as possible."""
        child = self._children[number]
        entities = [
            (name, value, child.start_ms + round(1000 * m.elapsed_seconds), m.step)
            for m in measurements
            for name, value in content.measurement_metrics(m, parameters).items()
        ]
        self._log_metrics(child.run_id, entities)

    def has_run(self, number: int) -> bool:
        """Whether the trial has a run."""
        return number in self._children

    def is_complete(self, number: int) -> bool:
        """Whether the trial's run says how the trial ended."""
        child = self._children.get(number)
        return child is not None and child.complete

    def end_trial(self, result: TrialResult, *, end_ms: int) -> None:
        """Complete the trial's run: whatever of it is not there yet, the outcome, and last its status."""
        if self.is_complete(result.number):
            return
        if result.number not in self._children:
            start_ms = end_ms - round(1000 * result.seconds)
            self._new_child(result.number, result.parameters, is_baseline=result.is_baseline, start_ms=start_ms)
        self._log_trial_params(result.number, result.parameters, seed=result.seed)
        child = self._children[result.number]
        stored = {point.step for point in self._client.get_metric_history(child.run_id, "progress/examples")}
        missing = [m for m in result.measurements if m.step not in stored]
        self.add_measurements(result.number, result.parameters, missing)
        metrics = content.result_metrics(result).items()
        self._log_metrics(child.run_id, [(k, v, end_ms, 0) for k, v in metrics])  # at step 0: shown as bars
        self._log_texts(child.run_id, tags=content.outcome_tags(result))
        self._client.set_terminated(child.run_id, content.STATUS[result.outcome], end_time=end_ms)
        self._children[result.number] = _Child(child.run_id, child.start_ms, complete=True)

    def end(self, end: StudyEnd) -> None:
        """Complete the study's run. The trials' runs are complete by then, or cannot be written."""
        now = now_ms()
        best = end.best
        metrics = content.finite(end.summary_metrics) | (content.best_metrics(best) if best else {})
        tags = dict(end.summary_tags) | (content.best_tags(best) if best else {})
        tags |= {"mlflow.note.content": end.note_markdown}
        self._log_metrics(self._run_id, [(name, value, now, 0) for name, value in metrics.items()])
        self._log_texts(self._run_id, tags=tags)
        self._move_best(best)
        self._log_files(end)

    def settle(self, *, finished: bool) -> None:
        """End the runs that would look alive for ever, if there is no time for more."""
        for child in self._children.values():
            if not child.complete:
                self._close_left_running(child.run_id)
        self._client.set_terminated(self._run_id, "FINISHED" if finished else "KILLED", end_time=now_ms())

    def write_views(self, *, decays: int) -> None:
        """Write the saved views, in a format that is MLflow's own affair."""
        record = self._record
        views = saved_views(record.name, record.objective, run_id=self._run_id, decays=decays, now_ms=now_ms())
        for key, value in views.items():
            self._client.set_experiment_tag(self._experiment_id, key, value)

    # -- runs

    def _find_run(self) -> Run | None:
        runs = self._search(f"tags.`scalesearch.study` = {content.quoted(self._record.name)}")
        studies = [
            run
            for run in runs
            if run.data.tags.get("scalesearch.kind") == "study" and "scalesearch.superseded" not in run.data.tags
        ]
        return max(studies, key=lambda run: run.info.start_time, default=None)

    def _continue_run(self, run: Run) -> None:
        self._client.update_run(self._run_id, status="RUNNING")
        self._log_study_params(run.data.params)
        for child in self._search(f"tags.`mlflow.parentRunId` = '{self._run_id}'"):
            number = child.data.tags.get("scalesearch.trial_number", "")
            if not number.isdigit():
                continue
            ended = child.info.status != "RUNNING"
            if not ended:
                self._close_left_running(child.info.run_id)
            complete = ended and "scalesearch.outcome" in child.data.tags
            known = self._children.get(int(number))
            if known is None or not known.complete:
                self._children[int(number)] = _Child(child.info.run_id, child.info.start_time, complete)

    def _new_run(self, start_ms: int) -> str:
        tags = content.study_tags(self._record)
        self._run_id = self._client.create_run(self._experiment_id, start_time=start_ms, tags=tags).info.run_id
        self._log_study_params({})
        return self._run_id

    def _start_over(self, start_ms: int) -> None:
        self._client.set_tag(self._run_id, "scalesearch.superseded", "true")
        if self._before is not None:
            info = self._before.info
            self._client.set_terminated(self._run_id, info.status, end_time=info.end_time)
        self._children, self._begun = {}, set()
        self._run_id = self._new_run(start_ms)

    def _log_study_params(self, stored: Mapping[str, str]) -> None:
        params = content.study_params(self._record)
        new = {name: value for name, value in params.items() if name not in stored}
        # A param of MLflow cannot change; a budget can: a tag of the same name holds what is asked now.
        changed = {name: value for name, value in params.items() if stored.get(name, value) != value}
        self._log_texts(self._run_id, params=new, tags=changed)
        self._client.log_text(self._run_id, self._record.definition_toml, "definition.toml")

    def _new_child(self, number: int, parameters: Parameters, *, is_baseline: bool, start_ms: int) -> None:
        run = self._unanswered(number) if number in self._begun else None
        self._begun.add(number)
        if run is None:
            tags = content.trial_tags(
                self._record, number, parameters, parent_run_id=self._run_id, is_baseline=is_baseline
            )
            run = self._client.create_run(self._experiment_id, start_time=start_ms, tags=tags)
        self._children[number] = _Child(run.info.run_id, run.info.start_time, complete=False)

    def _unanswered(self, number: int) -> Run | None:
        """The trial's run if MLflow made it but went away before it could say so."""
        own = f"tags.`mlflow.parentRunId` = '{self._run_id}'"
        return next(self._search(f"{own} and tags.`scalesearch.trial_number` = '{number}'"), None)

    def _log_trial_params(self, number: int, parameters: Parameters, *, seed: int) -> None:
        params = content.trial_params(parameters, seed=seed, replicas=self._record.replicas)
        self._log_texts(self._children[number].run_id, params=params)

    def _close_left_running(self, run_id: str) -> None:
        self._client.set_tag(run_id, "scalesearch.reason", _LEFT_RUNNING)
        self._client.set_terminated(run_id, "KILLED", end_time=now_ms())

    def _move_best(self, best: TrialResult | None) -> None:
        best_run_id = None
        if best is not None and best.number in self._children:
            best_run_id = self._children[best.number].run_id
            self._client.set_tag(best_run_id, "scalesearch.best", "true")
        for run in self._search(f"tags.`mlflow.parentRunId` = '{self._run_id}' and tags.`scalesearch.best` = 'true'"):
            if run.info.run_id != best_run_id:
                self._client.delete_tag(run.info.run_id, "scalesearch.best")

    # -- calls

    def _search(self, query: str) -> Iterator[Run]:
        token: str | None = None
        while True:
            page = self._client.search_runs([self._experiment_id], query, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    def _log_metrics(self, run_id: str, points: Sequence[tuple[str, float, int, int]]) -> None:
        from mlflow.entities import Metric

        for chunk in _chunks(points, _METRICS_PER_CALL):
            self._client.log_batch(run_id, metrics=[Metric(*point) for point in chunk])

    def _log_texts(
        self, run_id: str, *, params: Mapping[str, str] | None = None, tags: Mapping[str, str] | None = None
    ) -> None:
        from mlflow.entities import Param, RunTag

        for chunk in _chunks(list((params or {}).items()), _TEXTS_PER_CALL):
            self._client.log_batch(run_id, params=[Param(*item) for item in chunk])
        for chunk in _chunks(list((tags or {}).items()), _TEXTS_PER_CALL):
            cut = [RunTag(name, content.tag_text(value)) for name, value in chunk]
            self._client.log_batch(run_id, tags=cut)

    def _log_files(self, end: StudyEnd) -> None:
        record = self._record
        table = content.trials_table(end.results, record.objective, replicas=record.replicas)
        self._client.log_text(self._run_id, table, _TABLE)
        # What log_table would write; log_table itself appends to a table that is there already.
        self._client.set_tag(self._run_id, "mlflow.loggedArtifacts", json.dumps([{"path": _TABLE, "type": "table"}]))
        with tempfile.TemporaryDirectory() as folder:
            for name, png in end.figures.items():
                (Path(folder) / f"{name}.png").write_bytes(png)
            self._client.log_artifacts(self._run_id, folder, "figures")


def _experiment(client: MlflowClient, workload: str, artifacts: Path | None) -> str:
    experiment = client.get_experiment_by_name(workload)
    if experiment is None:
        folder = re.sub(r"[^\w.-]+", "-", workload)
        location = None if artifacts is None else (artifacts.absolute() / folder).as_uri()
        return str(client.create_experiment(workload, artifact_location=location))
    if experiment.lifecycle_stage == "deleted":
        raise StudyError(
            f"the experiment {workload!r} is deleted in MLflow; bring it back with "
            f"`mlflow experiments restore --experiment-id {experiment.experiment_id}`"
        )
    return str(experiment.experiment_id)


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[i : i + size] for i in range(0, len(items), size))
