"""S(B) as the trials of a finished study tell it: at batch sizes that it tuned, and beyond them by its loss-curve model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from scalesearch.core.candidates import Candidates
from scalesearch.core.curve import CurvePoint
from scalesearch.core.curve_evidence import Evidence, weigh
from scalesearch.core.curve_planner import CurvePlanner
from scalesearch.core.forecast import StepsToTarget, well_tuned
from scalesearch.core.memory import Memory
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Objective, Outcome, TrialResult
from scalesearch.core.space import BatchSizes, SearchSpace
from scalesearch.core.step_time_model import NORMAL_90
from scalesearch.core.surrogate.modes import Array

PER_OCTAVE = 0.1  # of log steps: how much less the model is believed for each octave beyond what was measured
MOST_OCTAVES = 4.0  # beyond the batch sizes that were tuned
MOST_MISSES = 3  # trials beyond them on the way: if that many did not get there, no forecast is made
SAME = 1e-6  # nats within which two rates are the same
LONGEST = 4.0  # times what is expected: how long a run that is looked at may take


@dataclass(frozen=True, kw_only=True)
class KnownSteps:
    """What `results`, of which one has reached the target, tell of other batch sizes within the bounds of `space`."""

    results: tuple[TrialResult, ...]
    space: SearchSpace
    objective: Objective
    max_examples: int
    seed: int = 0

    def steps_to_target(self) -> StepsToTarget:
        """S(B) at any batch size."""
        return StepsToTarget(self.points, self.by_model)

    @cached_property
    def points(self) -> dict[int, CurvePoint]:
        """At the batch sizes that were tuned."""
        settings = (self._objective, self.max_examples, self.seed)
        planner = CurvePlanner(
            space=self.space,
            objective=self._objective,
            max_examples=self.max_examples,
            seed=self.seed,
            memory=Memory(self._counted, settings, self._evidence),
        )
        return well_tuned(planner.curve(self._counted))

    def by_model(self, size: int) -> CurvePoint | None:
        """The parameters of least expected steps beyond the batch sizes that were tuned, with their expected steps.

        None more than MOST_OCTAVES beyond them, and where several trials went and none got there.
        """
        if self._is_hopeless(size):
            return None
        belief, rates = self._evidence.belief, self._evidence.rates
        space = replace(self.space, batch_sizes=BatchSizes(low=size, high=size, multiple_of=size, divisor=1))
        near = min(self.points, key=lambda s: abs(math.log(s / size)))
        start = space.nearest(replace(rates.acting(self.points[near].parameters), global_batch_size=size))
        expected = self.points[near].steps * max(1.0, near / size)
        candidates = Candidates(
            space=space,
            rng=np.random.default_rng((self.seed, size)),
            belief=belief,
            horizon=lambda _: min(self.max_examples / size, LONGEST * expected),
            start=start,
            near=(start,),
        )
        cap = LONGEST * expected * belief.cost_per_step(size)
        # Nothing is tried out here: a rate that no run has borne may be unstable, however fast the model thinks it is.
        largest = float(belief.stability.log_supported(np.log(size))) + SAME

        def score(c: Sequence[Parameters]) -> Array:
            supported = np.array([math.log(p.effective_learning_rate) <= largest for p in c])
            return np.where(supported, belief.expected_costs(c, cap=cap).expected().mean(axis=0), np.inf)

        pool, scores = candidates.search(score)
        best = pool[int(np.argmin(scores))]
        log_steps = np.log(belief.expected_costs([best], cap=cap).hit[:, 0] / belief.cost_per_step(size))
        _, residual = belief.residual.at([best])
        error = math.hypot(float(log_steps.std()), float(residual[0]), PER_OCTAVE * abs(math.log2(near / size)))
        steps, half = math.exp(float(log_steps.mean())), math.exp(NORMAL_90 * error)
        return CurvePoint(parameters=rates.as_set(best), steps=steps, interval=(steps / half, steps * half))

    def _is_hopeless(self, size: int) -> bool:
        smallest, largest = min(self.points), max(self.points)
        away = max(math.log2(smallest / size), math.log2(size / largest))
        tried = [r.parameters.global_batch_size for r in self._counted]
        between = [b for b in tried if largest < b <= size or size <= b < smallest]
        return away > MOST_OCTAVES or len(between) >= MOST_MISSES

    @cached_property
    def _evidence(self) -> Evidence:
        return weigh(self._counted, objective=self._objective, max_examples=self.max_examples, seed=self.seed)

    @property
    def _objective(self) -> Objective:
        return replace(self.objective, minimize="steps")

    @cached_property
    def _counted(self) -> tuple[TrialResult, ...]:
        return tuple(r for r in self.results if r.outcome is not Outcome.INTERRUPTED)
