"""The run of a study: ask, train, tell, until the budget is spent; a generator of what happens."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Event as Flag

from scalesearch.core.budget import (
    Budget,
    Spent,
    largest_share,
    spent,
    unit_that_ends_a_trial,
    unit_that_forbids_a_trial,
)
from scalesearch.core.parameters import Parameters
from scalesearch.core.planner import Planner, Proposal
from scalesearch.core.recommend import Findings, findings
from scalesearch.core.results import Cost, Measurement, Objective, Outcome, TrialResult, crossing
from scalesearch.core.step_time import fit_step_times
from scalesearch.core.stopping import verdict
from scalesearch.definition import ResolvedStudy
from scalesearch.errors import StudyError
from scalesearch.execution.messages import Ended, Measured, TrialRequest
from scalesearch.search.lease import Lease
from scalesearch.search.sampler import SamplerName
from scalesearch.search.storage import FLUSH_SECONDS, OpenTrial, StudyStore
from scalesearch.study.events import StudyEnded, StudyEvent, TrialEnded, TrialMeasured, TrialStarted
from scalesearch.study.protocols import Executor, Tracker

TICK_SECONDS = 0.5
STOP_WITHIN_SECONDS = 5.0
MAX_CRASHES_IN_A_ROW = 5
CONFIRMATION_SHARE = 0.2  # of the budget: the last part repeats the leaders with fresh seeds
UNIT_NAMES = {
    "examples": "examples",
    "epochs": "epochs",
    "device_seconds": "device time",
    "wall_clock_seconds": "wall clock",
    "trials": "number of trials",
}


@dataclass
class _Running:
    """The trial in flight."""

    trial: OpenTrial
    objective: Objective
    planner: Planner
    measurements: list[Measurement]
    started: float
    stop: tuple[Outcome, str] | None = None
    ruled_out_steps: float | None = None
    abandon_at: float | None = None


class Study:
    """One run of a study; `events()` does the work.

    Args:
        resolved: what is searched.
        budget: what the study may spend in all, over all its runs.
        store: the study's storage.
        lease: the right to drive the study.
        executor: where trials run.
        tracker: gets a copy of everything.
        sampler_name, seed: what proposes the next trial.
        stop_requested: set by the user's Ctrl-C.
        started: the time on `clock` from which this run's wall clock counts.
        clock: seconds that only go up.
    """

    def __init__(
        self,
        resolved: ResolvedStudy,
        *,
        budget: Budget,
        store: StudyStore,
        lease: Lease,
        executor: Executor,
        tracker: Tracker,
        sampler_name: SamplerName,
        seed: int,
        stop_requested: Flag,
        started: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resolved = resolved
        self._budget = budget
        self._store = store
        self._lease = lease
        self._executor = executor
        self._tracker = tracker
        self._sampler_name = sampler_name
        self._seed = seed
        self._stop_requested = stop_requested
        self._started = started
        self._clock = clock
        self._session = uuid.uuid4().hex
        self._session_kept = started
        self._earlier_seconds = store.wall_clock_seconds()
        self._running: _Running | None = None
        self._crashes_in_a_row = 0

    @property
    def objective(self) -> Objective:
        """The objective; its target is None while the baseline that sets it has not been run."""
        target = self._resolved.objective.target
        return replace(self._resolved.objective, target=self._store.attribute("target") if target is None else target)

    def events(self) -> Iterator[StudyEvent]:
        """Run the study until its budget is spent or the user stops it."""
        try:
            self._continue_or_begin()
            while (stopped_by := self._why_no_further_trial()) is None:
                yield self._start_trial()
                while self._running is not None:
                    self._lease.refresh()
                    event = self._executor.next_event(timeout_seconds=TICK_SECONDS)
                    if isinstance(event, Measured):
                        yield self._measured(event.measurement)
                    elif isinstance(event, Ended):
                        yield self._ended(event)
                    elif self._must_abandon():
                        yield self._abandon("stopped by the user")
            yield StudyEnded(
                findings=self._findings(),
                spent=self.spent(),
                stopped_by=stopped_by,
                by_user=self._stop_requested.is_set(),
            )
        finally:
            if self._running is not None:
                self._abandon("the study was broken off")
            self._store.session_lasted(self._session, self._session_seconds())

    def spent(self) -> Spent:
        """Everything that the study has spent, the running trial included."""
        return spent(
            self._store.results(),
            in_flight=[self._cost_so_far()] if self._running else [],
            wall_clock_seconds=self._earlier_seconds + self._session_seconds(),
            train_examples=self._resolved.train_examples,
        )

    # Before and between trials

    def _continue_or_begin(self) -> None:
        for orphan in self._store.orphans(replicas=self._resolved.replicas):
            if orphan.outcome is Outcome.INTERRUPTED:
                examples = self._examples_at_next_evaluation(orphan.parameters, orphan.measurements)
                orphan = replace(orphan, cost=replace(orphan.cost, examples=examples))
            self._store.tell(orphan, self.objective)
            self._tracker.trial_ended(orphan)
        for result in self._store.results():
            if result.outcome is Outcome.INTERRUPTED:
                self._store.repeat(result, self._resolved.space)
        if self._resolved.baseline is not None and self._baseline_is_due():
            self._store.enqueue(self._resolved.baseline, self._resolved.space, is_baseline=True)

    def _baseline_is_due(self) -> bool:
        """Whether there was none yet, or the one that had to set the target came to nothing."""
        if not self._store.has_trials:
            return True
        failed = any(r.is_baseline and r.outcome is not Outcome.INTERRUPTED for r in self._store.results())
        return self._target_is_open and failed

    @property
    def _target_is_open(self) -> bool:
        return self._resolved.target_from_baseline and self.objective.target is None

    def _why_no_further_trial(self) -> str | None:
        if self._stop_requested.is_set():
            return "stopped by the user"
        if (unit := unit_that_forbids_a_trial(self._budget, self.spent())) is not None:
            return f"the budget is spent ({UNIT_NAMES[unit]})"
        if self._is_settled():
            return "nothing more to gain: the leader is confirmed, and another trial is expected to save less than 1 %"
        if self._crashes_in_a_row >= MAX_CRASHES_IN_A_ROW:
            return f"{MAX_CRASHES_IN_A_ROW} trials crashed one after another: {self._store.results()[-1].reason}"
        return None

    def _is_settled(self) -> bool:
        objective = self.objective
        if self._sampler_name != "scaling" or objective.target is None:
            return False
        return self._planner(objective).is_settled(self._store.results())

    def _start_trial(self) -> TrialStarted:
        objective = self.objective
        planner = self._planner(objective)
        trial = self._store.ask(self._resolved.space, sampler_name=self._sampler_name, seed=self._seed, planner=planner)
        request = TrialRequest(
            number=trial.number,
            parameters=trial.parameters,
            seed=trial.seed,
            plan=self._resolved.evaluation_plan(trial.parameters, objective),
        )
        # No trial ends meanwhile, so the step times are fitted once and not at every evaluation, while the worker waits.
        planner = replace(planner, step_seconds=fit_step_times(self._store.results()))
        self._running = _Running(trial, objective, planner, [], self._clock())
        self._executor.submit(request)
        self._tracker.trial_started(trial.number, trial.parameters, seed=trial.seed, is_baseline=trial.is_baseline)
        return TrialStarted(trial=trial, spent=self.spent())

    # The running trial

    def _measured(self, measurement: Measurement) -> TrialMeasured:
        running = self._running
        assert running is not None
        running.measurements.append(measurement)
        self._refuse_met_at_initialisation(running)
        running.stop = self._why_stop(running)
        if running.stop is None:
            self._executor.proceed()
        else:
            self._executor.stop(evaluate_test=running.stop[0] is Outcome.REACHED)
        # The worker is training on by now: writing costs it nothing.
        self._tracker.trial_measured(running.trial.number, measurement)
        self._store.measured(running.trial.number, running.measurements, running.objective)
        if self._clock() - self._session_kept >= FLUSH_SECONDS:
            self._keep_session()
        return TrialMeasured(trial=running.trial, measurement=measurement, spent=self.spent())

    def _why_stop(self, running: _Running) -> tuple[Outcome, str] | None:
        if own := verdict(running.measurements, running.objective):
            return own
        if self._stop_requested.is_set():
            return Outcome.INTERRUPTED, "stopped by the user"
        if unit := unit_that_ends_a_trial(self._budget, self.spent()):
            return Outcome.INTERRUPTED, f"the budget was spent ({UNIT_NAMES[unit]})"
        if running.trial.is_baseline or running.objective.minimize == "metric":
            return None
        if self._sampler_name == "scaling":
            return self._why_planner_stops(running)
        so_far = _cost_to_date(running.measurements[-1], running.objective)
        if self._store.can_no_longer_win(so_far):
            return Outcome.CAPPED, f"{so_far:,.4g} {running.objective.minimize} is more than the best trial needed"
        return None

    def _why_planner_stops(self, running: _Running) -> tuple[Outcome, str] | None:
        """Capped trials of the planner: by the cap that it gave them, or because their curve misses the target."""
        trial, results = running.trial, self._store.results()
        planner = running.planner
        per_step = planner.cost_per_step(results)(trial.parameters.global_batch_size)
        proposal = Proposal(trial.parameters, cap=trial.cap, why=trial.why)
        if trial.cap is not None and running.measurements[-1].step * per_step > trial.cap:
            return Outcome.CAPPED, f"it had its share ({trial.why})"
        if planner.should_stop(running.measurements, proposal, results):
            running.ruled_out_steps = trial.cap / per_step if trial.cap is not None else None
            return Outcome.CAPPED, "its learning curve, carried on, misses the target"
        return None

    def _planner(self, objective: Objective) -> Planner:
        return Planner(
            space=self._resolved.space,
            objective=objective,
            max_examples=self._resolved.max_examples,
            first_guess=self._resolved.baseline,
            seed=self._seed,
            confirming=largest_share(self._budget, self.spent()) >= 1.0 - CONFIRMATION_SHARE,
        )

    def _refuse_met_at_initialisation(self, running: _Running) -> None:
        first = running.measurements[0]
        metric = running.objective.metric
        if len(running.measurements) == 1 and running.objective.met(first.metrics[metric]):
            running.stop = (Outcome.INTERRUPTED, "the target is met before training")
            self._abandon(running.stop[1])
            raise StudyError(
                f"`objective.target = {running.objective.target:g}` is met before any training: {metric} is "
                f"{first.metrics[metric]:g} at initialisation; choose a target that has to be learnt"
            )

    def _must_abandon(self) -> bool:
        """Whether a stop was asked for and the worker has not come to its next measurement in time."""
        if not self._stop_requested.is_set():
            return False
        assert self._running is not None
        if self._running.abandon_at is None:
            self._running.abandon_at = self._clock() + STOP_WITHIN_SECONDS
        return self._clock() > self._running.abandon_at

    def _abandon(self, reason: str) -> TrialEnded:
        """End the running trial without waiting for its worker."""
        assert self._running is not None
        self._executor.abandon()
        return self._ended(Ended(number=self._running.trial.number, failure=Outcome.INTERRUPTED, reason=reason))

    def _ended(self, event: Ended) -> TrialEnded:
        running = self._running
        assert running is not None
        result = self._result(running, event)
        self._running = None
        self._crashes_in_a_row = self._crashes_in_a_row + 1 if result.outcome is Outcome.CRASHED else 0
        self._store.tell(result, self.objective)
        self._tracker.trial_ended(result)
        if self._sampler_name == "scaling" and self.objective.target is not None:
            self._store.keep_leader(self._planner(self.objective).recommend(self._store.results()))
        self._keep_session()
        if result.is_baseline and self._target_is_open and result.outcome is not Outcome.INTERRUPTED:
            raise StudyError(
                f'`objective.target = "baseline"`, but the baseline did not run to its end ({result.outcome}): '
                f"{result.reason}. Give a number as target, or the same command again to run it once more"
            )
        return TrialEnded(result=result, findings=self._findings(), spent=self.spent())

    def _result(self, running: _Running, event: Ended) -> TrialResult:
        outcome, reason = running.stop or (event.failure or Outcome.EXHAUSTED, event.reason or "it ran its full length")
        if outcome is Outcome.EXHAUSTED and running.trial.is_baseline and self._target_is_open:
            self._store.keep("target", _value_held_at_the_end(running.measurements, running.objective))
        reached = crossing(running.measurements, self.objective)
        if reached is not None and outcome is Outcome.EXHAUSTED:
            outcome, reason = Outcome.REACHED, "it set the target, and crossed it on its way"
        return TrialResult(
            number=running.trial.number,
            parameters=running.trial.parameters,
            seed=running.trial.seed,
            outcome=outcome,
            reason=reason,
            cost=self._final_cost(running, event),
            reached=reached if outcome is Outcome.REACHED else None,
            measurements=tuple(running.measurements),
            test_metrics=event.test_metrics,
            is_baseline=running.trial.is_baseline,
            seconds=self._clock() - running.started,
            ruled_out_steps=running.ruled_out_steps,
        )

    # Accounts

    def _cost_so_far(self) -> Cost:
        running = self._running
        assert running is not None
        last = running.measurements[-1] if running.measurements else None
        return Cost(
            examples=last.examples if last else 0,
            device_seconds=(last.elapsed_seconds if last else 0.0) * self._resolved.replicas,
        )

    def _final_cost(self, running: _Running, event: Ended) -> Cost:
        elapsed_seconds = event.elapsed_seconds
        if elapsed_seconds is None:
            elapsed_seconds = self._clock() - running.started
        in_an_interval = event.failure is not None and running.stop is None
        if in_an_interval:
            examples = self._examples_at_next_evaluation(running.trial.parameters, running.measurements)
        else:
            examples = running.measurements[-1].examples if running.measurements else 0
        return Cost(examples=examples, device_seconds=elapsed_seconds * self._resolved.replicas)

    def _examples_at_next_evaluation(self, parameters: Parameters, measurements: Sequence[Measurement]) -> int:
        """What a trial counts that ended within an interval: how far it came is unknown, so all of it counts."""
        if not measurements:
            return 0
        size = parameters.global_batch_size
        plan = self._resolved.evaluation_plan(parameters, self.objective)
        step = plan.next_step(measurements, global_batch_size=size)
        return step * size if step is not None else measurements[-1].examples

    def _session_seconds(self) -> float:
        return self._clock() - self._started

    def _keep_session(self) -> None:
        self._session_kept = self._clock()
        self._store.session_lasted(self._session, self._session_seconds())

    def _findings(self) -> Findings:
        return findings(self._store.results(), self.objective, leader=self._store.leader())


def _cost_to_date(measurement: Measurement, objective: Objective) -> float:
    by_goal: Mapping[str, float] = {
        "seconds": measurement.train_seconds,
        "steps": measurement.step,
        "examples": measurement.examples,
    }
    return by_goal[objective.minimize]


def _value_held_at_the_end(measurements: list[Measurement], objective: Objective) -> float:
    """The median of the last three evaluations: what the run holds, rather than a lucky last one."""
    return sorted(m.metrics[objective.metric] for m in measurements[-3:])[len(measurements[-3:]) // 2]
