"""The profile command as people run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from scalesearch.cli import main
from scalesearch.definition.profile_file import read_profile
from scalesearch.search.database import open_storage
from scalesearch.search.storage import StudyStore
from scalesearch.study.account import PROFILE_DEVICE_SECONDS

from .conftest import WriteDefinition
from .test_study_command import finish, start

PATIENCE = 280.0  # seconds, of which starting workers on a loaded machine takes most


@pytest.mark.timeout(2 * PATIENCE)
def test_a_profile_is_measured_exported_and_used_again(define: WriteDefinition) -> None:
    folder = define().parent
    arguments = ("profile", "digits.toml", "--limit", "1s", "--json")
    code, out, err = finish(
        start(*arguments, "--replicas", "1,2", "--export", "here.json", cwd=folder), timeout=PATIENCE
    )
    assert code == 0, err
    assert "2 CPU replicas (logical devices that share this machine's cores)" in err
    found = json.loads(out)
    assert [r["largest_per_replica_batch_size"] for r in found["replicas"]] == [64, 32]
    assert not any(r["reused"] for r in found["replicas"])
    assert {p["per_replica_batch_size"] for p in found["replicas"][0]["points"]} <= {16, 32, 64}
    exported = read_profile(folder / "here.json")
    assert [part.replicas for part in exported.by_replicas] == [1, 2]
    assert exported.points[0].step_seconds == found["replicas"][0]["points"][0]["step_seconds"]

    code, out, err = finish(start(*arguments, "--replicas", "2", cwd=folder), timeout=PATIENCE)
    assert code == 0, err
    assert "measured before" in err
    again = json.loads(out)["replicas"]
    assert [r["reused"] for r in again] == [True]
    assert again[0]["points"] == [{**p, "scaling_efficiency": None} for p in found["replicas"][1]["points"]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--replicas", "two"], "'two' is not a list of numbers of replicas"),
        (["--replicas", "1,0"], "'1,0' is not a list of numbers of replicas"),
        (["--limit", "soon"], "expected a duration"),
        (["--limit", "0s"], "must be positive"),
    ],
)
def test_mistakes_are_named(define: WriteDefinition, arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(main, ["profile", str(define()), *arguments])
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_a_definition_that_is_not_there(folder: Path) -> None:
    done = CliRunner().invoke(main, ["profile", "missing.toml"])
    assert done.exit_code == 2
    assert "missing.toml: cannot be read" in done.output


SECONDS = ('minimize = "steps"', 'minimize = "seconds"', "trials = 8", 'trials = 2\nwall_clock = "10m"')


@pytest.mark.timeout(2 * PATIENCE)
def test_a_study_of_seconds_begins_with_a_profile_and_uses_it_again(define: WriteDefinition) -> None:
    folder = define(*SECONDS).parent
    arguments = ("study", "digits.toml", "--tracking-uri", "none", "--json")
    code, out, err = finish(start(*arguments, cwd=folder), timeout=PATIENCE)
    assert code in (0, 3), err
    assert "Step times: measured at 3 batch sizes" in err
    spent = json.loads(out)["budget"]["device_seconds"]["spent"]
    store = StudyStore(open_storage(f"sqlite:///{folder}/scalesearch.db"), "digits-r1")
    trials = sum(result.cost.device_seconds for result in store.results())
    assert spent == pytest.approx(trials + store.attribute(PROFILE_DEVICE_SECONDS))
    assert store.attribute(PROFILE_DEVICE_SECONDS) > 0

    code, _, err = finish(start(*arguments, "--budget", "3trials,10m", cwd=folder), timeout=PATIENCE)
    assert code in (0, 3), err
    assert "those of the last profile" in err
