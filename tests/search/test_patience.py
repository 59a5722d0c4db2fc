from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Timer

import optuna
import pytest

from scalesearch.errors import StudyError
from scalesearch.search import database, patience
from scalesearch.search.database import open_storage

LOCKED_SECONDS = 1.5


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "SQLITE_LOCK_SECONDS", 0.1)
    monkeypatch.setattr(patience, "RETRY_SECONDS", 0.1)


@contextmanager
def locked(storage_url: str) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(storage_url.removeprefix("sqlite:///"), check_same_thread=False)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection


def test_a_lock_is_waited_for(storage_url: str, caplog: pytest.LogCaptureFixture) -> None:
    study = optuna.create_study(storage=open_storage(storage_url), study_name="s")
    with locked(storage_url) as connection:
        Timer(LOCKED_SECONDS, connection.rollback).start()
        since = time.monotonic()
        study.set_user_attr("a", 1)
        assert time.monotonic() - since >= LOCKED_SECONDS
    assert study.user_attrs == {"a": 1}
    assert len(caplog.records) == 1
    assert "cannot be used, waiting: database is locked" in caplog.text


def test_a_disk_that_is_full_is_waited_for(storage_url: str) -> None:
    storage = open_storage(storage_url)
    study = optuna.create_study(storage=storage, study_name="s")
    engine = storage.get_all_studies.__wrapped__.__self__._backend.engine  # type: ignore[attr-defined]
    with engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

    def clear() -> None:
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count = 100000")

    Timer(LOCKED_SECONDS, clear).start()
    since = time.monotonic()
    study.set_user_attr("large", "x" * 2**20)
    assert time.monotonic() - since >= LOCKED_SECONDS
    assert len(study.user_attrs["large"]) == 2**20


def test_patience_has_an_end(storage_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    study = optuna.create_study(storage=open_storage(storage_url), study_name="s")
    monkeypatch.setattr(patience, "PATIENCE_SECONDS", 0.3)
    with locked(storage_url), pytest.raises(StudyError, match=r"database is locked.*the same command continues"):
        study.set_user_attr("a", 1)


def test_who_is_to_stop_does_not_wait(storage_url: str) -> None:
    study = optuna.create_study(storage=open_storage(storage_url, give_up=lambda: True), study_name="s")
    since = time.monotonic()
    with locked(storage_url), pytest.raises(StudyError, match="database is locked"):
        study.set_user_attr("a", 1)
    assert time.monotonic() - since < 5.0


def test_what_is_no_fault_of_the_database_is_raised_at_once(storage_url: str) -> None:
    study = optuna.create_study(storage=open_storage(storage_url), study_name="s")
    trial = study.ask()
    study.tell(trial, 1.0)
    with pytest.raises(optuna.exceptions.UpdateFinishedTrialError):
        trial.set_user_attr("a", 1)
    with pytest.raises(KeyError):
        optuna.load_study(storage=open_storage(storage_url), study_name="other")


def test_a_file_that_is_locked_can_still_be_opened(tmp_path: Path, storage_url: str) -> None:
    with locked(storage_url) as connection:
        Timer(LOCKED_SECONDS, connection.rollback).start()
        optuna.create_study(storage=open_storage(storage_url), study_name="s")
