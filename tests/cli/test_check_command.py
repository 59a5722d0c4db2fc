"""The check command as people run it."""

from __future__ import annotations

import json

from click.testing import CliRunner

from scalesearch.cli import main

from .conftest import WriteDefinition
from .test_study_command import finish, start


def test_digits_train_on_two_replicas_as_on_one(define: WriteDefinition) -> None:
    code, out, err = finish(start("check", "digits.toml", "--replicas", "2", "--json", cwd=define().parent))
    assert code == 0, err
    assert json.loads(out)["agrees"] is True


def test_one_replica_is_nothing_to_compare(define: WriteDefinition) -> None:
    assert CliRunner().invoke(main, ["check", str(define()), "--replicas", "1"]).exit_code == 2
    assert CliRunner().invoke(main, ["check", str(define())]).exit_code == 2
