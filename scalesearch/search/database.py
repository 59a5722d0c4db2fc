"""Optuna's storages: opening one, and what it holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from sqlalchemy import event

from scalesearch.errors import StudyError
from scalesearch.search.patience import patient

SQLITE_LOCK_SECONDS = 2  # within SQLite, where no signal is seen; then it is tried again
OPEN_SECONDS = 60.0

# Two processes create one SQLite file at once: the slower one finds half a schema.
_CREATED_BY_ANOTHER_PROCESS = ("already exists", "UNIQUE constraint failed", "database is locked")


def open_storage(
    url: str, *, create: bool = True, give_up: Callable[[], bool] = lambda: False
) -> optuna.storages.BaseStorage:
    """Optuna's storage at `url`, `patient` from then on.

    Raises StudyError if it cannot be opened or, without `create`, is not there yet.
    """
    if not create and is_missing(url):
        raise StudyError(
            f"there is no study storage {url} here ({Path.cwd()}): go to the folder of your studies, or give --storage"
        )
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    since = time.monotonic()
    while True:
        try:
            storage = _sqlite(url) if url.startswith("sqlite") else _server(url)
            return patient(storage, give_up=give_up)
        except Exception as error:
            passes = any(sign in str(error) for sign in _CREATED_BY_ANOTHER_PROCESS)
            if passes and not give_up() and time.monotonic() - since < OPEN_SECONDS:
                time.sleep(0.5)
                continue
            reason = str(error).splitlines()[0]
            raise StudyError(f"the study storage {url} cannot be opened: {reason}") from error


def _server(url: str) -> optuna.storages.BaseStorage:
    """A database that is asked whether a connection is still there before it is used."""
    return optuna.storages.get_storage(optuna.storages.RDBStorage(url, engine_kwargs={"pool_pre_ping": True}))


def _sqlite(url: str) -> optuna.storages.BaseStorage:
    """An SQLite storage whose commits take a millisecond instead of ten, of which a trial makes twenty.

    In write-ahead mode with `synchronous = NORMAL`, killing any process loses nothing; a power failure may lose the
    last commits but cannot damage the file.
    """
    storage = optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": {"timeout": SQLITE_LOCK_SECONDS}})

    def configure(connection: Any, record: Any) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")

    event.listen(storage.engine, "connect", configure)
    storage.engine.dispose()  # connections made before the listener keep the slow mode
    return optuna.storages.get_storage(storage)  # with its cache of finished trials


def is_missing(url: str) -> bool:
    """Whether `url` is an SQLite file that could be there but is not."""
    path = Path(url.removeprefix("sqlite:///"))
    return url.startswith("sqlite:///") and path.parent.is_dir() and not path.exists()


def study_names(storage: optuna.storages.BaseStorage) -> list[str]:
    """The names of all studies in a storage."""
    return sorted(optuna.get_all_study_names(storage))
