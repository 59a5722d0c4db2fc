"""The retune command: what it refuses before anything is trained, and one retune as people run it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from scalesearch.cli import main

from .conftest import WriteDefinition
from .past import past_study
from .test_study_command import finish, start


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give one of --from STUDY, --from-mlflow RUN and --from-config SETTINGS"),
        (["--from", "digits-r1", "--from-config", "learning_rate = 1"], "give one of"),
        (["--from", "nothing"], "there is no study 'nothing'"),
        (["--from-config", "learning_rate = 0.1"], "`global_batch_size`: field required"),
        (["--from-config", "global_batch_size = "], "--from-config: invalid value"),
        (["--from-mlflow", "1", "--tracking-uri", "none"], "--from-mlflow needs the MLflow that holds the run"),
    ],
)
def test_mistakes_are_named(define: WriteDefinition, arguments: list[str], said: str) -> None:
    path = define()
    past_study(path)
    done = CliRunner().invoke(main, ["retune", str(path), "--replicas", "2", *arguments])
    assert done.exit_code == 2
    assert said.lower() in " ".join(done.output.split()).lower()


def test_the_study_of_another_workload_is_refused(define: WriteDefinition) -> None:
    name, other = past_study(define()), define("digits/mlp", "mnist/mlp")
    done = CliRunner().invoke(main, ["retune", str(other), "--replicas", "2", "--from", name])
    assert done.exit_code == 2
    assert "is of digits/mlp, the definition of mnist/mlp" in done.output


def test_settings_alone_are_moved_and_every_rule_is_accounted_for(define: WriteDefinition) -> None:
    folder = define('sampler = "random"', 'sampler = "scaling"').parent
    settings = 'global_batch_size = 32, learning_rate = 0.1, momentum = 0.9, boundaries = ["6 epochs"]'
    arguments = ("retune", "digits.toml", "--replicas", "2", "--from-config", settings, "--tracking-uri", "none")
    code, out, err = finish(start(*arguments, "--budget", "4trials", "--json", cwd=folder))
    assert code == 0, err
    found = json.loads(out)
    assert found["study"] == "digits-retune-r2"
    assert [r["rule"] for r in found["rules"]] == ["keep", "linear", "linear", "sqrt", "sqrt", "model"]
    keep = found["rules"][0]
    assert (keep["outcome"], keep["global_batch_size"]) == ("REACHED", 32)
    assert keep["seconds_to_target"] > 0
    assert keep["relative_cost"] >= 1.0 or not keep["is_recommended"]
    assert found["rules"][1]["global_batch_size"] == 64
    assert found["budget"]["trials"] == {"asked": 4, "spent": 4}

    said = " ".join(CliRunner().invoke(main, ["report", "digits-retune-r2"]).output.split())
    assert "The usual rules, from the configuration given:" in said
    assert "Quality at the target, recommended against old:" in said
