from __future__ import annotations

from pathlib import Path

import pytest

from scalesearch.errors import StudyError
from scalesearch.tracking import check_tracking_uri


@pytest.mark.parametrize(
    "uri",
    [
        "sqlite:///mlflow.db",
        "http://localhost:5000",
        "https://mlflow.example.org",
        "postgresql+psycopg://user:secret@db:5432/mlflow",
        "mysql+pymysql://user@db/mlflow",
    ],
)
def test_databases_and_servers_are_accepted(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_tracking_uri(uri, storage_url="sqlite:///scalesearch.db")


@pytest.mark.parametrize("uri", ["file:./mlruns", "file:///tmp/mlruns", "./mlruns", "mlruns", "/tmp/mlruns", ""])
def test_a_folder_is_refused(uri: str) -> None:
    with pytest.raises(StudyError, match=r"is a folder.*sqlite:///mlflow\.db"):
        check_tracking_uri(uri)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(StudyError, match=r"unknown kind 'redis'.*sqlite, postgresql"):
        check_tracking_uri("redis://localhost")


@pytest.mark.parametrize("uri", ["sqlite://", "sqlite:///:memory:"])
def test_memory_is_refused(uri: str) -> None:
    with pytest.raises(StudyError, match="in memory"):
        check_tracking_uri(uri)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"nowhere does not exist; create it first"):
        check_tracking_uri(f"sqlite:///{tmp_path}/nowhere/mlflow.db")


@pytest.mark.parametrize(
    ("tracking", "storage"),
    [
        ("sqlite:///one.db", "sqlite:///one.db"),
        ("sqlite:///one.db", "sqlite:///./one.db"),
        ("sqlite:///one.db", "sqlite:///{folder}/one.db"),
        ("postgresql://a@db/one", "postgresql+psycopg2://b:c@db:5432/one?sslmode=require"),
    ],
)
def test_the_storage_of_the_study_is_refused(
    tracking: str, storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StudyError, match="are the same database"):
        check_tracking_uri(tracking, storage_url=storage.format(folder=tmp_path))


def test_two_databases_of_one_server_are_accepted() -> None:
    check_tracking_uri("postgresql://db/mlflow", storage_url="postgresql://db/optuna")
