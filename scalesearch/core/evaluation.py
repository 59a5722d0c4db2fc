"""When to evaluate: a pure function of what was measured so far, so that a resumed run evaluates at the same steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scalesearch.core.results import Measurement, Objective
from scalesearch.core.schedule import first_step_from

COARSE_RATIO = 1.25
NEAR_TARGET = 0.25  # relative distance to the target within which evaluations become fine


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """Evaluation points, geometric in examples.

    The ratio between neighbours is `ratio` near the target, just after a decay boundary, and where the target is met
    (the next evaluation confirms it); `COARSE_RATIO` (or `ratio`, if larger) elsewhere, as closely as whole steps allow;
    after the first, never more than `max_interval_examples` apart (or one step, if that is more); one at each boundary
    and one exactly at the end.
    """

    objective: Objective
    boundaries: tuple[int, ...]
    first_examples: int
    max_interval_examples: int
    end_examples: int
    ratio: float = 1.05

    def next_step(self, measured: Sequence[Measurement], *, global_batch_size: int) -> int | None:
        """The step (completed steps) at which to evaluate next, or None if the run is at its end.

        `measured` are the measurements so far, of which the last one counts.
        """
        now = measured[-1]
        ends = [first_step_from(e, global_batch_size=global_batch_size) for e in (*self.boundaries, self.end_examples)]
        if now.step >= ends[-1]:
            return None
        if now.examples < self.first_examples:
            step = first_step_from(self.first_examples, global_batch_size=global_batch_size)
        else:
            # Rounded down: the ratio is an upper bound.
            step = math.floor(self._furthest_examples(now) / global_batch_size)
        return min([max(step, now.step + 1), *(e for e in ends if e > now.step)])

    def _furthest_examples(self, now: Measurement) -> float:
        return min(now.examples * self._ratio(now), now.examples + self.max_interval_examples)

    def _ratio(self, now: Measurement) -> float:
        after_boundary = any(b <= now.examples < 1.2 * b for b in self.boundaries)
        if after_boundary or self._near_target(now):
            return self.ratio
        return max(self.ratio, COARSE_RATIO)

    def _near_target(self, now: Measurement) -> bool:
        if self.objective.target is None:
            return False
        value = now.metrics[self.objective.metric]
        distance = abs(value - self.objective.target)
        return self.objective.met(value) or distance <= NEAR_TARGET * abs(self.objective.target)
