"""A study in processes of its own, the faults that befall it, and what must hold once it is over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from scalesearch.core.results import Outcome, TrialResult
from scalesearch.search.database import is_missing
from scalesearch.search.records import result_from_json
from scalesearch.tracking.content import STATUS

from .workloads import metered_examples

TESTS = Path(__file__).parents[1]
PATIENCE_SECONDS = 600.0  # what takes seconds takes minutes on a machine with much else to do
DEFINITION = """
[workload]
name = "faults.workloads:metered"
options = { folder = "FOLDER", step_seconds = 0.01 }
optimizer = "workload"

[objective]
metric = "val/classification_error"
target = 0.12
minimize = "steps"

[search]
global_batch_size = { low = 16, high = 128 }
learning_rate = { low = 0.01, high = 0.5 }
momentum = 0.9

[baseline]
global_batch_size = 32
learning_rate = 0.02

[trial]
max_examples = "10 epochs"

[budget]
trials = 7
"""


def eventually(condition: Callable[[], Any], what: str, *, seconds: float = PATIENCE_SECONDS) -> Any:
    """The condition's value once it is true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.02)
    return value


@dataclass
class StudyFolder:
    """A folder with a definition; the same command in it begins and continues the study."""

    path: Path
    storage_url: str = ""
    tracking_uri: str = "sqlite:///mlflow.db"
    environment: Mapping[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    storage: RDBStorage | None = None

    def __post_init__(self) -> None:
        self.storage_url = self.storage_url or f"sqlite:///{self.path}/scalesearch.db"
        self.notes.mkdir()
        self.define()

    @property
    def notes(self) -> Path:
        """The folder of what is not the study's, beside its own as that one's disk may be full."""
        return self.path.with_name(f"{self.path.name}.notes")

    def define(self, *replacements: str) -> None:
        """Write the definition, with each `old, new` replaced."""
        text = DEFINITION.replace("FOLDER", str(self.notes))
        for old, new in zip(replacements[::2], replacements[1::2], strict=True):
            assert old in text
            text = text.replace(old, new)
        (self.path / "s.toml").write_text(text)

    # Processes

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "scalesearch", "study", "s.toml", "--json"]
        command += ["--storage", self.storage_url, "--tracking-uri", self.tracking_uri]
        path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, **self.environment}
        with (self.notes / "out").open("wb") as out, (self.notes / "err").open("ab") as err:
            driver = subprocess.Popen(command, cwd=self.path, env=environment, stdout=out, stderr=err)
        self.started.append(driver)
        return driver

    def finish(self, driver: subprocess.Popen[bytes], *, code: int = 0) -> dict[str, Any]:
        """Wait for the end; what the driver said on stdout."""
        assert driver.wait(PATIENCE_SECONDS) == code, self.err
        return json.loads((self.notes / "out").read_text()) if code == 0 else {}

    def run(self) -> dict[str, Any]:
        return self.finish(self.start())

    def kill(self) -> None:
        """End what a failed test has left running."""
        for driver in self.started:
            if driver.poll() is None:
                driver.kill()
                driver.wait()

    @property
    def err(self) -> str:
        return (self.notes / "err").read_text()

    def order(self, text: str) -> None:
        """Tell the workload what to do."""
        (self.notes / "orders.new").write_text(text)
        (self.notes / "orders.new").replace(self.notes / "orders")

    # What is stored

    def trials(self) -> list[optuna.trial.FrozenTrial]:
        if is_missing(self.storage_url):
            return []
        try:
            self.storage = self.storage or RDBStorage(self.storage_url, {"poolclass": NullPool})
            return optuna.load_study(study_name="s-r1", storage=self.storage).get_trials()
        except (KeyError, StorageInternalError, SQLAlchemyError):  # it is not there yet, or away
            return []

    def results(self) -> list[TrialResult]:
        return [result_from_json(t.number, t.user_attrs) for t in self.trials() if "result" in t.user_attrs]

    def states(self) -> set[str]:
        """Of the trials, in Optuna."""
        return {t.state.name for t in self.trials()}

    def runs(self) -> list[Any]:
        """Of the study and its trials, in MLflow."""
        experiment = self.client().get_experiment_by_name("faults.workloads:metered")
        if experiment is None:
            return []
        return list(self.client().search_runs([experiment.experiment_id]))

    def client(self) -> Any:
        from mlflow.tracking import MlflowClient

        return MlflowClient(self.tracking_uri.replace("sqlite:///", f"sqlite:///{self.path}/"))

    def statuses(self) -> set[str]:
        return {run.info.status for run in self.runs()}

    def reaches(self, driver: subprocess.Popen[bytes], number: int) -> None:
        """Wait until the study is in the midst of a trial."""
        self.until(
            driver,
            lambda: any("measurements" in t.user_attrs for t in self.trials() if t.number >= number),
            f"trial {number}",
        )

    def until(self, driver: subprocess.Popen[bytes], condition: Callable[[], Any], what: str) -> None:
        """Wait for something that happens while the driver runs."""

        def is_so() -> Any:
            assert driver.poll() is None, self.err
            return condition()

        eventually(is_so, what)


