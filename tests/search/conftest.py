from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from scalesearch.search.database import open_storage
from scalesearch.search.storage import StudyStore

OpenStore = Callable[[], StudyStore]


@pytest.fixture
def storage_url(tmp_path: Path, new_database: Callable[[Path], str]) -> str:
    return new_database(tmp_path / "scalesearch.db")


@pytest.fixture
def open_store(storage_url: str) -> OpenStore:
    """() -> the study `s` in an SQLite file, as a new driver finds it: each call opens the file afresh."""
    return lambda: StudyStore(open_storage(storage_url), "s", direction="minimize")


@pytest.fixture
def store(open_store: OpenStore) -> StudyStore:
    return open_store()
