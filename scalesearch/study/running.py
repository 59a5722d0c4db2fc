"""The trial in flight: what it has measured and cost so far, and what it comes to at its end."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from scalesearch.core.budget import measured_cost
from scalesearch.core.evaluation import EvaluationPlan
from scalesearch.core.results import Cost, Measurement, Objective, Outcome, TrialResult, crossing, first_crossing
from scalesearch.core.retune import AnyPlanner
from scalesearch.execution.messages import Ended, TrialRequest
from scalesearch.search.queue import OpenTrial


@dataclass(kw_only=True)
class RunningTrial:
    """A trial from its request to its end.

    `shared` is what it has, from the start, of the measurements of the trial that it continues, which paid for them.
    """

    trial: OpenTrial
    objective: Objective
    planner: AnyPlanner
    request: TrialRequest
    replicas: int
    started: float
    shared: tuple[Measurement, ...] = ()
    measurements: list[Measurement] = field(init=False)
    stop: tuple[Outcome, str] | None = None
    ruled_out_steps: float | None = None
    abandon_at: float | None = None
    _refused_seconds: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.measurements = list(self.shared)

    def begin_anew(self, refused: Ended) -> None:
        """Forget what it was to go on from, which its worker refused; the time that this took is the trial's."""
        self._refused_seconds += refused.elapsed_seconds or 0.0
        self.measurements, self.shared = [], ()
        self.request = replace(self.request, start=None)

    @property
    def shared_steps(self) -> int:
        return self.shared[-1].step if self.shared else 0

    @property
    def cost_so_far(self) -> Cost:
        """What the study has spent on it."""
        return measured_cost(self.measurements, shared_steps=self.shared_steps, replicas=self.replicas)

    @property
    def progress(self) -> float:
        """How far it has come, what it shares included, in the unit that the study minimises."""
        now = self.measurements[-1]
        by_goal: Mapping[str, float] = {"seconds": now.train_seconds, "steps": now.step, "examples": now.examples}
        return by_goal[self.objective.minimize]

    @property
    def value_held_at_the_end(self) -> float:
        """The median of the last three evaluations: what the run holds, rather than a lucky last one.

        The next worse number, to be exact, so that the run that set the target is strictly better than it.
        """
        held = statistics.median_high(m.metrics[self.objective.metric] for m in self.measurements[-3:])
        return math.nextafter(held, math.inf if self.objective.direction == "minimize" else -math.inf)

    def result(self, event: Ended, outcome: Outcome, reason: str, *, objective: Objective, now: float) -> TrialResult:
        """What it came to, by the study's objective, of which the trial itself may have set the target."""
        reached = crossing(self.measurements, objective)
        first_reached = first_crossing(self.measurements, objective)
        if reached is not None and outcome is Outcome.EXHAUSTED:
            outcome, reason = Outcome.REACHED, "it set the target, and crossed it on its way"
        if reached is None and first_reached is not None:
            reason += f"; the target was met by {objective.metric} once, but by no median of three evaluations"
        return TrialResult(
            number=self.trial.number,
            parameters=self.trial.parameters,
            seed=self.trial.seed,
            outcome=outcome,
            reason=reason,
            cost=self._final_cost(event, seconds=now - self.started),
            reached=reached if outcome is Outcome.REACHED else None,
            first_reached=first_reached,
            measurements=tuple(self.measurements),
            test_metrics=event.test_metrics,
            is_baseline=self.trial.is_baseline,
            why=self.trial.why,
            seconds=now - self.started,
            ruled_out_steps=self.ruled_out_steps,
            shared_steps=self.shared_steps,
        )

    def _final_cost(self, event: Ended, *, seconds: float) -> Cost:
        elapsed_seconds = event.elapsed_seconds if event.elapsed_seconds is not None else seconds
        size = self.trial.parameters.global_batch_size
        in_an_interval = event.failure is not None and self.stop is None
        if in_an_interval:
            examples = examples_at_next_evaluation(self.measurements, self.request.plan, global_batch_size=size)
        else:
            examples = self.measurements[-1].examples if self.measurements else 0
        return Cost(
            examples=examples - self.shared_steps * size,
            device_seconds=(elapsed_seconds + self._refused_seconds) * self.replicas,
        )


def examples_at_next_evaluation(
    measurements: Sequence[Measurement], plan: EvaluationPlan, *, global_batch_size: int
) -> int:
    """What a trial counts that ended within an interval: how far it came is unknown, so all of it counts."""
    if not measurements:
        return 0
    step = plan.next_step(measurements, global_batch_size=global_batch_size)
    return step * global_batch_size if step is not None else measurements[-1].examples
