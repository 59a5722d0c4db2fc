"""No sequence of events lets a study spend more than its budget plus one evaluation interval."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal
from unittest.mock import patch

import optuna
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from scalesearch.core.budget import Budget
from scalesearch.core.results import Outcome
from scalesearch.search import storage as storage_module
from scalesearch.study import StudyEnded
from scalesearch.study import account as account_module

from .scripted import REPLICAS, SECONDS_PER_EXAMPLE, TRAIN_EXAMPLES, Clock, Fate, Session, resolved

Storage = optuna.storages.BaseStorage

PHASES = (Phase.generate, Phase.shrink)
PER_EXAMPLE = {
    "examples": 1.0,
    "epochs": 1 / TRAIN_EXAMPLES,
    "device_seconds": SECONDS_PER_EXAMPLE * REPLICAS,
    "wall_clock_seconds": SECONDS_PER_EXAMPLE,
}


@dataclass(frozen=True)
class Part:
    """One session of a study: after `events` events its driver does `then`; `fates` are by order of its trials."""

    events: int
    then: Literal["is stopped", "is killed", "raises"]
    fates: tuple[Fate | None, ...]


fates = st.builds(
    Fate,
    at=st.integers(0, 5),
    failure=st.sampled_from([Outcome.CRASHED, Outcome.OUT_OF_MEMORY]),
)
parts = st.builds(
    Part,
    events=st.integers(0, 80),
    then=st.sampled_from(["is stopped", "is killed", "raises"]),
    fates=st.tuples(*[st.none() | fates | fates] * 5),
)


class Driver:
    """Runs sessions on one storage and remembers what they used in all."""

    def __init__(self, storage: Storage, budget: Budget, what: Any) -> None:
        self.storage, self.budget, self.what = storage, budget, what
        self.clock = Clock()
        self.examples = self.largest_interval = self.seconds = 0
        self.over = 0
        self._killed: list[tuple[Session, Iterator[object]]] = []

    def run(self, part: Part | None) -> StudyEnded | None:
        session = Session(self.storage, budget=self.budget, what=self.what, clock=self.clock)
        known = len(optuna.load_study(study_name="s", storage=self.storage).get_trials())
        session.executor.fates = {known + i: f for i, f in enumerate(part.fates) if f} if part else {}
        generator = session.events()
        ended = self._drive(session, generator, part)
        self.examples += session.executor.examples
        self.seconds += session.executor.seconds
        self.largest_interval = max(self.largest_interval, session.executor.largest_interval)
        self.over = sum(r.outcome is not Outcome.INTERRUPTED for r in session.results)
        return ended

    def _drive(self, session: Session, generator: Iterator[Any], part: Part | None) -> StudyEnded | None:
        for event in islice(generator, part.events) if part else generator:
            if isinstance(event, StudyEnded):
                return event
        if part is None:
            raise AssertionError("a study's last event is StudyEnded")
        if part.then == "is stopped":
            session.stop_requested.set()
            *_, last = generator
            assert isinstance(last, StudyEnded)
        elif part.then == "raises":
            generator.close()  # type: ignore[attr-defined]
        else:
            self._killed.append((session, generator))
        return None

    def bury(self) -> None:
        """Let the generators of killed drivers end without a word."""
        for session, generator in self._killed:
            session.study._running = None
            generator.close()  # type: ignore[attr-defined]


@settings(max_examples=100, derandomize=True, deadline=None, phases=PHASES)
@given(
    unit=st.sampled_from(sorted(PER_EXAMPLE)),
    limit=st.integers(2_000, 60_000),
    sessions=st.lists(parts, min_size=1, max_size=4),
    ratio=st.sampled_from([1.05, 1.5, 2.0]),
    first=st.sampled_from([10, 100, 1_000]),
)
def test_no_sequence_of_events_overspends(
    unit: str, limit: int, sessions: list[Part], ratio: float, first: int
) -> None:
    budget = Budget(**{unit: limit * PER_EXAMPLE[unit]})
    what = resolved(evaluation_ratio=ratio, first_evaluation_examples=first)
    driver = Driver(optuna.storages.InMemoryStorage(), budget, what)
    # As for evaluations that are a second or more apart: each of them is written. (A kill costs the account up to a
    # second of work that was not.)
    with patch.object(storage_module, "FLUSH_SECONDS", 0.0), patch.object(account_module, "FLUSH_SECONDS", 0.0):
        for part in sessions:
            driver.run(part)
        # Crashes in a row can end a session before its budget is spent.
        ended = driver.run(None)
    driver.bury()
    assert ended is not None
    overspent = driver.examples - limit
    assert overspent <= driver.largest_interval, f"{overspent} examples too many"
    spent = getattr(ended.spent, unit) / PER_EXAMPLE[unit]
    assert spent >= limit - 1e-6, "the last session has no reason to end before its budget"
    assert spent >= driver.examples - 1e-6, "all that was used is in the account"


@settings(max_examples=25, derandomize=True, deadline=None, phases=PHASES)
@given(limit=st.integers(1, 9), sessions=st.lists(parts, max_size=4))
def test_a_number_of_trials_means_that_number(limit: int, sessions: list[Part]) -> None:
    driver = Driver(optuna.storages.InMemoryStorage(), Budget(trials=limit), resolved())
    for part in sessions:
        driver.run(part)
    driver.run(None)
    driver.bury()
    assert driver.over == limit


def test_25_trials_are_25(storage: Storage) -> None:
    session = Session(storage, budget=Budget(trials=25))
    ended = session.run()
    assert len(session.results) == len(session.executor.requests) == 25
    assert ended.stopped_by == "the budget is spent (number of trials)"


@pytest.mark.parametrize(
    ("budget", "unit"),
    [
        (Budget(examples=5_000, trials=99), "examples"),
        (Budget(epochs=5.0, device_seconds=1e9), "epochs"),
        (Budget(device_seconds=100.0, examples=10**9), "device time"),
        (Budget(wall_clock_seconds=50.0, epochs=1e9), "wall clock"),
        (Budget(trials=2, examples=10**9), "number of trials"),
    ],
)
def test_the_first_unit_to_run_out_ends_the_study_and_is_named(storage: Storage, budget: Budget, unit: str) -> None:
    session = Session(storage, budget=budget)
    ended = session.run()
    assert ended.stopped_by == f"the budget is spent ({unit})"
    assert not ended.by_user
    last = session.results[-1]
    if last.outcome is Outcome.INTERRUPTED:
        assert last.reason == f"the budget was spent ({unit})"


def test_a_budget_that_is_spent_before_it_begins_starts_no_trial(storage: Storage) -> None:
    session = Session(storage, budget=Budget(wall_clock_seconds=1.0))
    session.clock.now += 5.0  # the worker took so long to start
    ended = session.run()
    assert session.results == []
    assert ended.stopped_by == "the budget is spent (wall clock)"
    assert ended.findings.recommendation is None


def test_a_larger_budget_continues(storage: Storage) -> None:
    first = Session(storage, budget=Budget(examples=3_000))
    first.run()
    second = Session(storage, budget=Budget(examples=9_000))
    ended = second.run()
    assert first.executor.examples < second.executor.examples + first.executor.examples == ended.spent.examples
    assert 9_000 <= ended.spent.examples < 9_000 + second.executor.largest_interval
