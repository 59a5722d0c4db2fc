"""What every executor must do. A test class of one inherits these and provides the fixtures `executor` and `orders`.

`executor` has been started on the workload `obedient`; `orders` is the file that this workload obeys, empty at first.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scalesearch.core.evaluation import EvaluationPlan
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Measurement, Objective, Outcome
from scalesearch.core.schedule import Constant
from scalesearch.execution.messages import Ended, Measured, Saved, TrialRequest

from .user_workloads import TRAIN

OBJECTIVE = Objective(metric="val/classification_error", direction="minimize", target=0.01, minimize="steps")
EPOCHS = 4
PATIENCE_SECONDS = 120.0


def request(number: int = 0, *, seed: int = 1, global_batch_size: int = 8) -> TrialRequest:
    return TrialRequest(
        number=number,
        parameters=Parameters(global_batch_size=global_batch_size, schedule=Constant(learning_rate=0.1), momentum=0.9),
        seed=seed,
        plan=EvaluationPlan(
            objective=OBJECTIVE,
            boundaries=(),
            first_examples=16,
            max_interval_examples=TRAIN,
            end_examples=EPOCHS * TRAIN,
        ),
    )


def next_event(executor: Any) -> Measured | Ended:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        event = executor.next_event(timeout_seconds=0.5)
        if event is not None:
            assert isinstance(event, Measured | Ended)
            return event
    raise AssertionError(f"nothing happened within {PATIENCE_SECONDS:g} s")


def run(executor: Any, trial: TrialRequest, **how: Any) -> tuple[list[Measurement], Ended]:
    """Run a trial to its end; `how` is that of `go_on`."""
    executor.submit(trial)
    return go_on(executor, trial, **how)


def go_on(
    executor: Any,
    trial: TrialRequest,
    *,
    stop_after: int | None = None,
    evaluate_test: bool = False,
    snapshots: Mapping[int, Path] | None = None,
    saved: list[Saved] | None = None,
) -> tuple[list[Measurement], Ended]:
    """Run a trial that was submitted to its end; it is stopped after `stop_after` measurements.

    `snapshots` are asked for after so many measurements; what became of them is added to `saved`.
    """
    measured: list[Measurement] = []
    while True:
        event = next_event(executor)
        assert event.number == trial.number
        if event.saved is not None and saved is not None:
            saved.append(event.saved)
        if isinstance(event, Ended):
            return measured, event
        measured.append(event.measurement)
        snapshot = (snapshots or {}).get(len(measured))
        if len(measured) == stop_after:
            executor.stop(evaluate_test=evaluate_test, snapshot=snapshot)
        else:
            executor.proceed(snapshot=snapshot)


def numbers(measured: list[Measurement]) -> list[tuple[int, int, dict[str, float]]]:
    """What is the same in every run of a trial: all but the times."""
    return [(m.step, m.examples, dict(m.metrics)) for m in measured]


SNAPSHOT = "of a trial.safetensors"


class ExecutorContract:
    """Inherit as `class TestMyExecutor(ExecutorContract)`."""

    def test_a_trial_runs_its_full_length(self, executor: Any) -> None:
        assert executor.is_idle
        measured, ended = run(executor, request(7))
        assert (measured[0].step, measured[0].examples) == (0, 0)
        steps = [m.step for m in measured]
        assert steps == sorted(set(steps))
        assert measured[-1].examples == EPOCHS * TRAIN
        assert all(m.examples == 8 * m.step for m in measured)
        assert set(measured[0].metrics) >= {"val/loss", "val/classification_error"}
        elapsed = [m.elapsed_seconds for m in measured]
        assert elapsed == sorted(elapsed)
        assert ended.elapsed_seconds is not None
        assert ended.elapsed_seconds >= elapsed[-1] > 0
        assert (ended.failure, ended.reason, dict(ended.test_metrics)) == (None, "", {})
        assert executor.is_idle

    def test_a_trial_waits_for_leave_to_go_on(self, executor: Any) -> None:
        executor.submit(request())
        assert isinstance(next_event(executor), Measured)
        assert not executor.is_idle
        assert executor.next_event(timeout_seconds=0.3) is None
        executor.stop()
        assert isinstance(next_event(executor), Ended)
        assert executor.next_event(timeout_seconds=0.0) is None

    def test_a_trial_can_be_stopped(self, executor: Any) -> None:
        measured, ended = run(executor, request(), stop_after=3)
        assert len(measured) == 3
        assert (ended.failure, dict(ended.test_metrics)) == (None, {})

    def test_the_weights_of_a_stopped_trial_can_be_tested(self, executor: Any) -> None:
        _, ended = run(executor, request(), stop_after=2, evaluate_test=True)
        assert set(ended.test_metrics) >= {"test/loss", "test/classification_error"}
        assert all(isinstance(value, float) for value in ended.test_metrics.values())

    def test_the_same_request_gives_the_same_numbers(self, executor: Any) -> None:
        first, _ = run(executor, request(1, seed=5))
        between, _ = run(executor, request(2, seed=6), stop_after=4)
        second, _ = run(executor, request(3, seed=5))
        assert numbers(first) == numbers(second)
        assert numbers(between) != numbers(first)[:4]

    def test_one_trial_at_a_time(self, executor: Any) -> None:
        executor.submit(request(4))
        with pytest.raises(RuntimeError, match="trial 4 is still running"):
            executor.submit(request(5))
        assert isinstance(next_event(executor), Measured)
        executor.stop()
        assert isinstance(next_event(executor), Ended)

    def test_an_abandoned_trial_leaves_room_for_the_next(self, executor: Any) -> None:
        executor.submit(request(1))
        next_event(executor)
        executor.abandon()
        assert executor.is_idle
        assert executor.next_event(timeout_seconds=0.0) is None
        measured, ended = run(executor, request(2), stop_after=2)
        assert (ended.number, len(measured)) == (2, 2)

    def test_what_does_not_fit_in_memory_is_an_outcome(self, executor: Any, orders: Path) -> None:
        orders.write_text("step need 16")
        _, ended = run(executor, request(1, global_batch_size=24))
        assert ended.failure is Outcome.OUT_OF_MEMORY
        assert "24" in ended.reason
        assert ended.elapsed_seconds is not None
        measured, ended = run(executor, request(2, global_batch_size=16))
        assert ended.failure is None
        assert measured[-1].examples == EPOCHS * TRAIN

    def test_an_error_in_a_step_ends_its_trial_only(self, executor: Any, orders: Path) -> None:
        orders.write_text("step raise the user's own words")
        _, ended = run(executor, request(1))
        assert ended.failure is Outcome.CRASHED
        assert ended.reason.startswith("InvalidArgumentError: ValueError: the user's own words")
        assert "user_workloads.py, line " in ended.reason
        assert "Traceback" not in ended.reason
        orders.write_text("")
        _, ended = run(executor, request(2), stop_after=2)
        assert ended.failure is None

    def test_an_error_in_build_model_says_where(self, executor: Any, orders: Path) -> None:
        orders.write_text("build raise the user's own words")
        _, ended = run(executor, request(1, seed=1001))
        assert ended.failure is Outcome.CRASHED
        assert "ValueError: the user's own words" in ended.reason
        assert "user_workloads.py, line " in ended.reason
        assert "Traceback" not in ended.reason

    def test_an_error_in_compiling_a_step_says_what_and_where(self, executor: Any, orders: Path) -> None:
        executor.abandon()  # a new worker has nothing compiled
        orders.write_text("trace raise the user's own words")
        _, ended = run(executor, request(1))
        assert ended.failure is Outcome.CRASHED
        assert ended.reason.startswith("ValueError: the user's own words (user_workloads.py, line ")
        orders.write_text("")
        _, ended = run(executor, request(2), stop_after=2)
        assert ended.failure is None

    def test_a_call_of_exit_ends_its_trial_only(self, executor: Any, orders: Path) -> None:
        orders.write_text("build exit 3")
        _, ended = run(executor, request(1, seed=1002))
        assert ended.failure is Outcome.CRASHED
        assert "exited with code 3" in ended.reason
        assert not ended.worker_lost, "it left of its own accord"
        orders.write_text("")
        _, ended = run(executor, request(2), stop_after=2)
        assert ended.failure is None

    def test_a_trial_goes_on_from_a_snapshot(self, executor: Any, tmp_path: Path) -> None:
        saved: list[Saved] = []
        path = tmp_path / "a new folder" / SNAPSHOT
        whole, _ = run(executor, request(1), snapshots={4: path}, saved=saved)
        assert [(s.path, s.problem) for s in saved] == [(path, "")], "it is told of once"
        assert saved[0].seconds > 0.0
        run(executor, request(2, seed=9), stop_after=2)
        rest, ended = run(executor, replace(request(3), start=path))
        assert (ended.failure, ended.start_problem, ended.saved) == (None, "", None)
        assert numbers(rest) == numbers(whole)[4:]
        assert [m.train_loss for m in rest] == [m.train_loss for m in whole[4:]]
        assert rest[0].elapsed_seconds > whole[3].elapsed_seconds, "its time goes on, too"

    def test_a_stopped_trial_goes_on_where_it_stopped(self, executor: Any, tmp_path: Path) -> None:
        saved: list[Saved] = []
        path = tmp_path / SNAPSHOT
        whole, _ = run(executor, request(1))
        first, ended = run(executor, request(2), stop_after=3, snapshots={3: path}, saved=saved)
        assert [s.path for s in saved] == [path]
        assert ended.saved == saved[0]
        rest, _ = run(executor, replace(request(3), start=path))
        assert numbers(first) + numbers(rest) == numbers(whole)

    def test_a_later_snapshot_takes_the_place_of_an_earlier_one(self, executor: Any, tmp_path: Path) -> None:
        saved: list[Saved] = []
        path = tmp_path / SNAPSHOT
        whole, _ = run(executor, request(1), snapshots={3: path, 4: path, 5: path}, saved=saved)
        assert [s.problem for s in saved] == [""] * len(saved)
        rest, _ = run(executor, replace(request(2), start=path))
        assert numbers(rest) == numbers(whole)[5:]

    def test_a_snapshot_that_cannot_be_written_ends_nothing(self, executor: Any, tmp_path: Path) -> None:
        saved: list[Saved] = []
        (tmp_path / "file").write_text("in the way")
        snapshots = {2: tmp_path / "file" / SNAPSHOT, 4: tmp_path / SNAPSHOT}
        measured, ended = run(executor, request(1), snapshots=snapshots, saved=saved)
        assert ended.failure is None
        assert measured[-1].examples == EPOCHS * TRAIN
        assert str(tmp_path / "file" / SNAPSHOT) in saved[0].problem
        assert (saved[-1].path, saved[-1].problem) == (tmp_path / SNAPSHOT, "")

    def test_a_trial_does_not_go_on_from_what_is_no_snapshot_of_it(self, executor: Any, tmp_path: Path) -> None:
        run(executor, request(1), stop_after=3, snapshots={3: tmp_path / SNAPSHOT})
        (tmp_path / "damaged").write_bytes((tmp_path / SNAPSHOT).read_bytes()[:-1])
        for number, trial, why in (
            (2, replace(request(2), start=tmp_path / "missing"), "cannot be read: No such file or directory"),
            (3, replace(request(3), start=tmp_path / "damaged"), "is damaged"),
            (4, replace(request(4, seed=2), start=tmp_path / SNAPSHOT), "`seed`"),
            (5, replace(request(5, global_batch_size=16), start=tmp_path / SNAPSHOT), "`global_batch_size`"),
        ):
            measured, ended = run(executor, trial)
            assert (measured, ended.number, ended.failure, ended.reason) == ([], number, None, "")
            assert why in ended.start_problem
            assert str(trial.start) in ended.start_problem
        measured, ended = run(executor, request(6), stop_after=2)
        assert (len(measured), ended.start_problem) == (2, "")
