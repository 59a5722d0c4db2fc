"""What takes too long for every day: `python -m pytest -m faults tests/faults`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from . import machine
from .conftest import NewStudy
from .study import PATIENCE_SECONDS, Reference, check, kill_9, worker_of, workers_of

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

Inject = Callable[[str], None]
STUDIES, KILLS = 10, 5
LONGEST_SECONDS = 12.0  # about what a study takes with its start


@pytest.mark.parametrize("seed", range(STUDIES))
def test_kill_9_at_random_moments(seed: int, new_study: NewStudy, reference: Reference, inject: Inject) -> None:
    """From the start on, while MLflow's tables are made, while workers start, and while nothing is left to do."""
    random = np.random.default_rng(seed)
    study = new_study()
    (study.path / "mlflow.db").unlink()
    driver = study.start()
    killed = 0
    while killed < KILLS:
        if driver.poll() is not None:  # it was over sooner
            driver = study.start()
        who = ("driver", "worker", "both")[random.integers(3)]
        seconds = float(random.uniform(0.0, LONGEST_SECONDS))
        deadline = time.monotonic() + seconds
        while driver.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        worker = workers_of(driver)
        pids = {"driver": [driver.pid], "worker": worker, "both": [driver.pid, *worker]}[who]
        if driver.poll() is not None or not pids:  # nothing is there to be killed
            continue
        killed += 1
        inject(f"kill -9 at a random moment: {who}")
        kill_9(*pids)
        if driver.pid in pids:
            driver.wait()
            driver = study.start()
    if driver.wait(PATIENCE_SECONDS) != 0:
        driver = study.start()
    study.finish(driver)
    found = study.run()  # completes the copy if the last session could not
    check(study, found, reference, killed=KILLS)


def test_sqlite_locked_for_30_s(new_study: NewStudy, reference: Reference, inject: Inject) -> None:
    study = new_study()
    driver = study.start()
    study.reaches(driver, 2)
    inject("SQLite locked for 30 s")
    with machine.locked(study.path / "scalesearch.db", study.path / "mlflow.db"):
        time.sleep(30.0)
    check(study, study.finish(driver), reference)


def test_an_mlflow_server_that_is_away_for_a_minute(
    new_study: NewStudy, reference: Reference, inject: Inject, tmp_path: Path, empty_copy: Path
) -> None:
    with machine.mlflow_server(tmp_path, empty_copy) as server:
        study = new_study(tracking_uri=server.uri)
        study.define("step_seconds = 0.01", "step_seconds = 0.1")
        driver = study.start()
        study.reaches(driver, 1)
        inject("the MLflow server away for a minute, and back")
        server.stop()
        time.sleep(60.0)
        server.start()
        found = study.finish(driver)
        study.run()
        check(study, found, reference)


def test_workers_that_are_killed_one_after_another(new_study: NewStudy, reference: Reference, inject: Inject) -> None:
    """A machine that loses workers loses no trial."""
    study = new_study(tracking_uri="none")
    driver = study.start()
    for number in (0, 2, 4):
        study.reaches(driver, number)
        inject("kill -9 of one worker after another")
        kill_9(worker_of(driver))
    check(study, study.finish(driver), reference, killed=3)
