"""Studies without TensorFlow: an executor whose trials follow a closed form, in simulated time."""

from __future__ import annotations

import json
import math
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event as Flag
from typing import Any

import optuna

from scalesearch.core.axis import Interval
from scalesearch.core.budget import Budget
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Measurement, Objective, Outcome, TrialResult
from scalesearch.core.retune import WarmStart
from scalesearch.core.schedule import Constant
from scalesearch.core.schedule_space import ConstantSpace
from scalesearch.core.space import BatchSizes, SearchSpace
from scalesearch.definition import ResolvedStudy
from scalesearch.execution.messages import Ended, Event, Measured, Saved, TrialRequest
from scalesearch.search.lease import Lease
from scalesearch.search.storage import StudyStore
from scalesearch.study import Forking, Journal, SnapshotFolder, Study, StudyEnded, StudyEvent
from scalesearch.tracking import StudyRecord

ERROR = "val/classification_error"
TRAIN_EXAMPLES = 1_000
MAX_EXAMPLES = 8_000
SECONDS_PER_EXAMPLE = 0.01
REPLICAS = 2
BEST_RATE = 0.1
BASELINE = Parameters(global_batch_size=50, schedule=Constant(learning_rate=0.04))

STEPS_TO_TARGET = Objective(metric=ERROR, direction="minimize", target=0.1, minimize="steps")
EXAMPLES_TO_TARGET = Objective(metric=ERROR, direction="minimize", target=0.1, minimize="examples")
SECONDS_TO_TARGET = Objective(metric=ERROR, direction="minimize", target=0.1, minimize="seconds")
METRIC = Objective(metric=ERROR, direction="minimize", target=None, minimize="metric")

RECORD = StudyRecord(
    name="s",
    workload="tests/closed_form",
    objective=EXAMPLES_TO_TARGET,
    replicas=REPLICAS,
    seed=0,
    definition_toml="",
    parameters={},
)


def resolved(objective: Objective = EXAMPLES_TO_TARGET, **fields: Any) -> ResolvedStudy:
    replicas = fields.get("replicas", REPLICAS)
    complete: dict[str, Any] = {
        "name": "s",
        "replicas": REPLICAS,
        "train_examples": TRAIN_EXAMPLES,
        "max_examples": MAX_EXAMPLES,
        "objective": objective,
        "target_from_baseline": False,
        "space": SearchSpace(
            batch_sizes=BatchSizes(low=16, high=128, multiple_of=None, divisor=replicas),
            learning_rate=Interval(1e-3, 10.0),
            momentum=None,
            schedule=ConstantSpace(),
        ),
        "baseline": BASELINE,
        "first_evaluation_examples": 100,
        "evaluation_ratio": 1.5,
    }
    return ResolvedStudy(**(complete | fields))


def error_rate(parameters: Parameters, examples: int) -> float:
    """Falls from 0.9 towards 0: e-fold every 1,000 examples at the best rate, more slowly by its distance."""
    distance = abs(math.log10(parameters.learning_rate / BEST_RATE))
    return 0.9 * math.exp(-examples / (1_000 * (1 + distance)))


def diverges(parameters: Parameters) -> bool:
    return parameters.learning_rate > 3.0


_SNAPSHOTS = tempfile.TemporaryDirectory(prefix="scripted-")


class Clock:
    """Simulated time."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What happens to a trial: `failure` (None: it hangs) instead of the measurement with index `at`."""

    at: int
    failure: Outcome | None = Outcome.CRASHED
    worker_lost: bool = False


@dataclass
class _Trial:
    request: TrialRequest
    measured: list[Measurement] = field(default_factory=list)
    waiting: bool = False
    stopped: bool = False
    since: float = 0.0
    elapsed_before: float = 0.0


