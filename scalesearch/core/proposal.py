"""What a planner proposes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    """The space below the batch sizes at which the memory of a device ran out, in a trial or in a profile."""
    too_large = [r.parameters.global_batch_size for r in results if r.outcome is Outcome.OUT_OF_MEMORY]
    if space.largest_that_fits is not None:
        too_large.append(space.largest_that_fits + 1)
    sizes = space.batch_sizes.values()
    if not too_large or sizes[-1] < min(too_large):
        return space
    largest = max((s for s in sizes if s < min(too_large)), default=sizes[0])
    return replace(space, batch_sizes=replace(space.batch_sizes, high=largest))
