"""The commands without a worker: help, mistakes, and reading what is stored."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
from click.testing import CliRunner, Result

from scalesearch.cli import main

from .conftest import WriteDefinition

HEAVY = ("keras", "matplotlib", "mlflow", "optuna", "scipy", "sklearn", "tensorflow")


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def refused(*arguments: object) -> str:
    """The message of a command that is refused: exit code 2, nothing on stdout, no traceback."""
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


# Help


@pytest.mark.parametrize("command", [[], *[[name] for name in main.commands]], ids=lambda c: c[0] if c else "main")
def test_help_has_an_example_that_names_the_command(command: list[str]) -> None:
    result = invoke(*command, "--help")
    assert result.exit_code == 0
    _, _, examples = result.output.partition("Example")
    assert f"python -m scalesearch {command[0] if command else ''}" in examples


def test_h_is_short_for_help() -> None:
    assert invoke("-h").output == invoke("--help").output


def test_help_needs_none_of_the_heavy_packages() -> None:
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from scalesearch.cli import main\n"
        "assert CliRunner().invoke(main, ['study', '--help']).exit_code == 0\n"
        f"print(sorted(set({HEAVY}) & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "[]"


def test_the_package_is_a_command() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "scalesearch", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "0.1.0" in run.stdout


# Mistakes in what is asked


def test_an_unknown_command_is_refused() -> None:
    assert "No such command 'stduy'" in refused("stduy")


def test_a_missing_definition_is_named(folder: Path) -> None:
    assert "Error: no/such.toml: cannot be read: No such file or directory" in refused("study", "no/such.toml")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00not text", b"name = ", b""])
def test_a_file_that_is_no_definition_is_named(folder: Path, content: bytes) -> None:
    (folder / "x.toml").write_bytes(content)
    assert "x.toml: " in refused("study", "x.toml")


def test_an_unknown_key_names_the_nearest_known_one(define: WriteDefinition) -> None:
    message = refused("study", define("sampler =", "smapler ="))
    assert "digits.toml: unknown key `search.smapler`: did you mean `sampler`?" in message


@pytest.mark.parametrize("budget", ["10 bananas", "", "-5m", "0trials", "1.5trials", "5m,", "nan"])
def test_a_bad_budget_is_refused(define: WriteDefinition, budget: str) -> None:
    message = refused("study", define(), "--budget", budget)
    assert "Invalid value for '--budget'" in message


def test_without_a_budget_nothing_starts(define: WriteDefinition) -> None:
    message = refused("study", define("[budget]\ntrials = 8\n", ""))
    assert "digits.toml: no budget: add a [budget] section or give --budget, e.g. 30m" in message


@pytest.mark.parametrize("replicas", ["0", "-1", "many"])
def test_replicas_are_a_positive_number(define: WriteDefinition, replicas: str) -> None:
    assert "Invalid value for '--replicas'" in refused("study", define(), "--replicas", replicas)


@pytest.mark.parametrize("uri", ["sqlite:///scalesearch.db", "sqlite:///./scalesearch.db"])
def test_one_database_for_optuna_and_mlflow_is_refused(define: WriteDefinition, folder: Path, uri: str) -> None:
    assert "are the same database" in refused("study", define(), "--tracking-uri", uri)
    assert not (folder / "scalesearch.db").exists()


def test_a_folder_for_mlflow_is_refused(define: WriteDefinition) -> None:
    assert "is a folder, which MLflow no longer keeps runs in" in refused("study", define(), "--tracking-uri", "mlruns")


@pytest.mark.parametrize("command", [["study", "digits.toml"], ["studies"], ["report", "x"]])
@pytest.mark.parametrize("url", ["garbage", "sqlite:////proc/no/x.db", "mysql+nothing://h/d"])
def test_a_storage_that_cannot_be_opened_is_named(define: WriteDefinition, command: list[str], url: str) -> None:
    define()
    assert f"Error: the study storage {url} cannot be opened: " in refused(*command, "--storage", url)


def test_a_folder_that_cannot_be_written_is_named(
    define: WriteDefinition, monkeypatch: pytest.MonkeyPatch, new_database: Callable[[Path], str], folder: Path
) -> None:
    path, storage = define(), new_database(folder / "s.db")
    monkeypatch.chdir("/proc")  # where not even root can make a file
    message = refused("study", path, "--storage", storage, "--tracking-uri", "none")
    assert "cannot write to /proc/scalesearch-files: " in message
    assert "run in a writable folder" in message


def test_a_file_where_our_folder_belongs_is_named(define: WriteDefinition, folder: Path) -> None:
    path = define()
    (folder / "scalesearch-files").write_text("in the way")
    assert f"cannot write to {folder}/scalesearch-files: " in refused("study", path)


# Reading what is stored


def test_an_empty_storage_has_no_studies(folder: Path) -> None:
    result = invoke("studies")
    assert (result.exit_code, result.stdout) == (0, "No studies in sqlite:///scalesearch.db.\n")
    assert json.loads(invoke("studies", "--json").stdout) == []


def test_the_report_of_an_unknown_study_names_the_known_ones(folder: Path, new_database: Callable[[Path], str]) -> None:
    url = new_database(folder / "s.db")
    assert "there is no study 'x' in this storage; it holds: none" in refused("report", "x", "--storage", url)
    for name in ("b", "a"):
        optuna.create_study(study_name=name, storage=url)
    assert "it holds: a, b" in refused("report", "x", "--storage", url)


def test_a_study_that_is_somebody_elses_is_left_alone(folder: Path, new_database: Callable[[Path], str]) -> None:
    url = new_database(folder / "s.db")
    optuna.create_study(study_name="theirs", storage=url)
    assert "study 'theirs' was not made by scalesearch" in refused("report", "theirs", "--storage", url)
    assert invoke("studies", "--storage", url).stdout == f"No studies in {url}.\n"


def test_a_study_from_before_there_were_two_rules_of_crossing_can_be_read(
    folder: Path, new_database: Callable[[Path], str]
) -> None:
    url = new_database(folder / "s.db")
    old = optuna.create_study(study_name="old", storage=url)
    objective = {"metric": "val/loss", "direction": "minimize", "target": 0.5, "minimize": "steps"}
    about = {
        "workload": "digits/mlp",
        "optimizer": "sgd",
        "replicas": 1,
        "train_examples": 100,
        "budget": {"trials": 5},
    }
    old.set_user_attr("context", {**about, "objective": objective})
    old.set_user_attr("target", 0.5)
    result = invoke("report", "old", "--storage", url, "--json")
    assert json.loads(result.stdout)["objective"] == {**objective, "crossing": "first"}


def test_the_workloads_are_listed(folder: Path) -> None:
    listed = json.loads(invoke("workloads", "--json").stdout)
    names = [workload["name"] for workload in listed]
    assert {"digits/mlp", "fashion_mnist/simple_cnn", "cifar10/densenet_bc"} <= set(names)
    text = invoke("workloads")
    assert text.exit_code == 0
    assert all(name.split("/")[1] in text.stdout for name in names)


@pytest.mark.parametrize("command", [["studies"], ["report", "digits_mlp-r1"]])
def test_reading_in_the_wrong_folder_leaves_nothing_behind(command: list[str], tmp_path: Path) -> None:
    result = invoke(*command)
    assert list(tmp_path.iterdir()) == []
    if command[0] == "report":
        assert result.exit_code == 2
        assert "there is no study storage sqlite:///scalesearch.db here" in result.stderr