class ScriptedExecutor:
    """An executor in which a trial's error follows `error_rate` and every training example takes 10 ms.

    `fates` are by the number of the trial. `examples` and `seconds` are what was really used, that of failed intervals
    included; `largest_interval` is the largest number of examples of one. A snapshot is the measurement at which it was
    taken, written in no time, which is said to be `save_seconds`; with a `disk_problem` it is not written.
    """

    def __init__(self, clock: Clock, *, fates: Mapping[int, Fate] | None = None) -> None:
        self.clock = clock
        self.fates = fates or {}
        self.requests: list[TrialRequest] = []
        self.examples = 0
        self.seconds = 0.0
        self.largest_interval = 0
        self.tested: list[int] = []
        self.save_seconds = 0.0
        self.disk_problem = ""
        self.saved: list[Path] = []
        self._trial: _Trial | None = None
        self._saved: Saved | None = None

    @property
    def is_idle(self) -> bool:
        return self._trial is None

    def submit(self, request: TrialRequest) -> None:
        assert self.is_idle
        self.requests.append(request)
        self._trial = _Trial(request, since=self.clock.now)

    def next_event(self, *, timeout_seconds: float) -> Event | None:
        trial = self._trial
        assert trial is not None
        if trial.waiting:
            self.clock.now += timeout_seconds
            return None
        if trial.stopped:
            return self._end(trial)
        if trial.request.start is not None and not trial.measured:
            try:
                self._go_on(trial, trial.request.start)
            except (OSError, ValueError) as error:
                return self._end(trial, start_problem=f"snapshot {trial.request.start}: {error}")
        fate = self.fates.get(trial.request.number)
        if fate is not None and fate.at == len(trial.measured):
            if fate.failure is None:
                self.clock.now += timeout_seconds
                return None
            self._train(trial)
            reason = f"it was its fate: {fate.failure.value}"
            return self._end(trial, failure=fate.failure, reason=reason, worker_lost=fate.worker_lost)
        step = self._train(trial)
        if step is None:
            return self._end(trial)
        trial.measured.append(self._measurement(trial, step))
        trial.waiting = True
        return Measured(trial.request.number, trial.measured[-1], self._news())

    def _go_on(self, trial: _Trial, start: Path) -> None:
        trial.measured.append(Measurement(**json.loads(start.read_text())))
        trial.elapsed_before = trial.measured[-1].elapsed_seconds

    def _save(self, trial: _Trial, path: Path | None) -> None:
        if path is None:
            return
        assert self._saved is None, "one at a time"
        self._saved = Saved(path=path, seconds=self.save_seconds, problem=self.disk_problem)
        if not self.disk_problem:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(asdict(trial.measured[-1])))
            self.saved.append(path)

    def _news(self) -> Saved | None:
        saved, self._saved = self._saved, None
        return saved

    def proceed(self, *, snapshot: Path | None = None) -> None:
        assert self._trial is not None
        assert self._trial.waiting
        self._save(self._trial, snapshot)
        self._trial.waiting = False

    def stop(self, *, evaluate_test: bool = False, snapshot: Path | None = None) -> None:
        assert self._trial is not None
        assert self._trial.waiting
        self._save(self._trial, snapshot)
        self._trial.waiting, self._trial.stopped = False, True
        if evaluate_test:
            self.tested.append(self._trial.request.number)

    def abandon(self) -> None:
        self._trial = self._saved = None

    def _train(self, trial: _Trial) -> int | None:
        """Train to the next evaluation and return its step, or None at the end."""
        size = trial.request.parameters.global_batch_size
        if not trial.measured:
            return 0
        step = trial.request.plan.next_step(trial.measured, global_batch_size=size)
        if step is None:
            return None
        examples = step * size - trial.measured[-1].examples
        self.examples += examples
        self.largest_interval = max(self.largest_interval, examples)
        self.clock.now += SECONDS_PER_EXAMPLE * examples
        self.seconds += SECONDS_PER_EXAMPLE * examples
        return step

    def _measurement(self, trial: _Trial, step: int) -> Measurement:
        parameters = trial.request.parameters
        examples = step * parameters.global_batch_size
        value = error_rate(parameters, examples)
        loss = math.nan if step == 0 else 2 * value
        if diverges(parameters) and examples > 500:
            loss = math.inf
        return Measurement(
            step=step,
            examples=examples,
            train_seconds=SECONDS_PER_EXAMPLE * examples,
            elapsed_seconds=trial.elapsed_before + self.clock.now - trial.since,
            train_loss=loss,
            metrics={ERROR: value, "val/loss": 2 * value},
        )

    def _end(self, trial: _Trial, **fields: Any) -> Ended:
        self._trial = None
        number = trial.request.number
        test = {"test/classification_error": 0.11} if number in self.tested else {}
        return Ended(
            number=number,
            elapsed_seconds=self.clock.now - trial.since,
            test_metrics=test,
            saved=self._news(),
            **fields,
        )


class RecordingTracker:
    """Keeps the names of what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.results: list[TrialResult] = []

    def trial_started(self, number: int, parameters: Parameters, *, seed: int, is_baseline: bool) -> None:
        self.told.append(("started", number))

    def trial_measured(self, number: int, measurement: Measurement) -> None:
        self.told.append(("measured", number))

    def trial_ended(self, result: TrialResult) -> None:
        self.told.append(("ended", result.number))
        self.results.append(result)


class Session:
    """One run of a study by one driver, on a storage that others may have used before and will use after it."""

    def __init__(
        self,
        storage: optuna.storages.BaseStorage,
        *,
        budget: Budget,
        what: ResolvedStudy | None = None,
        fates: Mapping[int, Fate] | None = None,
        seed: int = 0,
        sampler_name: Any = "random",
        clock: Clock | None = None,
        executor: Any = None,
        tracker: Any = None,
        snapshots: Path | None = None,
        forks: Forking | None = None,
        warm_start: WarmStart | None = None,
    ) -> None:
        self.clock = clock or Clock()
        what = what or resolved()
        direction = what.objective.direction if what.objective.minimize == "metric" else "minimize"
        self.store = StudyStore(storage, what.name, direction=direction)
        self.executor = executor or ScriptedExecutor(self.clock, fates=fates)
        self.tracker = tracker or RecordingTracker()
        if self.store.attribute("snapshots") is None:
            self.store.keep("snapshots", str(snapshots or Path(_SNAPSHOTS.name) / uuid.uuid4().hex))
        self.snapshots = Path(self.store.attribute("snapshots"))
        self.stop_requested = Flag()
        self.study = Study(
            what,
            budget=budget,
            store=self.store,
            lease=Lease(self.store, "a token", math.inf),  # never due for a refresh
            executor=self.executor,
            tracker=self.tracker,
            snapshots=SnapshotFolder(self.snapshots, forks=forks),
            journal=Journal(self.snapshots.with_name(f"{self.snapshots.name}.jsonl")),
            sampler_name=sampler_name,
            seed=seed,
            warm_start=warm_start,
            stop_requested=self.stop_requested,
            started=self.clock.now,
            clock=self.clock,
        )

    def run(self) -> StudyEnded:
        """Run to the end."""
        *_, last = self.study.events()
        assert isinstance(last, StudyEnded)
        return last

    def events(self) -> Iterator[StudyEvent]:
        return self.study.events()

    @property
    def results(self) -> list[TrialResult]:
        return self.store.results()


def states(storage: optuna.storages.BaseStorage) -> list[str]:
    """The states of the trials as anybody with Optuna sees them."""
    return [t.state.name for t in optuna.load_study(study_name="s", storage=storage).get_trials()]