def workers_of(driver: subprocess.Popen[bytes]) -> list[int]:
    """The pid of a driver's worker, if it has one."""
    children = Path(f"/proc/{driver.pid}/task/{driver.pid}/children")
    found = []
    try:
        for pid in children.read_text().split():
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    except OSError:  # a process ended meanwhile
        pass
    return found


def worker_of(driver: subprocess.Popen[bytes]) -> int:
    """The pid of a driver's worker, once there is one."""
    return int(eventually(lambda: workers_of(driver), "a worker")[0])


def kill_9(*pids: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


# What must hold


def finished(results: list[TrialResult]) -> list[Any]:
    """What a study did, apart from interruptions and times: the same in every run of it."""
    return [
        (r.parameters, r.seed, r.outcome, [(m.step, dict(m.metrics)) for m in r.measurements])
        for r in results
        if r.outcome is not Outcome.INTERRUPTED
    ]


def check_books(study: StudyFolder, found: dict[str, Any], *, killed: int = 0) -> None:
    """Optuna: no trial lost, doubled or left running, and the ledger is what was really trained.

    Of each of `killed` trials an interval is unknown, which the ledger holds as a whole.
    """
    trials, results = study.trials(), study.results()
    assert {t.state.name for t in trials} <= {"COMPLETE", "PRUNED", "FAIL"}
    over = [r for r in results if r.outcome is not Outcome.INTERRUPTED]
    repeats = {t.number: t.user_attrs.get("repeats") for t in trials}

    def origin(number: int) -> int:
        return number if repeats[number] is None else origin(repeats[number])

    origins = [origin(r.number) for r in over]
    assert len(set(origins)) == len(origins), "a trial was run twice"
    cut = {origin(r.number) for r in results if r.outcome is Outcome.INTERRUPTED}
    assert cut <= set(origins), "an interrupted trial was lost"
    assert len(over) == found["budget"]["trials"]["spent"] == found["budget"]["trials"]["asked"]
    assert found["budget"]["examples"]["spent"] == sum(r.cost.examples for r in results)
    really = metered_examples(study.notes)
    largest = max(
        m.examples - before.examples
        for r in results
        for before, m in zip(r.measurements, r.measurements[1:], strict=False)
    )
    ledger = found["budget"]["examples"]["spent"]
    assert really <= ledger <= really + killed * 2 * largest, (really, ledger, largest)


def check_copy(study: StudyFolder) -> None:
    """MLflow: one run per trial that says how it ended, curves without holes or doubles, nothing left running."""
    runs = study.runs()
    [parent] = [r for r in runs if r.data.tags["scalesearch.kind"] == "study"]
    assert parent.info.status == "FINISHED"
    children = {int(r.data.tags["scalesearch.trial_number"]): r for r in runs if r is not parent}
    assert len(children) == len(runs) - 1, "two runs of one trial"
    results = study.results()
    assert sorted(children) == [r.number for r in results]
    for result in results:
        child = children[result.number]
        assert child.data.tags["scalesearch.outcome"] == result.outcome.value
        assert child.info.status == STATUS[result.outcome]
        assert child.info.start_time <= child.info.end_time
        history = study.client().get_metric_history(child.info.run_id, "progress/examples")
        assert sorted(p.step for p in history) == [m.step for m in result.measurements]


def check(study: StudyFolder, found: dict[str, Any], reference: Reference, *, killed: int = 0) -> None:
    """All of it, and that the study did what it does undisturbed."""
    check_books(study, found, killed=killed)
    if study.tracking_uri != "none":
        check_copy(study)
    assert finished(study.results()) == reference.finished
    assert recommendation(found) == reference.recommendation


def recommendation(found: dict[str, Any]) -> dict[str, Any]:
    """What is recommended, without the times and the numbers of trials."""
    return {k: v for k, v in found["recommendation"].items() if "seconds" not in k and k != "trial"}


@dataclass(frozen=True)
class Reference:
    """What the study does undisturbed."""

    finished: list[Any]
    recommendation: dict[str, Any]
