"""What runs have in common: with one seed, all steps before the first decay in which they differ.

Two such runs are one and the same until then, so the second may go on from a snapshot of the first (a fork), and whether it
does changes nothing but its cost. They are not independent: a repeat that is to show the noise of a run needs a seed of its
own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from scalesearch.core.evaluation import EvaluationPlan
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Measurement, Outcome, TrialResult
from scalesearch.core.schedule import Schedule, Segment, first_step_from


def steps_alike(one: Schedule, other: Schedule, *, global_batch_size: int) -> float:
    """How many first steps have the same learning rates under both schedules, at least; inf: all of them.

    A slope is alike only within the same segment.
    """
    if one.learning_rate != other.learning_rate:
        return 0
    mine, others = _segments_by_step(one, global_batch_size), _segments_by_step(other, global_batch_size)
    here, there = mine[0], others[0]
    for step in sorted(mine.keys() | others.keys()):
        here, there = mine.get(step, here), others.get(step, there)
        flat = here.slope == there.slope == 0.0
        if here != there and not (flat and here.rate == there.rate):
            return step
    return math.inf


def _segments_by_step(schedule: Schedule, global_batch_size: int) -> dict[int, Segment]:
    """By their first steps; of several within one step, the last one counts."""
    return {first_step_from(s.start, global_batch_size=global_batch_size): s for s in schedule.segments()}


def shared_steps(one: Parameters, other: Parameters) -> float:
    """How many first steps of two runs with the same seed are the same, bit for bit; inf: all of them."""
    same = (one.global_batch_size, one.momentum, one.accumulation)
    if same != (other.global_batch_size, other.momentum, other.accumulation):
        return 0
    return steps_alike(one.schedule, other.schedule, global_batch_size=one.global_batch_size)


def common_measurements(
    measured: Sequence[Measurement], *, of: Parameters, by: Parameters, plan: EvaluationPlan
) -> int:
    """How many of the first measurements of a run `of` some parameters one `by` others makes too, under its own `plan`."""
    most = shared_steps(of, by)
    for i, measurement in enumerate(measured):
        planned = plan.next_step(measured[i - 1 : i], global_batch_size=by.global_batch_size) if i else 0
        if measurement.step > most or measurement.step != planned:
            return i
    return len(measured)


def seed_to_share(
    parameters: Parameters, earlier: Iterable[tuple[Parameters, int]], *, max_examples: float
) -> int | None:
    """The seed of the first of the `earlier` runs that begins as a run of `parameters` does.

    None if none does, or if one is the same up to the full length: a repeat has a seed of its own.
    """
    full_length = max_examples / parameters.global_batch_size
    sharing = [(shared, seed) for other, seed in earlier if (shared := shared_steps(parameters, other)) > 0]
    if not sharing or any(shared >= full_length for shared, _ in sharing):
        return None
    return sharing[0][1]


def trained_before(result: TrialResult, earlier: Iterable[TrialResult]) -> int:
    """The step up to which a result is the same run as an `earlier` one; interrupted ones do not count.

    Whether it went on from a snapshot does not matter: with the same seed, it would have measured the same.
    """
    same_seed = (r for r in earlier if r.seed == result.seed and r.outcome is not Outcome.INTERRUPTED)
    return max((last_common_step(r, result.parameters) for r in same_seed), default=0)


def last_common_step(result: TrialResult, parameters: Parameters) -> int:
    """The step of the last measurement of a trial up to which one of `parameters` with its seed is the same."""
    most = shared_steps(result.parameters, parameters)
    return max((m.step for m in result.measurements if m.step <= most), default=0)
