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
    if isinstance(accumulation, AsFewAsFit) and (shares := _shares_out_of_memory(accumulation, results)):
        space = replace(space, accumulation=accumulation.limited_to(max(min(shares) // 2, 1)))
    too_large, sizes = smallest_too_large(space, results), space.batch_sizes.values()
    if sizes[-1] < too_large:
        return space
    largest = max((s for s in sizes if s < too_large), default=sizes[0])
    return replace(space, batch_sizes=replace(space.batch_sizes, high=largest))


def smallest_too_large(space: SearchSpace, results: Sequence[TrialResult]) -> float:
    """The smallest global batch size that does not fit in memory, as far as is known; inf: none.

    Where more micro-batches may be taken, that is one of which not even a single example fits on a replica.
    """
    out_of_memory = [r.parameters for r in results if r.outcome is Outcome.OUT_OF_MEMORY]
    if isinstance(space.accumulation, AsFewAsFit):
        shares = _shares_out_of_memory(space.accumulation, results)
        out_of_memory = [p for p, share in zip(out_of_memory, shares, strict=True) if share <= 1]
    limits = [p.global_batch_size for p in out_of_memory]
    if space.largest_that_fits is not None:
        limits.append(space.largest_that_fits + 1)
    return min(limits, default=math.inf)


def _shares_out_of_memory(accumulation: AsFewAsFit, results: Sequence[TrialResult]) -> list[int]:
    """The examples that one replica was to take at a time, of each trial that ran out of memory."""
    out_of_memory = (r.parameters for r in results if r.outcome is Outcome.OUT_OF_MEMORY)
    return [p.per_replica_batch_size(accumulation.replicas) for p in out_of_memory]
