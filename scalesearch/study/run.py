"""The run of a study: ask, train, tell, until the budget is spent; a generator of what happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event as Flag

from scalesearch.core.budget import Budget, Spent
from scalesearch.core.results import Measurement, Objective, Outcome, TrialResult
from scalesearch.core.retune import WarmStart
from scalesearch.core.step_time import fit_step_times
from scalesearch.core.stopping import verdict
from scalesearch.definition import ResolvedStudy
from scalesearch.errors import StudyError
from scalesearch.execution.messages import Ended, Measured, Saved, TrialRequest
from scalesearch.search.lease import Lease
from scalesearch.search.queue import OpenTrial
from scalesearch.search.sampler import SamplerName
from scalesearch.search.storage import StudyStore
from scalesearch.study.account import Account
from scalesearch.study.events import Noted, StudyEnded, StudyEvent, TrialEnded, TrialMeasured, TrialStarted
from scalesearch.study.journal import Journal
from scalesearch.study.planning import Planning
from scalesearch.study.protocols import Executor, Tracker
from scalesearch.study.running import RunningTrial, examples_at_next_evaluation
from scalesearch.study.snapshots import Continuation, SnapshotFolder

TICK_SECONDS = 0.5
STOP_WITHIN_SECONDS = 4.0
MAX_CRASHES_IN_A_ROW = 5
MAX_LOSSES_IN_A_ROW = 3  # of the worker, by one trial from the same step on: then it is taken for the trial's fault


class Study:
    """One run of a study; `events()` does the work.

    Args:
        resolved: what is searched.
        budget: what the study may spend in all, over all its runs.
        store: the study's storage.
        lease: the right to drive the study.
        executor: where trials run.
        tracker: gets a copy of everything.
        snapshots: where the trials' snapshots are kept.
        journal: where the running trial's measurements are kept.
        sampler_name, seed: what proposes the next trial.
        step_seconds: seconds per step at a global batch size, in which costs are compared; by default, fitted to the
            trials.
        warm_start: of a retune: what it begins with.
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
        snapshots: SnapshotFolder,
        journal: Journal,
        sampler_name: SamplerName,
        seed: int,
        step_seconds: Callable[[int], float] | None = None,
        warm_start: WarmStart | None = None,
        stop_requested: Flag,
        started: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resolved = resolved
        self._store = store
        self._lease = lease
        self._executor = executor
        self._tracker = tracker
        self._snapshots = snapshots
        self._journal = journal
        self._sampler_name = sampler_name
        self._seed = seed
        self._stop_requested = stop_requested
        self._clock = clock
        self._running: RunningTrial | None = None
        self._crashes_in_a_row = 0
        self._losses_in_a_row: list[tuple[int, int]] = []
        train_examples = resolved.train_examples
        self._account = Account(budget, store, train_examples=train_examples, started=started, clock=clock)
        self._planning = Planning(
            resolved, store, sampler_name=sampler_name, seed=seed, step_seconds=step_seconds, warm_start=warm_start
        )

    @property
    def objective(self) -> Objective:
        """The objective; its target is None while the baseline that sets it has not been run."""
        return self._planning.objective

    def events(self) -> Iterator[StudyEvent]:
        """Run the study until its budget is spent or the user stops it."""
        try:
            self._continue_or_begin()
            while (stopped_by := self._why_no_further_trial()) is None:
                yield from self._start_trial()
                while self._running is not None:
                    self._lease.refresh()
                    event = self._executor.next_event(timeout_seconds=TICK_SECONDS)
                    if event is not None and event.saved is not None:
                        yield from self._saved(event.saved)
                    if isinstance(event, Measured):
                        yield self._measured(event.measurement)
                    elif isinstance(event, Ended) and event.start_problem:
                        yield self._begin_anew(event)
                    elif isinstance(event, Ended):
                        yield self._ended(event)
                    elif self._must_abandon():
                        yield self._abandon("stopped by the user")
            yield StudyEnded(
                findings=self._planning.findings(),
                spent=self.spent(),
                stopped_by=stopped_by,
                by_user=self._stop_requested.is_set(),
            )
        finally:
            if self._running is not None:
                self._abandon("the study was broken off")
            self._account.keep_session()

    def spent(self) -> Spent:
        """Everything that the study has spent, the running trial included."""
        return self._account.spent(self._running)

    # Before and between trials

    def _continue_or_begin(self) -> None:
        for orphan in self._store.orphans(replicas=self._resolved.replicas):
            orphan = self._journal.completed(orphan, replicas=self._resolved.replicas)
            if orphan.outcome is Outcome.INTERRUPTED:
                size = orphan.parameters.global_batch_size
                plan = self._resolved.evaluation_plan(orphan.parameters, self.objective)
                come = examples_at_next_evaluation(orphan.measurements, plan, global_batch_size=size)
                orphan = replace(orphan, cost=replace(orphan.cost, examples=come - orphan.shared_steps * size))
            self._store.tell(orphan, self.objective)
            self._tracker.trial_ended(orphan)
        for result in self._store.results():
            if result.outcome is Outcome.INTERRUPTED:
                self._store.repeat(result)
        self._snapshots.sweep(keep=self._store.waiting_origins())
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
        if spent := self._account.why_no_further_trial():
            return spent
        if self._planning.is_settled(confirming=self._account.is_confirming):
            leader = "every batch size's leader" if self._resolved.aim == "curve" else "the leader"
            return f"nothing more to gain: {leader} is confirmed, and another trial is expected to save less than 1 %"
        if self._crashes_in_a_row >= MAX_CRASHES_IN_A_ROW:
            return f"{MAX_CRASHES_IN_A_ROW} trials crashed one after another: {self._store.results()[-1].reason}"
        return None

    def _start_trial(self) -> Iterator[StudyEvent]:
        objective = self.objective
        planner = self._planning.planner(confirming=self._account.is_confirming)
        trial = self._store.ask(
            self._resolved.space,
            sampler_name=self._sampler_name,
            seed=self._seed,
            planner=planner,
            max_examples=self._resolved.max_examples,
        )
        plan = self._resolved.evaluation_plan(trial.parameters, objective)
        goes_on = self._snapshots.continuation(trial, self._store.results(), plan)
        request = TrialRequest(
            number=trial.number,
            parameters=trial.parameters,
            seed=trial.seed,
            plan=plan,
            start=goes_on.path if goes_on else None,
        )
        if planner.step_seconds is None:
            # No trial ends meanwhile: fitted once, and not at every evaluation, while the worker waits.
            planner = replace(planner, step_seconds=fit_step_times(self._store.results()))
        shared = goes_on.measurements if goes_on else ()
        self._running = RunningTrial(
            trial=trial,
            objective=objective,
            planner=planner,
            request=request,
            replicas=self._resolved.replicas,
            started=self._clock(),
            shared=shared,
        )
        if shared:
            self._store.share(trial.number, shared)
        self._snapshots.trial_started(trial, plan, goes_on)
        self._journal.begin(trial.number)
        self._executor.submit(request)
        self._tracker.trial_started(trial.number, trial.parameters, seed=trial.seed, is_baseline=trial.is_baseline)
        yield TrialStarted(trial=trial, spent=self.spent())
        if (how := _how_it_begins(trial, goes_on)) is not None:
            yield Noted(how)

    def _begin_anew(self, event: Ended) -> Noted:
        """Train all of a trial that cannot go on from the snapshot that it was to go on from."""
        running = self._running
        assert running is not None
        self._snapshots.refused(running.request.start)
        running.begin_anew(event)
        self._store.share(running.trial.number, ())
        self._snapshots.trial_started(running.trial, running.request.plan, None)
        self._journal.begin(running.trial.number)
        self._executor.submit(running.request)
        return Noted(f"trial {running.trial.number} begins anew: {event.start_problem}")

    # The running trial

    def _measured(self, measurement: Measurement) -> TrialMeasured:
        running = self._running
        assert running is not None
        begins = len(running.measurements) == len(running.shared)
        running.measurements.append(measurement)
        self._journal.add(measurement)
        self._refuse_met_at_initialisation(running)
        running.stop = self._why_stop(running)
        snapshot = self._snapshot_to_take(running)
        if snapshot is not None:
            # Before there is a file, the record reaches up to it: they continue a trial together only.
            self._keep_measurements(running, at_once=True)
        if running.stop is None:
            self._executor.proceed(snapshot=snapshot)
        else:
            self._executor.stop(evaluate_test=running.stop[0] is Outcome.REACHED, snapshot=snapshot)
        # The worker is training on by now: writing costs it nothing.
        for m in (*running.shared, measurement) if begins else (measurement,):
            self._tracker.trial_measured(running.trial.number, m)
        if snapshot is None:
            self._keep_measurements(running)
        self._account.keep_session_now_and_then()
        return TrialMeasured(trial=running.trial, measurement=measurement, spent=self.spent())

    def _keep_measurements(self, running: RunningTrial, *, at_once: bool = False) -> None:
        self._store.measured(running.trial.number, running.measurements, running.objective, at_once=at_once)

    def _snapshot_to_take(self, running: RunningTrial) -> Path | None:
        """The file for a snapshot: now and then, and at the last measurement of a trial that is to be continued."""
        now = running.measurements[-1]
        if running.stop is None:
            return self._snapshots.due(now)
        return self._snapshots.at(now) if running.stop[0] is Outcome.INTERRUPTED else None

    def _saved(self, saved: Saved) -> Iterator[Noted]:
        if (problem := self._snapshots.written(saved)) is not None:
            yield Noted(problem)

    def _why_stop(self, running: RunningTrial) -> tuple[Outcome, str] | None:
        if own := verdict(running.measurements, running.objective) or self._planning.why_it_cannot_win(running):
            return own  # first of all: what is continued has to be worth it
        if self._stop_requested.is_set():
            return Outcome.INTERRUPTED, "stopped by the user"
        if spent := self._account.why_end_trial(running):
            return Outcome.INTERRUPTED, spent
        return None

    def _refuse_met_at_initialisation(self, running: RunningTrial) -> None:
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
        self._journal.end()
        self._tracker.trial_ended(result)
        if event.worker_lost and result.outcome is Outcome.INTERRUPTED:
            self._store.repeat(result)
        self._snapshots.trial_ended(result.outcome)
        if result.outcome is not Outcome.INTERRUPTED or not self._stop_requested.is_set():  # else time is short
            self._planning.keep_beliefs(confirming=self._account.is_confirming)
        self._account.keep_session()
        if result.is_baseline and self._target_is_open and result.outcome is not Outcome.INTERRUPTED:
            raise StudyError(
                f'`objective.target = "baseline"`, but the baseline did not run to its end ({result.outcome}): '
                f"{result.reason}. Give a number as target, or the same command again to run it once more"
            )
        return TrialEnded(result=result, findings=self._planning.findings(), spent=self.spent())

    def _result(self, running: RunningTrial, event: Ended) -> TrialResult:
        outcome, reason = running.stop or self._own_end(running, event)
        if outcome is Outcome.EXHAUSTED and running.trial.is_baseline and self._target_is_open:
            self._store.keep("target", running.value_held_at_the_end)
        return running.result(event, outcome, reason, objective=self.objective, now=self._clock())

    def _own_end(self, running: RunningTrial, event: Ended) -> tuple[Outcome, str]:
        """How a trial ended that nobody stopped."""
        if event.failure is None:
            return Outcome.EXHAUSTED, "it ran its full length"
        if event.worker_lost:
            # A machine loses a worker at any place, a trial that is to blame loses it again and again.
            self._losses_in_a_row.append((running.trial.origin, running.shared_steps))
            if self._losses_in_a_row[-MAX_LOSSES_IN_A_ROW:] != self._losses_in_a_row[-1:] * MAX_LOSSES_IN_A_ROW:
                return Outcome.INTERRUPTED, event.reason
        return event.failure, event.reason


def _how_it_begins(trial: OpenTrial, goes_on: Continuation | None) -> str | None:
    """A sentence if a trial is not simply a new one from the start."""
    step = goes_on.measurements[-1].step if goes_on else 0
    if not trial.repeats:
        return f"trial {trial.number} goes on from trial {goes_on.number}, at step {step:,}" if goes_on else None
    cut = f"trial {trial.repeats[0]}, which was interrupted"
    if goes_on is None:
        return f"trial {trial.number} repeats {cut}, from the start: there is no snapshot of it"
    if goes_on.number not in trial.repeats:
        return f"trial {trial.number} repeats {cut}, from step {step:,} of trial {goes_on.number}"
    return f"trial {trial.number} continues {cut}, at step {step:,}"
