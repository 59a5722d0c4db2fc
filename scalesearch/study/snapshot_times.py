"""When a snapshot of the running trial is taken: now and then, for it to go on from, and where others may fork."""

from __future__ import annotations

from dataclasses import dataclass

from scalesearch.core.evaluation import EvaluationPlan
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Measurement
from scalesearch.core.schedule import first_step_from
from scalesearch.core.schedule_space import PiecewiseSpace
from scalesearch.core.space import SearchSpace
from scalesearch.search.sampler import SamplerName

MIN_SECONDS = 5.0  # between two snapshots of which only the last one is kept
MOST_OVERHEAD = 0.02  # share of the time that snapshots may take
FORK_RATIO = 1.2  # examples at one snapshot to fork from over those at the one before it
FORK_FROM = 0.05  # of a full-length run: forks from earlier on save too little


@dataclass(frozen=True, kw_only=True)
class Forking:
    """What a study keeps to fork from: states before the last of `decays` boundaries, `limit_bytes` of files in all."""

    decays: int
    max_examples: int
    limit_bytes: int


def forking(space: SearchSpace, *, sampler_name: SamplerName, max_examples: int, limit_bytes: int) -> Forking | None:
    """How a study keeps states to fork from; None if hardly any two of its trials will differ in decays only."""
    if not isinstance(space.schedule, PiecewiseSpace) or not limit_bytes:
        return None
    pinned = not {"learning_rate", "momentum"} & set(space.searched())
    if sampler_name != "scaling" and not pinned:
        return None
    return Forking(decays=space.schedule.decays, max_examples=max_examples, limit_bytes=limit_bytes)


@dataclass
class Overhead:
    """What snapshots have taken of the time of a study's trials, and what the last one took."""

    seconds: float = 0.0
    last_seconds: float = 0.0
    of_seconds: float = 0.0

    def took(self, seconds: float) -> None:
        """Another one was taken."""
        self.seconds, self.last_seconds = self.seconds + seconds, seconds

    @property
    def leaves_room(self) -> bool:
        """Whether the next one keeps to its share."""
        return self.seconds + self.last_seconds <= MOST_OVERHEAD * self.of_seconds


class SnapshotTimes:
    """Says when, for one trial.

    Args:
        since: the time that the trial had taken where it goes on from a snapshot; None: it starts anew.
        forks: None: nobody forks.
        overhead: of all trials.
    """

    def __init__(
        self,
        parameters: Parameters,
        plan: EvaluationPlan,
        *,
        since: Measurement | None,
        forks: Forking | None,
        overhead: Overhead,
    ) -> None:
        self.asked = False
        self._size = parameters.global_batch_size
        self._boundaries = [first_step_from(b, global_batch_size=self._size) for b in parameters.schedule.boundaries]
        self._plan = plan
        self._forks = forks
        self._overhead = overhead
        self._kept_examples = since.examples if since else 0
        self._seen = self._last = since.elapsed_seconds if since else None

    def due(self, now: Measurement) -> bool:
        """Whether a snapshot at this measurement, of which only the latest is kept, is worth its time."""
        if (
            self._seen is None or self._last is None
        ):  # before the first step; the time until then is that of compilation
            self._seen = self._last = now.elapsed_seconds
        self._overhead.of_seconds += now.elapsed_seconds - self._seen
        self._seen = now.elapsed_seconds
        waited = now.elapsed_seconds - self._last
        return not self.asked and waited >= max(MIN_SECONDS, self._overhead.last_seconds / MOST_OVERHEAD)

    def is_fork(self, now: Measurement) -> bool:
        """Whether other trials may go on from this measurement, so that its snapshot is worth keeping."""
        if self._forks is None or self.asked or not self._overhead.leaves_room:
            return False
        ended = len(self._boundaries) >= self._forks.decays and now.step >= self._boundaries[-1]
        if ended or now.examples < FORK_FROM * self._forks.max_examples or now.examples == self._kept_examples:
            return False
        next_step = self._plan.next_step([now], global_batch_size=self._size)
        at_boundary = now.step in self._boundaries or next_step in self._boundaries
        return at_boundary or now.examples >= FORK_RATIO * self._kept_examples

    def ask(self, now: Measurement, *, to_fork: bool) -> None:
        """A snapshot is asked for at this measurement."""
        self.asked, self._last = True, now.elapsed_seconds
        if to_fork:
            self._kept_examples = now.examples
