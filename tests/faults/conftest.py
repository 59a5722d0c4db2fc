"""Studies to disturb, the undisturbed one to compare them with, and the table of what became of them."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .study import Reference, StudyFolder, check_books, check_copy, finished, recommendation

NewStudy = Callable[..., StudyFolder]
FAULTS = pytest.StashKey[Counter[str]]()
_table: dict[str, Counter[str]] = {}


@pytest.fixture(scope="session")
def empty_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database without a study, as making its tables takes seconds."""
    from scalesearch.tracking.database import create_database

    path = tmp_path_factory.mktemp("copy") / "mlflow.db"
    create_database(path)
    return path


@pytest.fixture
def new_study(tmp_path: Path, empty_copy: Path) -> Iterator[NewStudy]:
    """Makes study folders, and ends what is left running in them."""
    studies: list[StudyFolder] = []

    def make(**fields: Any) -> StudyFolder:
        path = fields.pop("path", tmp_path)
        if "tracking_uri" not in fields:
            shutil.copy(empty_copy, path / "mlflow.db")
        studies.append(StudyFolder(path, **fields))
        return studies[-1]

    yield make
    for study in studies:
        study.kill()


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory, empty_copy: Path) -> Reference:
    path = tmp_path_factory.mktemp("undisturbed")
    shutil.copy(empty_copy, path / "mlflow.db")
    study = StudyFolder(path)
    try:
        found = study.run()
    finally:
        study.kill()
    check_books(study, found)
    check_copy(study)
    return Reference(finished(study.results()), recommendation(found))


# The table


@pytest.fixture
def inject(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Counts a fault, by its name; it has been survived if the test passes."""
    faults = request.node.stash.setdefault(FAULTS, Counter())

    def count(fault: str) -> None:
        faults[fault] += 1

    return count


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.when == "call":
        for fault, times in item.stash.get(FAULTS, Counter[str]()).items():
            row = _table.setdefault(fault, Counter())
            row["injected"] += times
            row["survived" if report.passed else "lost"] += times
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _table:
        return
    terminalreporter.section("faults")
    terminalreporter.write_line(f"{'':52}{'injected':>10}{'survived':>10}{'lost':>10}")
    for fault, row in sorted(_table.items()):
        terminalreporter.write_line(f"{fault:52}{row['injected']:>10}{row['survived']:>10}{row['lost']:>10}")
