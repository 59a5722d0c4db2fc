"""MLflow's database in an SQLite file: there as a whole, or not at all."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

ABANDONED_SECONDS = 30.0


def create_database(path: Path) -> None:
    """Create MLflow's database at `path`, unless it is there.

    MLflow makes its tables in dozens of steps, and fails for ever on a file in which it was killed between two of them.
    So they are made in a file of another name, which gets its own when it is complete. Half a database that something
    else has left is moved aside; nobody's data are in it.
    """
    _remove_leftovers(path)
    if is_half_made(path):
        path.replace(path.with_name(f"{path.name}.incomplete"))
    if path.exists():
        return
    from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    new = path.with_name(f"{path.name}.new-{os.getpid()}")
    try:
        store = SqlAlchemyStore(f"sqlite:///{new}", DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH)
        store.engine.dispose()
        with suppress(FileExistsError):  # another study in this folder was faster
            os.link(new, path)
    finally:
        new.unlink(missing_ok=True)


def is_half_made(path: Path) -> bool:
    """Whether a file has tables but not the experiment that MLflow makes last, and nobody is at it."""
    try:
        if abs(time.time() - path.stat().st_mtime) < ABANDONED_SECONDS:
            return False
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if "experiments" not in tables:
                return False
            return connection.execute("SELECT 1 FROM experiments LIMIT 1").fetchone() is None
    except (OSError, sqlite3.Error):
        return False


def _remove_leftovers(path: Path) -> None:
    for left in path.parent.glob(f"{path.name}.new-*"):
        pid = left.name.rpartition("-")[2]
        if pid.isdigit() and not _is_running(int(pid)):  # a journal's name ends otherwise: SQLite needs it no more
            left.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
