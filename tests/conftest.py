from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

NewDatabase = Callable[[Path], str]


@pytest.fixture(scope="session")
def new_database(tmp_path_factory: pytest.TempPathFactory) -> NewDatabase:
    """(path) -> the URL of an empty study storage there: a copy, since making its tables takes most of a second."""
    from optuna.storages import RDBStorage

    empty = tmp_path_factory.mktemp("storage") / "empty.db"
    storage = RDBStorage(f"sqlite:///{empty}")
    storage.remove_session()
    storage.engine.dispose()

    def copy(path: Path) -> str:
        shutil.copy(empty, path)
        return f"sqlite:///{path}"

    return copy
