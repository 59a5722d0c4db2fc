"""What a planner proposes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scalesearch.core.accumulation import AsFewAsFit
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Outcome, TrialResult
from scalesearch.core.space import SearchSpace


@dataclass(frozen=True)
class Proposal:
    """A trial to run.

    `cap` is the cost, in the goal's unit, after which to stop it; None: its full length.
    """

    parameters: Parameters
    cap: float | None
    why: str


def space_that_fits(space: SearchSpace, results: Sequence[TrialResult]) -> SearchSpace:
    """The space below the batch sizes at which the memory of a device ran out, in a trial or in a profile.

    Where as few micro-batches are taken as fit, these batch sizes are taken in more of them instead.
    """
    accumulation = space.accumulation
    if isinstance(accumulation, AsFewAsFit) and (ran_out := _out_of_memory(results)):
        smallest_share = min(p.per_replica_batch_size(accumulation.replicas) for p in ran_out)
        space = replace(space, accumulation=accumulation.limited_to(max(smallest_share // 2, 1)))
    too_large, sizes = smallest_too_large(space, results), space.batch_sizes.values()
    if sizes[-1] < too_large:
        return space
    largest = max((s for s in sizes if s < too_large), default=sizes[0])
    return replace(space, batch_sizes=replace(space.batch_sizes, high=largest))


def smallest_too_large(space: SearchSpace, results: Sequence[TrialResult]) -> float:
    """The smallest global batch size that does not fit in memory, as far as is known; inf: none.

    Where more micro-batches may be taken, that is one of which not even a single example fits on a replica.
    """
    ran_out, accumulation = _out_of_memory(results), space.accumulation
    if isinstance(accumulation, AsFewAsFit):
        ran_out = [p for p in ran_out if p.per_replica_batch_size(accumulation.replicas) <= 1]
    limits = [p.global_batch_size for p in ran_out]
    if space.largest_that_fits is not None:
        limits.append(space.largest_that_fits + 1)
    return min(limits, default=math.inf)


def _out_of_memory(results: Sequence[TrialResult]) -> list[Parameters]:
    return [r.parameters for r in results if r.outcome is Outcome.OUT_OF_MEMORY]
