"""What to train next when steps to target are wanted at every batch size, for as little as possible over all of them.

Up to the first hit it is the search for an optimum. Then each batch size that has not reached the target gets a run of its
own at what the loss-curve model, which all batch sizes share, predicts to be best there: the cheapest first, since what
they teach is what the dear ones need. Once each is verified, the next trial is the one of most expected improvement, as a
share of the steps at its batch size, per cost; leaders that may have been lucky are run again.

Costs within a batch size are relative to its leader's ("1.2 times as long"), so that one belief compares all of them; what
a trial costs is in training seconds if the study minimises these, otherwise in examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from scalesearch.core.curve import CurvePoint
from scalesearch.core.curve_evidence import Evidence, weigh
from scalesearch.core.curve_standing import Standing
from scalesearch.core.memory import Memory
from scalesearch.core.parameters import Parameters
from scalesearch.core.planner import Planner
from scalesearch.core.proposal import Proposal, space_that_fits
from scalesearch.core.range_trials import RANGE, start_of
from scalesearch.core.results import Measurement, Objective, Outcome, TrialResult
from scalesearch.core.space import SearchSpace

MOST_SIZES = 12
FIRST_HIT_SHARE = (
    0.05  # of a full-length run: how long a trial may go on for a first hit, or twice as long as any before
)


@dataclass(frozen=True, kw_only=True)
class CurvePlanner:
    """Proposes trials and recommends parameters at every batch size; the arguments are those of `Planner`."""

    space: SearchSpace
    objective: Objective
    max_examples: int
    first_guess: Parameters | None = None
    step_seconds: Callable[[int], float] | None = None
    seed: int = 0
    confirming: bool = False
    memory: Memory[Evidence] = field(default_factory=Memory, compare=False, repr=False)

    def propose(self, results: Sequence[TrialResult], pending: Sequence[Parameters] = ()) -> Proposal:
        """The next trial, beside the `pending` ones, which it neither doubles nor waits for.

        Interrupted trials count for nothing, so that an interruption changes no proposal.
        """
        results = [r for r in results if r.outcome is not Outcome.INTERRUPTED]
        if not any(r.reached for r in results):
            return self._first_hit(results, pending)
        return self._standing(results, pending).propose()

    def leaders(self, results: Sequence[TrialResult]) -> dict[int, Parameters]:
        """At each global batch size that has reached the target, the parameters of least expected steps."""
        return {size: point.parameters for size, point in self.curve(results).items()}

    def curve(self, results: Sequence[TrialResult]) -> dict[int, CurvePoint]:
        """What is believed of each global batch size that has reached the target."""
        return self._standing(results).curve() if any(r.reached for r in results) else {}

    def recommend(self, results: Sequence[TrialResult]) -> Parameters | None:
        """Of the leaders that may be recommended, that of least expected cost in the unit that the study minimises; or None."""
        if not any(r.reached for r in results):
            return None
        leaders = self._standing(results).cheapest_first(self.cost_per_step(results))
        may_be = (p for p in leaders if p.accumulation == 1 or self.space.recommends_accumulated)
        return next(may_be, None)

    def is_settled(self, results: Sequence[TrialResult]) -> bool:
        """Whether every batch size has a leader that is confirmed, and going on is expected to gain next to nothing."""
        return any(r.reached for r in results) and self._standing(results).is_settled()

    def should_stop(self, measured: Sequence[Measurement], proposal: Proposal, results: Sequence[TrialResult]) -> bool:
        """Whether a running trial can be stopped before its cap: its curve, carried on, misses the target."""
        return self._planner(self.objective).should_stop(measured, proposal, results)

    def cost_per_step(self, results: Sequence[TrialResult]) -> Callable[[int], float]:
        """What one step costs, in the unit that the study minimises, at a global batch size."""
        return self._planner(self.objective).cost_per_step(results)

    def _price_per_step(self, results: Sequence[TrialResult]) -> Callable[[int], float]:
        return self._planner(self._priced).cost_per_step(results)

    @property
    def _priced(self) -> Objective:
        """Steps are free of charge only on paper: trials at different batch sizes are compared by their examples."""
        return replace(self.objective, minimize="seconds" if self.objective.minimize == "seconds" else "examples")

    def _planner(self, objective: Objective) -> Planner:
        return Planner(
            space=self.space,
            objective=objective,
            max_examples=self.max_examples,
            first_guess=self.first_guess,
            step_seconds=self.step_seconds,
            seed=self.seed,
        )

    def _first_hit(self, results: Sequence[TrialResult], pending: Sequence[Parameters]) -> Proposal:
        proposal = self._planner(self._priced).propose(results, pending)
        size = proposal.parameters.global_batch_size
        per_step, price = self.cost_per_step(results)(size), self._price_per_step(results)(size)
        cap = np.inf if proposal.cap is None else proposal.cap / price * per_step
        if proposal.why == RANGE:
            return replace(proposal, cap=cap)
        # A full length, which is for the largest batch size, is far too long for a small one at a poor rate.
        longest = max((r.cost.examples for r in results), default=0)
        patience = max(FIRST_HIT_SHARE * self.max_examples, 2.0 * longest) / size
        return replace(proposal, cap=min(cap, patience * per_step))

    def _standing(self, results: Sequence[TrialResult], pending: Sequence[Parameters] = ()) -> Standing:
        results = [r for r in results if r.outcome is not Outcome.INTERRUPTED]
        space = space_that_fits(self.space, results)
        evidence = self._evidence(results)
        return Standing(
            given_space=space,
            as_set={a.parameters: r.parameters for a, r in zip(evidence.results, results, strict=True)},
            rates=evidence.rates,
            sizes=sizes_of(space),
            max_examples=self.max_examples,
            start=evidence.rates.acting(start_of(space, self.first_guess)),
            seed=self.seed,
            confirming=self.confirming,
            results=evidence.results,
            pending=tuple(map(evidence.rates.acting, pending)),
            rough=evidence.belief,
            cost_per_step=self.cost_per_step(results),
            price_per_step=self._price_per_step(results),
        )

    def _evidence(self, results: Sequence[TrialResult]) -> Evidence:
        settings = (self.objective, self.max_examples, self.seed)
        return self.memory.of(
            results,
            settings,
            lambda: weigh(results, objective=self.objective, max_examples=self.max_examples, seed=self.seed),
        )


def sizes_of(space: SearchSpace) -> tuple[int, ...]:
    """The global batch sizes at which a curve is measured: all of the space, or as many as are a factor of two apart."""
    values = space.batch_sizes.values()
    if len(values) <= MOST_SIZES:
        return values
    octaves = np.arange(np.log2(values[0]), np.log2(values[-1]) + 1e-9)
    nearest = {min(values, key=lambda v: abs(np.log2(v) - octave)) for octave in octaves}
    return tuple(sorted(nearest))
