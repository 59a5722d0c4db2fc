"""The study command as people run it: real processes, a real worker, Optuna and MLflow in SQLite files."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from click.testing import CliRunner
from optuna.trial import FrozenTrial

from scalesearch.cli import main
from scalesearch.core.results import Outcome
from scalesearch.tracking.content import STATUS

from .conftest import DIGITS, WriteDefinition

CANDIDATE = {
    "global_batch_size",
    "per_replica_batch_size",
    "replicas",
    "learning_rate",
    "momentum",
    "decay_boundaries_examples",
    "decay_factor",
    "steps_to_target",
    "examples_to_target",
    "seconds_to_target",
    "runs",
}


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "scalesearch", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_hears_ctrl_c,
    )


def _hears_ctrl_c() -> None:
    """In a job that a shell has put into the background, it is ignored, and so it is by what that job starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def finish(process: subprocess.Popen[str], *, timeout: float = 120.0) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        _, err = process.communicate()
        raise AssertionError(f"still running after {timeout:g} s:\n{err}") from None
    return process.returncode, out, err


def trials(folder: Path) -> list[FrozenTrial]:
    return optuna.load_study(study_name="digits-r1", storage=f"sqlite:///{folder}/scalesearch.db").get_trials()


def runs(folder: Path) -> tuple[Any, list[Any]]:
    """The study's run in MLflow and those of its trials, in order of their number."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("digits/mlp")
    found = list(client.search_runs([experiment.experiment_id]))
    [parent] = [r for r in found if "mlflow.parentRunId" not in r.data.tags]
    children = [r for r in found if r.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    return parent, sorted(children, key=lambda r: int(r.data.tags["scalesearch.trial_number"]))


# A study to its end


class Done:
    """A study that was run to its end, with all that it left."""

    def __init__(self, folder: Path) -> None:
        (folder / "digits.toml").write_text(DIGITS)
        self.folder = folder
        self.code, self.out, self.err = finish(start("study", "digits.toml", "--json", cwd=folder))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return Done(tmp_path_factory.mktemp("done"))


def test_stdout_is_one_object_and_nothing_else(done: Done) -> None:
    assert done.code == 0, done.err
    [line] = done.out.splitlines()
    found = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (found["study"], found["workload"]) == ("digits-r1", "digits/mlp")
    assert found["objective"]["metric"] == "val/classification_error"
    assert found["objective"]["target"] == 0.15
    assert found["recommendation"].keys() >= CANDIDATE
    assert found["baseline"].keys() >= CANDIDATE
    assert (found["baseline"]["global_batch_size"], found["baseline"]["learning_rate"]) == (32, 0.02)
    assert found["recommendation"]["steps_to_target"] <= found["baseline"]["steps_to_target"]
    assert found["recommendation"]["per_replica_batch_size"] == found["recommendation"]["global_batch_size"]
    sizes = found["batch_sizes"]
    assert all(s.keys() >= {"global_batch_size", "steps_to_target", "examples_to_target", "trials"} for s in sizes)
    assert {s["global_batch_size"] for s in sizes} <= {16, 32, 64}
    assert sum(s["trials"] for s in sizes) == 8
    assert found["curve"] is None, "three batch sizes are too few for a curve"
    assert found["budget"]["trials"] == {"asked": 8, "spent": 8}
    assert found["budget"]["examples"]["spent"] > 0
    assert sum(found["outcomes"].values()) == 8


def test_progress_goes_to_stderr_one_line_per_trial(done: Done) -> None:
    lines = done.err.splitlines()
    assert sum("baseline 0 " in line for line in lines) == 1
    assert sum("   trial " in line for line in lines) == 7
    assert any("the budget is spent (number of trials)" in line for line in lines)
    assert not any("Traceback" in line or "Warning" in line for line in lines), done.err


def test_everything_is_in_optuna(done: Done) -> None:
    found, stored = json.loads(done.out), trials(done.folder)
    assert len(stored) == 8
    assert all(t.state.is_finished() for t in stored)
    outcomes = [t.user_attrs["result"]["outcome"] for t in stored]
    assert {o: outcomes.count(o) for o in outcomes} == found["outcomes"]
    assert all(t.user_attrs["measurements"]["step"][0] == 0 for t in stored)
    spent = sum(t.user_attrs["result"]["cost"]["examples"] for t in stored)
    assert spent == found["budget"]["examples"]["spent"]
    best = optuna.load_study(study_name="digits-r1", storage=f"sqlite:///{done.folder}/scalesearch.db").best_trial
    assert best.number == found["recommendation"]["trial"]
    assert best.value == found["recommendation"]["steps_to_target"]


def test_everything_is_in_mlflow(done: Done) -> None:
    parent, children = runs(done.folder)
    stored = trials(done.folder)
    assert parent.info.status == "FINISHED"
    assert [int(c.data.tags["scalesearch.trial_number"]) for c in children] == list(range(8))
    assert [c.data.tags["scalesearch.outcome"] for c in children] == [t.user_attrs["result"]["outcome"] for t in stored]
    for child in children:
        assert "val/classification_error" in child.data.metrics
        assert child.info.status == STATUS[Outcome(child.data.tags["scalesearch.outcome"])]


def test_the_report_says_the_same_as_the_study(done: Done, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(done.folder)
    runner = CliRunner()
    assert json.loads(runner.invoke(main, ["report", "digits-r1", "--json"]).stdout) == json.loads(done.out)
    text = runner.invoke(main, ["report", "digits-r1"])
    assert text.exit_code == 0
    assert "Recommendation for 1 replica" in text.stdout
    [row] = json.loads(runner.invoke(main, ["studies", "--json"]).stdout)
    assert row["study"] == "digits-r1"
    listed = runner.invoke(main, ["studies"]).stdout
    assert "digits-r1" in listed
    assert "digits/mlp" in listed


def test_a_larger_budget_continues_and_a_changed_definition_does_not(done: Done) -> None:
    code, out, err = finish(start("study", "digits.toml", "--budget", "9trials", "--json", cwd=done.folder))
    assert code == 0, err
    assert "baseline" not in err
    assert json.loads(out)["budget"]["trials"] == {"asked": 9, "spent": 9}
    assert len(trials(done.folder)) == 9
    parent, children = runs(done.folder)
    assert (parent.info.status, len(children)) == ("FINISHED", 9)

    (done.folder / "digits.toml").write_text(DIGITS.replace("target = 0.15", "target = 0.16"))
    code, out, err = finish(start("study", "digits.toml", "--json", cwd=done.folder))
    assert (code, out) == (2, "")
    assert "objective.target: was 0.15, now 0.16" in err
    assert len(trials(done.folder)) == 9


# Stopping


LONG = ("target = 0.15", "target = 1e-9", 'max_examples = "8 epochs"', 'max_examples = "20000 epochs"')


def wait_for_a_measurement(folder: Path, process: subprocess.Popen[str], number: int) -> None:
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        try:
            stored = trials(folder)
        except (KeyError, optuna.exceptions.StorageInternalError):  # not there yet
            stored = []
        if len(stored) > number and "measurements" in stored[number].user_attrs:
            return
        time.sleep(0.2)
    raise AssertionError("nothing was measured")


def test_a_study_can_be_stopped_and_continued(folder: Path, define: WriteDefinition) -> None:
    define(*LONG)
    first = start("study", "digits.toml", cwd=folder)
    wait_for_a_measurement(folder, first, 0)

    # Meanwhile, somebody starts it once more.
    code, out, err = finish(start("study", "digits.toml", "--tracking-uri", "none", "--json", cwd=folder))
    assert (code, out) == (2, "")
    assert f"Error: study digits-r1 is being run by process {first.pid} on {socket.gethostname()}: wait for it" in err

    asked = time.monotonic()
    first.send_signal(signal.SIGINT)
    code, out, err = finish(first, timeout=30.0)
    assert time.monotonic() - asked < 10.0
    assert code == 130, err
    assert "Ended: stopped by the user." in err
    assert "Continue: the same command" in err
    assert "Traceback" not in err
    [trial] = trials(folder)
    assert trial.state.name == "FAIL"
    assert trial.user_attrs["result"]["outcome"] == "INTERRUPTED"
    parent, [child] = runs(folder)
    assert (parent.info.status, child.info.status) == ("KILLED", "KILLED")

    second = start("study", "digits.toml", "--tracking-uri", "none", cwd=folder)
    wait_for_a_measurement(folder, second, 1)
    asked = time.monotonic()
    second.send_signal(signal.SIGTERM)
    code, out, err = finish(second, timeout=30.0)
    assert time.monotonic() - asked < 10.0
    assert code == 130, err
    assert "trial 1 continues trial 0, which was interrupted, at step " in err
    again = trials(folder)
    cut, going_on = (t.user_attrs["measurements"]["step"] for t in again)
    assert going_on[: len(cut)] == cut
    assert again[1].user_attrs["result"]["shared_steps"] == cut[-1]
    [snapshot] = (folder / "scalesearch-files/snapshots").glob("digits-r1-*/*")
    assert snapshot.name == f"trial-0-step-{going_on[-1]}.safetensors"
    assert [t.state.name for t in again] == ["FAIL", "FAIL"]
    for key in ("parameters", "seed", "is_baseline"):
        assert again[1].user_attrs[key] == again[0].user_attrs[key]

    report = CliRunner().invoke(main, ["report", "digits-r1", "--json"])
    assert report.exit_code == 3
    found = json.loads(report.stdout)
    assert (found["recommendation"], found["outcomes"]) == (None, {"INTERRUPTED": 2})


def test_a_stop_while_the_worker_starts_stops_at_once(folder: Path, define: WriteDefinition) -> None:
    define()
    process = start("study", "digits.toml", "--tracking-uri", "none", "--json", cwd=folder)
    deadline = time.monotonic() + 60.0
    while not (folder / "scalesearch-files" / "digits.worker.log").exists():  # made just before the worker is
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process, timeout=20.0)
    assert (code, out) == (130, ""), err
    assert "Interrupted: the same command goes on with what is kept." in err
    assert "Traceback" not in err


# What goes wrong once a worker is there


def test_a_target_that_is_met_before_training_is_a_mistake(folder: Path, define: WriteDefinition) -> None:
    define("target = 0.15", "target = 0.99")
    code, out, err = finish(start("study", "digits.toml", "--json", cwd=folder))
    assert (code, out) == (2, "")
    assert "`objective.target = 0.99` is met before any training" in err
    assert "Traceback" not in err
    assert [t.state.name for t in trials(folder)] == ["FAIL"]
    parent, children = runs(folder)
    assert "RUNNING" not in {parent.info.status, *(c.info.status for c in children)}


def test_a_budget_that_is_over_before_it_begins_recommends_nothing(folder: Path, define: WriteDefinition) -> None:
    define()
    code, out, err = finish(
        start("study", "digits.toml", "--budget", "1s", "--tracking-uri", "none", "--json", cwd=folder)
    )
    assert code == 3, err
    found = json.loads(out)
    assert (found["recommendation"], found["baseline"], found["batch_sizes"]) == (None, None, [])
    assert "the budget is spent (wall clock)" in err
    assert not (folder / "mlflow.db").exists()


def test_a_batch_that_the_replicas_cannot_share_names_those_that_they_can(
    folder: Path, define: WriteDefinition
) -> None:
    define("global_batch_size = 32", "global_batch_size = 30")
    code, out, err = finish(start("study", "digits.toml", "--replicas", "4", "--json", cwd=folder))
    assert (code, out) == (2, "")
    assert "digits.toml: `baseline.global_batch_size = 30`" in err
    assert "28 or 32" in err
    assert trials_or_none(folder) is None


def trials_or_none(folder: Path) -> list[FrozenTrial] | None:
    try:
        return trials(folder)
    except KeyError:
        return None
