"""What a study has spent of its budget, over all its runs, and what that forbids."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from scalesearch.core.budget import (
    Budget,
    Spent,
    largest_share,
    spent,
    unit_that_ends_a_trial,
    unit_that_forbids_a_trial,
)
from scalesearch.search.storage import FLUSH_SECONDS, StudyStore
from scalesearch.study.running import RunningTrial

PROFILE_DEVICE_SECONDS = "profile_device_seconds"  # a study's attribute: what its profile cost
CONFIRMATION_SHARE = 0.2  # of the budget: the last part repeats the leaders with fresh seeds
UNIT_NAMES = {
    "examples": "examples",
    "epochs": "epochs",
    "device_seconds": "device time",
    "wall_clock_seconds": "wall clock",
    "trials": "number of trials",
}


class Account:
    """The account of one study, of which the present run is a session that counts from the time `started` on `clock`."""

    def __init__(
        self, budget: Budget, store: StudyStore, *, train_examples: int, started: float, clock: Callable[[], float]
    ) -> None:
        self._budget = budget
        self._store = store
        self._train_examples = train_examples
        self._started = started
        self._clock = clock
        self._earlier_seconds = store.wall_clock_seconds()
        self._profile_device_seconds: float = store.attribute(PROFILE_DEVICE_SECONDS) or 0.0
        self._session = uuid.uuid4().hex
        self._session_kept = started

    def spent(self, running: RunningTrial | None) -> Spent:
        """Everything that the study has spent, the running trial included."""
        return spent(
            self._store.results(),
            in_flight=[running.cost_so_far] if running else [],
            wall_clock_seconds=self._earlier_seconds + self._session_seconds(),
            train_examples=self._train_examples,
            profile_device_seconds=self._profile_device_seconds,
        )

    def why_no_further_trial(self) -> str | None:
        """The limit that forbids to start a trial, as a phrase, or None."""
        unit = unit_that_forbids_a_trial(self._budget, self.spent(None))
        return f"the budget is spent ({UNIT_NAMES[unit]})" if unit else None

    def why_end_trial(self, running: RunningTrial) -> str | None:
        """The limit that forbids to go on with the running trial, as a phrase, or None."""
        unit = unit_that_ends_a_trial(self._budget, self.spent(running))
        return f"the budget was spent ({UNIT_NAMES[unit]})" if unit else None

    @property
    def is_confirming(self) -> bool:
        """Whether, between trials, the last part of the budget has begun."""
        return largest_share(self._budget, self.spent(None)) >= 1.0 - CONFIRMATION_SHARE

    def keep_session(self) -> None:
        """Keep how long the present run has lasted."""
        self._session_kept = self._clock()
        self._store.session_lasted(self._session, self._session_seconds())

    def keep_session_now_and_then(self) -> None:
        """The same, unless it was done within the last second."""
        if self._clock() - self._session_kept >= FLUSH_SECONDS:
            self.keep_session()

    def _session_seconds(self) -> float:
        return self._clock() - self._started
