from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import optuna
import pytest

from scalesearch.search.database import open_storage


@pytest.fixture
def storage_url(tmp_path: Path, new_database: Callable[[Path], str]) -> str:
    return new_database(tmp_path / "scalesearch.db")


@pytest.fixture
def storage(storage_url: str) -> optuna.storages.BaseStorage:
    return open_storage(storage_url)
