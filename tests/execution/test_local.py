from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scalesearch.core.profile import ProfileFingerprint, ProfilePoint, Tried
from scalesearch.core.results import Outcome
from scalesearch.errors import DataError, ScalesearchError, WorkerLost, WorkloadError
from scalesearch.execution.local import LocalExecutor
from scalesearch.execution.messages import Ended, Measured, Ready, WorkerSetup
from scalesearch.execution.tasks import FingerprintTask, FitTask, TimingTask

from . import user_workloads
from .contract import ExecutorContract, go_on, next_event, request, run

NO_PROGRESS_SECONDS = 60.0  # starting a worker on a loaded machine


def setup(name: str, **options: object) -> WorkerSetup:
    return WorkerSetup(workload=f"execution.user_workloads:{name}", options=options, optimizer="momentum", replicas=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("execution")


@pytest.fixture(scope="module")
def orders(folder: Path) -> Path:
    path = folder / "orders"
    path.write_text("")
    return path


@pytest.fixture(scope="module")
def log(folder: Path) -> Path:
    return folder / "worker.log"


@pytest.fixture(scope="module")
def started(log: Path, orders: Path) -> Iterator[tuple[LocalExecutor, Ready]]:
    """One executor for all tests of this module: a worker takes seconds to start."""
    executor = LocalExecutor(
        setup("obedient", orders=str(orders)), log_path=log, no_progress_seconds=NO_PROGRESS_SECONDS
    )
    yield executor, executor.start()
    executor.close()


@pytest.fixture(autouse=True)
def no_orders(orders: Path) -> None:
    """The last test may have left a worker that hangs on its next step."""
    orders.write_text("")


@pytest.fixture
def executor(started: tuple[LocalExecutor, Ready]) -> LocalExecutor:
    return started[0]


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for has."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return status.rpartition(")")[2].split()[0] == "Z"


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 15.0
    while not is_gone(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.05)


def worker_pid() -> int:
    [worker] = multiprocessing.active_children()
    assert worker.pid is not None
    return worker.pid


