from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

WriteIdx = Callable[..., Path]


@pytest.fixture(scope="session")
def write_idx() -> WriteIdx:
    """(path, array) -> the path of an IDX file written there; compressed if the path ends in .gz."""

    def write(path: Path, array: np.ndarray[Any, Any]) -> Path:
        header = np.array([0x0800 | array.ndim, *array.shape], ">u4").tobytes()
        content = header + array.astype(np.uint8).tobytes()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
        return path

    return write


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that SCALESEARCH_DATA names; Keras's cache is empty."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("SCALESEARCH_DATA", str(folder))
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    return folder
