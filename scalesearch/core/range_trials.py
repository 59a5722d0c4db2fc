"""The first trials of a study: short runs at rising learning rates, until one is unstable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalesearch.core.parameters import Parameters
from scalesearch.core.proposal import Proposal
from scalesearch.core.results import TrialResult
from scalesearch.core.schedule import Constant
from scalesearch.core.space import SearchSpace
from scalesearch.core.surrogate.belief import Belief
from scalesearch.core.surrogate.stability import log_point

RANGE = "range of learning rates"
RANGE_FACTOR = 3.0
RANGE_TRIALS = 9
RANGE_SHARE = 0.02  # of a full-length run, for each range trial, unless momentum needs longer to show
RANGE_MOST_SHARE = 0.05


def is_range(result: TrialResult) -> bool:
    """Whether a trial was such a short run, so that its parameters are still to be tried."""
    return result.why == RANGE


@dataclass(frozen=True)
class RangeTrials:
    """A ladder of constant learning rates at the batch size of `start`; `max_examples` is a full-length run."""

    space: SearchSpace
    max_examples: int
    start: Parameters

    def next(
        self, results: Sequence[TrialResult], belief: Belief, pending: Sequence[Parameters] = ()
    ) -> Proposal | None:
        """The next rung, or None once an unstable rate is known.

        Those that are pending are not expected to end the ladder: it climbs, or descends, past them.
        """
        start, stability = self.start, belief.stability
        if len(results) + len(pending) >= RANGE_TRIALS:
            return None
        here, log_rate = log_point(start)
        stable = [e for b, e in stability.stable if b == here]
        unstable = [e for b, e in stability.unstable if b == here]
        open_rates = [e for b, e in map(log_point, pending) if b == here]
        if stable and unstable:
            if any(max(stable) < e < min(unstable) for e in open_rates):
                return None
        elif unstable:
            unstable += open_rates
        else:
            stable += open_rates
        if not results and not open_rates:
            log_rate_next = log_rate
        elif not stable:
            log_rate_next = min(unstable, default=log_rate) - np.log(RANGE_FACTOR)
        elif not unstable:
            log_rate_next = max(stable) + np.log(RANGE_FACTOR)
        elif min(unstable) - max(stable) > 0.8 * np.log(RANGE_FACTOR):
            log_rate_next = 0.5 * (min(unstable) + max(stable))
        else:
            return None
        damping = 1.0 - (start.momentum or 0.0)
        rate = self.space.learning_rate.clip(float(np.exp(log_rate_next)) * damping)
        parameters = self.space.nearest(replace(start, schedule=Constant(learning_rate=rate)))
        if parameters in {*(r.parameters for r in results), *pending}:
            return None  # the edge of the space
        return Proposal(parameters, cap=self._cost(belief), why=RANGE)

    def _cost(self, belief: Belief) -> float:
        """Long enough to show slow divergence (2.5 / (1 − momentum) steps), within a share of a full-length run."""
        size = self.start.global_batch_size
        full_steps = self.max_examples / size
        needed = max(10.0, 2.5 / (1.0 - (self.start.momentum or 0.0)), RANGE_SHARE * full_steps)
        return min(needed, max(RANGE_MOST_SHARE * full_steps, 5.0)) * belief.cost_per_step(size)


def start_of(space: SearchSpace, first_guess: Parameters | None) -> Parameters:
    """Where a search begins: the first guess, or the middle of the space."""
    if first_guess is not None:
        return space.nearest(first_guess)
    middle = {a.name: np.sqrt(a.low * a.high) if a.log else 0.5 * (a.low + a.high) for a in space.axes()}
    return space.parameters({a.name: a.clip(middle[a.name]) for a in space.axes()})