class TestLocalExecutor(ExecutorContract):
    def test_a_ready_worker_says_what_it_has(self, started: tuple[LocalExecutor, Ready]) -> None:
        ready = started[1]
        assert (ready.replicas, ready.train_examples) == (1, user_workloads.TRAIN)
        assert set(ready.metrics) == {"val/loss", "val/classification_error", "val/cross_entropy_error"}
        assert ready.maximize == ()

    def test_the_worker_stays_warm(self, executor: LocalExecutor, orders: Path) -> None:
        run(executor, request(1), stop_after=2)
        pid = worker_pid()
        orders.write_text("step raise no reason to replace it")
        run(executor, request(2))
        orders.write_text("step need 1")
        run(executor, request(3))
        orders.write_text("")
        run(executor, request(4), stop_after=2)
        assert worker_pid() == pid

    def test_a_killed_worker_is_replaced(self, executor: LocalExecutor) -> None:
        executor.submit(request(1))
        next_event(executor)
        killed = worker_pid()
        os.kill(killed, signal.SIGKILL)
        ended = next_event(executor)
        assert isinstance(ended, Ended)
        assert ended.failure is Outcome.CRASHED
        assert "killed by SIGKILL" in ended.reason
        assert ended.worker_lost
        _, ended = run(executor, request(2), stop_after=2)
        assert ended.failure is None
        assert worker_pid() != killed

    def test_a_worker_that_died_between_two_trials_is_replaced(self, executor: LocalExecutor) -> None:
        run(executor, request(1), stop_after=1)
        os.kill(worker_pid(), signal.SIGKILL)  # and the next trial is submitted at once
        _, ended = run(executor, request(2), stop_after=2)
        if ended.failure is not None:  # it took the request before it was gone
            assert "SIGKILL" in ended.reason
            _, ended = run(executor, request(3), stop_after=2)
        assert ended.failure is None

    def test_nothing_waits_for_a_new_worker_which_may_be_killed_as_well(self, executor: LocalExecutor) -> None:
        run(executor, request(1), stop_after=1)
        [worker] = multiprocessing.active_children()
        worker.kill()
        worker.join()  # its last thread may be gone later than its first
        since = time.monotonic()
        executor.submit(request(2))
        assert executor.next_event(timeout_seconds=0.1) is None
        assert time.monotonic() - since < 2.0, "so that a study can be stopped meanwhile"
        os.kill(second := worker_pid(), signal.SIGKILL)
        _, ended = go_on(executor, request(2), stop_after=2)
        assert ended.failure is None
        assert worker_pid() not in (worker.pid, second)

    def test_what_the_worker_prints_goes_to_its_log(
        self, executor: LocalExecutor, orders: Path, log: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        orders.write_text("step print said in a step")
        executor.submit(request(1))
        assert isinstance(next_event(executor), Measured)
        executor.proceed()
        assert isinstance(next_event(executor), Measured)
        # It is in the log already, in case that the worker does not live on.
        assert log.read_text().count("said in a step\n") >= 2
        executor.stop()
        next_event(executor)
        assert capfd.readouterr() == ("", "")

    def test_a_worker_that_hangs_is_killed_with_all_that_it_started(
        self, executor: LocalExecutor, orders: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run(executor, request(1), stop_after=1)  # so that the worker is warm when its silence is timed
        monkeypatch.setattr(executor, "_no_progress_seconds", 2.0)
        child = folder / "child"
        orders.write_text(f"step hang {child}")
        pid, since = worker_pid(), time.monotonic()
        _, ended = run(executor, request(2))
        assert time.monotonic() - since < 10.0
        assert ended.failure is Outcome.CRASHED
        assert "reported nothing for 2 s" in ended.reason
        assert ended.worker_lost
        wait_until_gone(pid)
        wait_until_gone(int(child.read_text()))


@pytest.mark.parametrize(
    ("name", "error", "expected"),
    [
        ("raises_in_build_model", WorkloadError, ("KeyError", "no such layer", "user_workloads.py, line ")),
        ("lacks_its_data", DataError, ("the files of tests/softmax are missing: put them into /data",)),
        ("has_damaged_data", DataError, ("the file labels.npy is damaged",)),
        ("cannot_read_its_data", WorkloadError, ("FileNotFoundError", "no such file.npy", "user_workloads.py, line ")),
        ("exits_in_build_model", WorkloadError, ("the worker exited with code 5", "setup.log")),
        ("no_such_workload", WorkloadError, ("has no 'no_such_workload'",)),
    ],
)
def test_a_worker_that_cannot_be_set_up_says_why(
    tmp_path: Path, name: str, error: type[ScalesearchError], expected: tuple[str, ...]
) -> None:
    executor = LocalExecutor(setup(name), log_path=tmp_path / "setup.log", no_progress_seconds=60.0)
    with pytest.raises(error) as raised:
        executor.start()
    for part in expected:
        assert part in str(raised.value)
    assert "Traceback" not in str(raised.value)
    executor.close()


SAYS_SOMETHING = """
import sys
from pathlib import Path
from scalesearch.execution.worker import _write_output_to

_write_output_to(Path(sys.argv[1]))
print("said", flush=True)
print("said as an error", file=sys.stderr)
Path(sys.argv[2]).write_text("went on")
"""


def test_a_full_disk_takes_no_log_and_ends_no_trial(tmp_path: Path) -> None:
    for log, kept in (("/dev/full", ""), (str(tmp_path / "log"), "said\nsaid as an error\n")):
        done = subprocess.run([sys.executable, "-c", SAYS_SOMETHING, log, str(tmp_path / "done")], check=True)
        assert done.returncode == 0
        assert (tmp_path / "done").read_text() == "went on"
        (tmp_path / "done").unlink()
        if kept:
            assert Path(log).read_text() == kept


DRIVER = """
import sys
from pathlib import Path
from execution.contract import next_event, request
from execution.test_local import setup, worker_pid
from scalesearch.execution.local import LocalExecutor

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    executor = LocalExecutor(
        setup("obedient", orders=str(folder / "orders")), log_path=folder / "log", no_progress_seconds=60.0
    )
    executor.start()
    executor.submit(request())
    heavy = sorted({"tensorflow", "keras"} & set(sys.modules))
    print(worker_pid(), heavy, flush=True)
    next_event(executor)
"""


def test_a_worker_ends_with_its_driver_which_never_imports_tensorflow(tmp_path: Path) -> None:
    child = tmp_path / "child"
    (tmp_path / "orders").write_text(f"step hang {child}")
    (tmp_path / "driver.py").write_text(DRIVER)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    driver = subprocess.Popen(
        [sys.executable, str(tmp_path / "driver.py"), str(tmp_path)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert driver.stdout is not None
        pid, _, heavy = driver.stdout.readline().strip().partition(" ")
        assert heavy == "[]"
        deadline = time.monotonic() + 15.0
        while not child.exists() or not child.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert not is_gone(int(pid))
    finally:
        driver.kill()
        driver.communicate()
    wait_until_gone(int(pid))
    wait_until_gone(int(child.read_text()))


def fit_task(**options: int) -> FitTask:
    return FitTask(**{"smallest": 1, "largest": 4, **options}, momentum=0.9, limit_seconds=60.0)


def test_a_worker_answers_tasks_between_trials(executor: LocalExecutor, orders: Path) -> None:
    _, ended = run(executor, request(1), stop_after=1)
    assert ended.failure is None, ended
    pid = worker_pid()
    [found] = executor.answers(FingerprintTask())
    assert isinstance(found, ProfileFingerprint)
    assert found.workload["name"] == "execution.user_workloads:obedient"
    orders.write_text("step need 2")
    tried = [t for t in executor.answers(fit_task()) if isinstance(t, Tried) and t.fits is not None]
    orders.write_text("")
    assert {t.per_replica_batch_size: t.fits for t in tried} == {1: True, 2: True, 4: False, 3: False}
    timing = TimingTask(sizes=(2, 4), accumulations=(), momentum=0.9, precision=1.0, limit_seconds=0.1)
    points = list(executor.answers(timing))
    assert {p.per_replica_batch_size for p in points if isinstance(p, ProfilePoint)} == {2, 4}
    _, ended = run(executor, request(2), stop_after=1)
    assert ended.failure is None
    assert worker_pid() == pid


def test_a_worker_that_dies_of_a_task_is_lost_and_replaced(
    executor: LocalExecutor, orders: Path, tmp_path: Path
) -> None:
    orders.write_text(f"step hang {tmp_path / 'child'}")
    answers = executor.answers(fit_task())
    assert next(answers) == Tried(per_replica_batch_size=1)
    os.kill(worker_pid(), signal.SIGKILL)
    with pytest.raises(WorkerLost, match="killed by SIGKILL"):
        next(answers)
    orders.write_text("")
    assert [type(a) for a in executor.answers(FingerprintTask())] == [ProfileFingerprint]


def test_what_goes_wrong_in_a_task_is_raised_here(executor: LocalExecutor, orders: Path) -> None:
    orders.write_text("step raise no such thing")
    with pytest.raises(WorkloadError, match="no such thing"):
        list(executor.answers(fit_task()))
    orders.write_text("")
    _, ended = run(executor, request(1), stop_after=1)
    assert ended.failure is None
