"""Trials that differ in later decays go on from each other's snapshots, and nothing but the cost is different."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import optuna
import pytest

from scalesearch.core.axis import Interval
from scalesearch.core.budget import Budget
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Measurement, Outcome, TrialResult
from scalesearch.core.schedule import Constant, Piecewise
from scalesearch.core.schedule_space import ConstantSpace, PiecewiseSpace
from scalesearch.core.space import BatchSizes, SearchSpace
from scalesearch.execution.messages import Saved
from scalesearch.search.database import open_storage
from scalesearch.search.queue import OpenTrial
from scalesearch.study import Forking, Noted, SnapshotFolder, TrialMeasured, forking
from scalesearch.study.snapshot_times import FORK_FROM, FORK_RATIO, MOST_OVERHEAD, Overhead, SnapshotTimes

from .scripted import EXAMPLES_TO_TARGET, MAX_EXAMPLES, Session, resolved
from .test_snapshots import curve, finished

Storage = optuna.storages.BaseStorage
NewDatabase = Callable[[Path], str]

FORKS = Forking(decays=2, max_examples=MAX_EXAMPLES, limit_bytes=2**20)
SPACE = SearchSpace(
    batch_sizes=BatchSizes(low=32, high=32, multiple_of=None, divisor=1),
    learning_rate=Interval(0.1, 0.1),
    momentum=None,
    schedule=PiecewiseSpace(decays=2, boundaries=Interval(400, MAX_EXAMPLES), decay_factor=Interval(0.1, 0.1)),
)
PINNED = resolved(space=SPACE, baseline=None, evaluation_ratio=1.05)
EIGHT = Budget(trials=8)


def session(storage: Storage, *, budget: Budget = EIGHT, forks: Forking | None = FORKS, **options: Any) -> Session:
    options = {"sampler_name": "random", "what": PINNED, **options}
    return Session(storage, budget=budget, forks=forks, **options)


def decaying(*at: int, rate: float = 0.1) -> Parameters:
    schedule = Piecewise(learning_rate=rate, decay_factor=0.1, boundaries=at)
    return Parameters(global_batch_size=32, schedule=schedule)


TRIAL = OpenTrial(number=3, parameters=decaying(2000, 3000), seed=0, is_baseline=False)


def run_queued(used: Session, *runs: Parameters) -> list[TrialResult]:
    for parameters in runs:
        used.store.enqueue(parameters, SPACE)
    used.run()
    return used.results


def sizes(used: Session) -> int:
    return sum(path.stat().st_size for path in used.snapshots.glob("*"))


@pytest.mark.parametrize("sampler_name", ["random", "tpe", "scaling"])
def test_a_study_with_forks_does_what_one_without_does_for_less(
    tmp_path: Path, new_database: NewDatabase, sampler_name: str
) -> None:
    with_forks, without = (
        session(open_storage(new_database(tmp_path / f"{f is None}.db")), forks=f, sampler_name=sampler_name)
        for f in (FORKS, None)
    )
    with_forks.run()
    without.run()
    assert finished(with_forks) == finished(without)
    assert not any(r.shared_steps for r in without.results)
    forked = [r for r in with_forks.results if r.shared_steps]
    assert len(forked) > 3
    assert with_forks.executor.examples < 0.8 * without.executor.examples
    for used in (with_forks, without):
        assert used.study.spent().examples == used.executor.examples, "the ledger is what was trained"
        assert used.study.spent().device_seconds == pytest.approx(2 * used.executor.seconds)
    for result in forked:
        assert result.examples == result.measurements[-1].examples
        assert result.shared_steps in {m.step for m in result.measurements}


def test_a_fork_is_said_to_be_one(storage: Storage) -> None:
    used = session(storage, budget=Budget(trials=2))
    for at in ((2000, 3000), (1500, 3000)):
        used.store.enqueue(decaying(*at), SPACE)
    said = [e.sentence for e in used.events() if isinstance(e, Noted)]
    shared = used.results[1].shared_steps
    assert 1500 / 1.3 <= shared * 32 <= 1500
    assert said == [f"trial 1 goes on from trial 0, at step {shared:,}"]


# Seeds


def test_new_points_of_a_trunk_have_one_seed_and_repeats_their_own(storage: Storage) -> None:
    runs = (
        decaying(2000, 3000),
        decaying(1500, 3000),
        decaying(2000, 3000),
        decaying(1700, 3000),
        decaying(2000, 9000),
    )
    used = session(storage, budget=Budget(trials=5))
    results = run_queued(used, *runs)
    trunk, repeat = results[0].seed, results[2].seed
    assert [r.seed for r in results] == [trunk, trunk, repeat, trunk, trunk]
    assert repeat != trunk
    assert [r.shared_steps > 0 for r in results] == [False, True, False, True, True]


def test_where_no_trial_begins_alike_every_one_has_a_seed_of_its_own(storage: Storage) -> None:
    results = run_queued(session(storage, budget=Budget(trials=3)), *(decaying(2000, rate=r) for r in (0.1, 0.2, 0.3)))
    assert len({r.seed for r in results}) == 3


# What goes wrong


def test_a_trunk_that_cannot_be_read_is_trained_again(storage: Storage) -> None:
    used = session(storage, budget=Budget(trials=1))
    run_queued(used, decaying(2000, 3000))
    kept = sorted(used.snapshots.glob("*"))
    for path in kept:
        path.write_text("no snapshot")
    again = session(storage, budget=Budget(trials=2))
    results = run_queued(again, decaying(1500, 3000))
    assert results[1].shared_steps == 0
    assert results[1].cost.examples == results[1].measurements[-1].examples == again.executor.examples
    assert len([path for path in kept if path.exists() and path.read_text() == "no snapshot"]) == len(kept) - 1


def test_a_fork_that_is_interrupted_is_continued(storage: Storage, tmp_path: Path, new_database: NewDatabase) -> None:
    whole = session(open_storage(new_database(tmp_path / "whole.db")), budget=Budget(trials=2))
    expected = run_queued(whole, decaying(2000, 3000), decaying(1500, 3000))
    first = session(storage)
    for at in ((2000, 3000), (1500, 3000)):
        first.store.enqueue(decaying(*at), SPACE)
    for event in first.events():
        if isinstance(event, TrialMeasured) and event.trial.number == 1 and event.measurement.examples > 1600:
            first.stop_requested.set()
    assert first.results[1].outcome is Outcome.INTERRUPTED
    second = session(storage, budget=Budget(trials=2))
    said = [e.sentence for e in second.events() if isinstance(e, Noted)]
    step = first.results[1].measurements[-1].step
    assert said[0] == f"trial 2 continues trial 1, which was interrupted, at step {step:,}"
    after = second.results[2]
    assert after.seed == expected[1].seed == expected[0].seed
    assert curve(after) == curve(expected[1])
    assert first.results[1].cost.examples + after.cost.examples == expected[1].cost.examples


# What is kept


def test_what_is_kept_is_limited(storage: Storage) -> None:
    free = session(storage)
    free.run()
    limit = sizes(free) // 4
    limited = session(optuna.storages.InMemoryStorage(), forks=replace(FORKS, limit_bytes=limit))
    limited.run()
    assert 0 < sizes(limited) <= limit
    assert finished(limited) == finished(free)
    assert free.executor.examples < limited.executor.examples


def test_what_was_used_last_stays(tmp_path: Path) -> None:
    folder = SnapshotFolder(tmp_path, forks=replace(FORKS, limit_bytes=20))
    for number, age in ((0, 30), (1, 10), (2, 20), (7, 99)):
        (path := tmp_path / f"trial-{number}-step-5.safetensors").write_text("0123456789")
        os.utime(path, (1e9 - age, 1e9 - age))
    folder.sweep(keep=[7])
    folder.trial_started(replace(TRIAL, number=8), PINNED.evaluation_plan(TRIAL.parameters, EXAMPLES_TO_TARGET), None)
    folder.trial_ended(Outcome.CAPPED)
    left = {path.name for path in tmp_path.glob("*")}
    assert left == {"trial-1-step-5.safetensors", "trial-7-step-5.safetensors"}, "7 was interrupted, and needs its own"


@pytest.mark.parametrize("outcome", [Outcome.CAPPED, Outcome.DIVERGED, Outcome.OUT_OF_MEMORY, Outcome.CRASHED])
def test_nothing_is_kept_of_a_trial_that_failed(tmp_path: Path, outcome: Outcome) -> None:
    folder = SnapshotFolder(tmp_path / "s", forks=FORKS)
    folder.trial_started(TRIAL, PINNED.evaluation_plan(TRIAL.parameters, EXAMPLES_TO_TARGET), None)
    for now, _ in walk(TRIAL.parameters):
        if (path := folder.due(now)) is not None:
            path.parent.mkdir(exist_ok=True)
            path.write_text("snapshot")
            assert folder.written(Saved(path=path, seconds=0.0)) is None
    assert len(list(tmp_path.glob("s/*"))) > 5
    folder.trial_ended(outcome)
    assert (tmp_path / "s").exists() == (outcome is Outcome.CAPPED)


@pytest.mark.parametrize(
    ("change", "sampler_name", "expected"),
    [
        ({}, "random", FORKS),
        ({}, "scaling", FORKS),
        ({"learning_rate": Interval(0.1, 0.2)}, "scaling", FORKS),
        ({"learning_rate": Interval(0.1, 0.2)}, "tpe", None),
        ({"momentum": Interval(0.5, 0.9)}, "tpe", None),
        ({"momentum": Interval(0.9, 0.9)}, "tpe", FORKS),
        ({"schedule": ConstantSpace()}, "scaling", None),
    ],
)
def test_states_are_kept_only_where_trials_may_fork(
    change: dict[str, Any], sampler_name: Any, expected: Forking | None
) -> None:
    space, limits = replace(SPACE, **change), {"max_examples": MAX_EXAMPLES, "limit_bytes": 2**20}
    assert forking(space, sampler_name=sampler_name, **limits) == expected
    assert forking(space, sampler_name=sampler_name, **{**limits, "limit_bytes": 0}) is None


# When


def walk(parameters: Parameters, *, seconds: float = 0.0) -> Iterator[tuple[Measurement, bool]]:
    """The measurements of a run of a second per 100 examples, and whether each is kept; a snapshot takes `seconds`."""
    plan = PINNED.evaluation_plan(parameters, EXAMPLES_TO_TARGET)
    times = SnapshotTimes(parameters, plan, since=None, forks=FORKS, overhead=(overhead := Overhead()))
    step: int | None = 0
    while step is not None:
        examples = 32 * step
        now = Measurement(
            step=step,
            examples=examples,
            train_seconds=0.0,
            elapsed_seconds=50.0 + examples / 100,
            train_loss=0.0,
            metrics={EXAMPLES_TO_TARGET.metric: 0.9},
        )
        times.due(now)
        if is_fork := times.is_fork(now):
            times.ask(now, to_fork=True)
            times.asked = False
            overhead.took(seconds)
        yield now, is_fork
        step = plan.next_step([now], global_batch_size=32)


def test_what_is_kept_is_geometric_and_lies_before_and_at_boundaries() -> None:
    walked = list(walk(decaying(3000, 6000)))
    kept = [now.examples for now, is_kept in walked if is_kept]
    measured = [now.examples for now, _ in walked]
    assert kept[0] >= FORK_FROM * MAX_EXAMPLES
    assert all(b <= 1.3 * FORK_RATIO * a for a, b in pairwise(kept))
    first, second = (min(e for e in measured if e >= at) for at in (3000, 6000))
    assert first in kept
    assert measured[measured.index(first) - 1] in kept
    assert kept[-1] == measured[measured.index(second) - 1], "nobody decays later"
    assert len(kept) < 20


def test_a_run_without_decays_is_kept_to_its_end() -> None:
    constant = Parameters(global_batch_size=32, schedule=Constant(learning_rate=0.1))
    kept = [now.examples for now, is_kept in walk(constant) if is_kept]
    assert kept[-1] > MAX_EXAMPLES / 1.6


@pytest.mark.parametrize("seconds", [0.01, 0.3, 5.0])
def test_what_is_kept_takes_a_small_share_of_the_time(seconds: float) -> None:
    walked = list(walk(decaying(3000, 6000), seconds=seconds))
    spent = seconds * sum(is_kept for _, is_kept in walked)
    assert spent <= max(MOST_OVERHEAD * MAX_EXAMPLES / 100, seconds)
    assert spent > 0.0
