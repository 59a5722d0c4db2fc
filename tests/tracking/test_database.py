from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from scalesearch.tracking.database import ABANDONED_SECONDS, create_database, is_half_made

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")

CREATE = "import sys; from pathlib import Path; from scalesearch.tracking.database import create_database; "


def tables(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table'").fetchone()[0])


def create_and_kill(path: Path, *, at_tables: int) -> int:
    """Another process that creates the database, and is killed once it has made so many tables; its pid."""
    process = subprocess.Popen([sys.executable, "-c", CREATE + "create_database(Path(sys.argv[1]))", str(path)])
    new = path.with_name(f"{path.name}.new-{process.pid}")
    while process.poll() is None:
        if new.exists() and tables(new) >= at_tables:
            process.send_signal(signal.SIGKILL)
            break
    assert process.wait() == -signal.SIGKILL
    return process.pid


def test_a_process_that_is_killed_in_the_midst_of_it_leaves_nothing_that_stays(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    pid = create_and_kill(path, at_tables=7)
    assert not path.exists()
    assert (tmp_path / f"mlflow.db.new-{pid}").exists()
    create_database(path)
    assert not list(tmp_path.glob("*.new-*[0-9]"))
    from mlflow.tracking import MlflowClient

    assert MlflowClient(f"sqlite:///{path}").get_experiment("0").name == "Default"


def test_what_is_there_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE experiments (name TEXT); INSERT INTO experiments VALUES ('mine')")
    os.utime(path, (0, 0))
    before = path.read_bytes()
    create_database(path)
    assert path.read_bytes() == before


def test_half_a_database_that_something_else_left_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE experiments (name TEXT)")
    assert not is_half_made(path), "somebody may be at it"
    os.utime(path, (0, time.time() - ABANDONED_SECONDS - 1))
    create_database(path)
    assert tables(tmp_path / "mlflow.db.incomplete") == 1
    assert tables(path) > 20


def test_of_two_at_once_one_creates_it(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    code = CREATE + "create_database(Path(sys.argv[1])); print(Path(sys.argv[1]).stat().st_ino)"
    with ThreadPoolExecutor(2) as pool:
        command = [sys.executable, "-c", code, str(path)]
        done = list(pool.map(lambda _: subprocess.run(command, capture_output=True, text=True, check=True), range(2)))
    assert {run.stdout.strip() for run in done} == {str(path.stat().st_ino)}
    assert [p.name for p in tmp_path.iterdir()] == ["mlflow.db"]
