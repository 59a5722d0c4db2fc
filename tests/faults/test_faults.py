"""Each fault once; `python -m pytest -m faults tests/faults` injects many more."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scalesearch.core.results import Outcome

from . import machine
from .conftest import NewStudy
from .study import PATIENCE_SECONDS, Reference, check, check_books, kill_9, worker_of

pytestmark = pytest.mark.timeout(900)

Inject = Callable[[str], None]
NO_COPY = "none"
MEANWHILE_SECONDS = 5.0


@pytest.mark.parametrize("who", ["driver", "worker", "both"])
def test_kill_9(who: str, new_study: NewStudy, reference: Reference, inject: Inject) -> None:
    study = new_study()
    driver = study.start()
    study.reaches(driver, 2)
    inject(f"kill -9 of {'both' if who == 'both' else 'the ' + who}")
    worker = worker_of(driver)
    kill_9(*{"driver": [driver.pid], "worker": [worker], "both": [driver.pid, worker]}[who])
    if who == "worker":
        found = study.finish(driver)
    else:
        driver.wait()
        found = study.run()
    check(study, found, reference, killed=1)


def test_sigterm_while_a_worker_is_replaced(new_study: NewStudy, reference: Reference, inject: Inject) -> None:
    study = new_study()
    driver = study.start()
    study.reaches(driver, 2)
    kill_9(killed := worker_of(driver))
    machine.wait_until_gone(killed)
    worker_of(driver)  # the next one, which takes seconds to start
    inject("SIGTERM while a worker is replaced")
    since = time.monotonic()
    driver.send_signal(signal.SIGTERM)
    study.finish(driver, code=130)
    assert time.monotonic() - since < 10.0
    assert not {"RUNNING"} & {*study.states(), *study.statuses()}
    check(study, study.run(), reference, killed=2)


def test_a_worker_that_hangs(new_study: NewStudy, reference: Reference, inject: Inject) -> None:
    study = new_study(tracking_uri=NO_COPY)
    study.define("[budget]", "[run]\nno_progress_limit = 25\n\n[budget]")
    driver = study.start()
    study.reaches(driver, 2)
    inject("a worker that hangs (SIGSTOP)")
    machine.stop(worker_of(driver))
    found = study.finish(driver)
    assert any("reported nothing for 25 s" in r.reason for r in study.results())
    check(study, found, reference, killed=1)


def test_a_worker_that_the_kernel_kills_for_its_memory(
    new_study: NewStudy, reference: Reference, inject: Inject
) -> None:
    study = new_study(tracking_uri=NO_COPY)
    driver = study.start()
    study.reaches(driver, 2)
    with machine.memory_limit(worker_of(driver)):
        inject("the kernel's memory limit (cgroup)")
        study.order("take")
        found = study.finish(driver)
    assert any(r.reason == "the worker was killed by the kernel, as memory had run out" for r in study.results())
    check(study, found, reference, killed=1)


def test_out_of_memory_at_a_batch_size(new_study: NewStudy, inject: Inject) -> None:
    study = new_study(tracking_uri=NO_COPY)
    study.define("high = 128 }", "high = 1024 }", "trials = 7", "trials = 12")
    study.order("need 48")
    inject("out of memory at a batch size (MemoryError)")
    found = study.run()
    check_books(study, found, killed=12)
    ran_out = [r for r in study.results() if r.outcome is Outcome.OUT_OF_MEMORY]
    assert ran_out, "the space reaches beyond what fits"
    sizes = [r.parameters.global_batch_size for r in ran_out]
    assert all(size > 48 for size in sizes)
    assert sizes == sorted(set(sizes), reverse=True), "what does not fit is not tried again, nor what is larger"
    assert found["recommendation"]["global_batch_size"] <= 48


def test_batches_that_do_not_fit_are_taken_in_micro_batches(new_study: NewStudy, inject: Inject) -> None:
    """Where the definition allows it; the profile has found what fits, so that no trial runs out of memory."""
    study = new_study(tracking_uri=NO_COPY)
    study.define(
        'minimize = "steps"',
        'minimize = "seconds"',
        "global_batch_size = { low = 16",
        "global_batch_size = { low = 64",
        "[budget]",
        '[run]\naccumulation = "auto"\n[budget]',
    )
    study.order("need 48")
    inject("batches that do not fit, in micro-batches (MemoryError)")
    found = study.run()
    trials = [r for r in study.results() if not r.is_baseline]
    assert trials
    for r in trials:
        assert r.outcome is not Outcome.OUT_OF_MEMORY
        assert r.parameters.accumulation == r.parameters.global_batch_size // 32
        assert len(r.measurements) > 1
    assert found["recommendation"] is not None


def test_nan_after_some_steps(new_study: NewStudy, inject: Inject) -> None:
    study = new_study(tracking_uri=NO_COPY)
    driver = study.start()
    study.reaches(driver, 2)
    inject("NaN after n steps")
    study.order("nan")
    study.until(driver, lambda: any(r.outcome is Outcome.DIVERGED for r in study.results()), "a trial that diverged")
    study.order("")
    found = study.finish(driver)
    check_books(study, found)
    assert "nan" not in str(found["recommendation"]).lower()


def test_a_full_disk(new_study: NewStudy, reference: Reference, inject: Inject, tmp_path: Path) -> None:
    """Nothing can be stored, no snapshot saved and nothing logged meanwhile."""
    with machine.small_disk(tmp_path, megabytes=24) as disk:
        study = new_study(path=disk)
        driver = study.start()
        study.reaches(driver, 2)
        inject("a full disk (tmpfs)")
        with machine.filled(disk):
            study.until(driver, lambda: "storage cannot be used, waiting: " in study.err, "word of it")
            time.sleep(MEANWHILE_SECONDS)
        check(study, study.finish(driver), reference)


def test_locked_databases(new_study: NewStudy, reference: Reference, inject: Inject) -> None:
    study = new_study()
    driver = study.start()
    study.reaches(driver, 2)
    inject("SQLite locked")
    with machine.locked(study.path / "scalesearch.db", study.path / "mlflow.db"):
        time.sleep(MEANWHILE_SECONDS)
    check(study, study.finish(driver), reference)


def test_an_mlflow_server_that_is_away(
    new_study: NewStudy, reference: Reference, inject: Inject, tmp_path: Path, empty_copy: Path
) -> None:
    with machine.mlflow_server(tmp_path, empty_copy) as server:
        study = new_study(tracking_uri=server.uri)
        driver = study.start()
        study.reaches(driver, 2)
        inject("the MLflow server away, and back")
        server.stop()
        time.sleep(MEANWHILE_SECONDS)
        server.start()
        found = study.finish(driver)
        study.run()  # completes what the first could not wait for
        check(study, found, reference)


def test_postgresql_restarted(new_study: NewStudy, reference: Reference, inject: Inject, tmp_path: Path) -> None:
    with machine.postgresql(tmp_path) as server:
        study = new_study(storage_url=server.url, tracking_uri=NO_COPY)
        driver = study.start()
        study.reaches(driver, 2)
        inject("PostgreSQL restarted")
        server.stop()
        time.sleep(MEANWHILE_SECONDS)
        server.start()
        check(study, study.finish(driver), reference)


def test_a_clock_that_jumps(new_study: NewStudy, reference: Reference, inject: Inject, tmp_path: Path) -> None:
    environment, offset = machine.fake_clock(tmp_path)
    study = new_study(environment=environment)
    driver = study.start()
    for trial, days in ((1, 90), (3, -90)):
        study.reaches(driver, trial)
        inject("a clock that jumps by 90 days")
        machine.set_clock(offset, days * 86_400)
    found = study.finish(driver)
    assert found["budget"]["wall_clock_seconds"]["spent"] < PATIENCE_SECONDS
    check(study, found, reference)


def test_a_definition_that_is_edited(new_study: NewStudy, reference: Reference, inject: Inject) -> None:
    study = new_study(tracking_uri=NO_COPY)
    driver = study.start()
    study.reaches(driver, 1)
    inject("a definition edited while its study runs")
    study.define("target = 0.12", "target = 0.5")
    check(study, study.finish(driver), reference)
    study.finish(study.start(), code=2)
    assert "objective.target: was 0.12, now 0.5" in study.err
