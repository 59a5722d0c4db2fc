"""One MLflow database for all tests, as its schema takes seconds to create; each test has its own experiment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scalesearch.tracking import MlflowTracker

CLOSE_SECONDS = 60.0


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("with a space")


@pytest.fixture(scope="session")
def tracking_uri(folder: Path) -> str:
    return f"sqlite:///{folder / 'mlflow.db'}"


@pytest.fixture
def workload(request: pytest.FixtureRequest) -> str:
    return f"tests/{request.node.name}"


@pytest.fixture
def open_tracker(folder: Path, tracking_uri: str) -> Iterator[Callable[..., MlflowTracker]]:
    """Makes trackers, and closes them after the test."""
    opened: list[MlflowTracker] = []

    def make(uri: str = tracking_uri) -> MlflowTracker:
        opened.append(MlflowTracker(tracking_uri=uri, artifact_folder=folder / "mlartifacts"))
        return opened[-1]

    yield make
    for tracker in opened:
        tracker.close(CLOSE_SECONDS)
