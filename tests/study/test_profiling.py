"""Profiles of a worker that answers as it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from scalesearch.core.budget import Budget
from scalesearch.core.profile import ReplicaProfile, Tried
from scalesearch.errors import WorkerLost
from scalesearch.execution.tasks import Content, FitTask, Task, TimingTask
from scalesearch.study.profiling import ProfilePlan, affordable_seconds, covers, measure_profile
from tests.core.profiles import point

PLAN = ProfilePlan(replicas=2, smallest=4, largest=64, accumulations=(2,), momentum=0.9, limit_seconds=10.0)


class Worker:
    """Doubles as a worker does; it dies of sizes above `dies_above`, and of those above `fits` it says so."""

    def __init__(self, *, fits: int = 1000, dies_above: int = 1000, tries: int = 100) -> None:
        self.tasks: list[Task] = []
        self._fits, self._dies_above, self._tries = fits, dies_above, tries

    def answers(self, task: Task) -> Iterator[Content]:
        self.tasks.append(task)
        if isinstance(task, FitTask):
            yield from self._try(task)
        elif isinstance(task, TimingTask):
            for size in reversed(task.sizes):
                yield point(0.5, share=size, replicas=2)
                yield point(0.1, share=size, replicas=2)

    def _try(self, task: FitTask) -> Iterator[Tried]:
        size, ceiling = task.smallest, task.too_large or task.largest + 1
        for _ in range(self._tries):
            if size >= ceiling:
                return
            yield Tried(per_replica_batch_size=size)
            if size > self._dies_above:
                raise WorkerLost("killed by SIGKILL")
            yield Tried(per_replica_batch_size=size, fits=size <= self._fits, seconds=0.25)
            if size > self._fits:
                return
            size *= 2


def profiled(worker: Worker) -> ReplicaProfile:
    *_, last = measure_profile(worker, PLAN)
    assert isinstance(last, ReplicaProfile)
    return last


def test_all_sizes_of_the_plan_are_timed() -> None:
    worker = Worker()
    part = profiled(worker)
    assert part.replicas == 2
    assert (part.largest_per_replica_batch_size, part.limited_by) == (64, "definition")
    assert [p.per_replica_batch_size for p in part.points] == [4, 8, 16, 32, 64]
    assert {p.step_seconds for p in part.points} == {0.1}  # the last that is said of a size counts
    assert part.compile_seconds == 0.25
    timing = worker.tasks[-1]
    assert isinstance(timing, TimingTask)
    assert timing.accumulations == (2,)
    assert timing.limit_seconds == 10.0 - 4 * 0.25  # what trying took, but for the first, which compiles


def test_what_does_not_fit_is_not_timed() -> None:
    part = profiled(Worker(fits=16))
    assert (part.largest_per_replica_batch_size, part.limited_by) == (16, "memory")
    assert [p.per_replica_batch_size for p in part.points] == [4, 8, 16]


def test_what_a_worker_dies_of_does_not_fit() -> None:
    worker = Worker(dies_above=20)
    part = profiled(worker)
    assert (part.largest_per_replica_batch_size, part.limited_by) == (16, "memory")
    again = worker.tasks[1]
    assert isinstance(again, FitTask)
    assert (again.smallest, again.too_large) == (16, 32)


def test_where_not_even_one_example_fits_nothing_is_timed() -> None:
    part = profiled(Worker(fits=0))
    assert (part.largest_per_replica_batch_size, part.limited_by, part.points) == (0, "memory", ())


def test_sizes_that_were_not_tried_in_time_are_not_said_to_fit() -> None:
    part = profiled(Worker(tries=2))
    assert (part.largest_per_replica_batch_size, part.limited_by) == (8, "time")


def test_a_worker_that_is_lost_while_it_tries_nothing_is_no_answer() -> None:
    class Lost(Worker):
        def answers(self, task: Task) -> Iterator[Content]:
            raise WorkerLost("killed by SIGTERM")
            yield

    with pytest.raises(WorkerLost):
        list(measure_profile(Lost(), PLAN))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: profiled(Worker()), True),
        (lambda: profiled(Worker(fits=16)), True),  # more does not fit
        (lambda: profiled(Worker(tries=3)), False),
        (lambda: profiled(Worker(fits=0)), True),
    ],
)
def test_what_was_measured_is_used_again_if_it_answers_the_plan(
    make: Callable[[], ReplicaProfile], expected: bool
) -> None:
    assert covers(make(), PLAN) is expected


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (Budget(wall_clock_seconds=300.0), 6.0),
        (Budget(device_seconds=1200.0), 6.0),  # on 4 replicas
        (Budget(wall_clock_seconds=300.0, device_seconds=800.0), 4.0),
        (Budget(wall_clock_seconds=90.0), 0.0),  # too short
        (Budget(wall_clock_seconds=36_000.0), 60.0),
        (Budget(trials=20), 10.0),
    ],
)
def test_a_profile_takes_two_percent_of_the_budget_at_most(budget: Budget, expected: float) -> None:
    assert affordable_seconds(budget, replicas=4) == pytest.approx(expected)
