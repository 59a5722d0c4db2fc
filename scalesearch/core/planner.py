"""What to train next: the trial of least expected cost to target, per cost of finding out.

A planner is a pure function of the trials so far and its seed, so a search that is continued proposes what it would have
proposed. It goes through three stages:

1. *Range*: short runs at rising learning rates, until one is unstable. Nothing is assumed about the model.
2. *First hit*: a loss-curve model of all runs predicts cost to target; the cheapest prediction is tried, with a cap.
3. *Improvement*: expected improvement over the incumbent per cost of the trial, with the chance of a miss; an incumbent
   that won once and might have been lucky is repeated first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalesearch.core.candidates import Candidates
from scalesearch.core.extrapolation import misses_target
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Measurement, Objective, TrialResult
from scalesearch.core.schedule import Constant
from scalesearch.core.space import SearchSpace
from scalesearch.core.surrogate.belief import Belief, believe
from scalesearch.core.surrogate.stability import Stability, log_point

RANGE_FACTOR = 3.0
RANGE_TRIALS = 9
RANGE_SHARE = 0.02  # of a full-length run, for each range trial, unless momentum needs longer to show
RANGE_MOST_SHARE = 0.05
UNREACHED_SHARE = 0.4  # of a full-length run, for a run that is to show the model more


@dataclass(frozen=True)
class Proposal:
    """A trial to run.

    `cap` is the cost, in the goal's unit, after which to stop it; None: its full length. `seed` None: a fresh one.
    """

    parameters: Parameters
    cap: float | None
    why: str
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Proposes trials and recommends parameters.

    Args:
        space: where to search.
        objective: with a target.
        max_examples: full length of a trial.
        first_guess: where to begin; by default the middle of the space.
        step_seconds: seconds per step at a global batch size (any positive function if seconds are not minimised).
        seed: of everything random.
    """

    space: SearchSpace
    objective: Objective
    max_examples: int
    first_guess: Parameters | None
    step_seconds: Callable[[int], float]
    seed: int

    def propose(self, results: Sequence[TrialResult]) -> Proposal:
        """The next trial."""
        belief = self._belief(results)
        if (range_trial := self._range_trial(results, belief.stability)) is not None:
            return range_trial
        rng = np.random.default_rng((self.seed, len(results)))
        candidates = self._candidates(rng, belief)
        if belief.incumbent is None:
            return self._first_hit(candidates, belief, rng)
        return self._improve(candidates, belief)

    def recommend(self, results: Sequence[TrialResult]) -> Parameters | None:
        """The parameters of least expected cost among those that reached the target, or None."""
        incumbent = self._belief(results).incumbent
        return incumbent.parameters if incumbent else None

    def should_stop(self, measured: Sequence[Measurement], proposal: Proposal, results: Sequence[TrialResult]) -> bool:
        """Whether a running trial can be stopped before its cap: its curve, carried on, misses the target."""
        if self._is_range_trial(proposal):
            return False
        cap = proposal.cap if proposal.cap is not None else np.inf
        size = proposal.parameters.global_batch_size
        cap_examples = min(cap / self.cost_per_step(size) * size, self.max_examples)
        boundaries = proposal.parameters.schedule.boundaries
        return misses_target(measured, self.objective, boundaries=boundaries, cap_examples=cap_examples)

    def cost_per_step(self, global_batch_size: int) -> float:
        """What one step costs in the unit that the study minimises."""
        if self.objective.minimize == "seconds":
            return self.step_seconds(global_batch_size)
        return float(global_batch_size) if self.objective.minimize == "examples" else 1.0

    def full_cost(self, global_batch_size: int) -> float:
        """Cost of a full-length trial."""
        return self.max_examples / global_batch_size * self.cost_per_step(global_batch_size)

    # Stage 1

    def _range_trial(self, results: Sequence[TrialResult], stability: Stability) -> Proposal | None:
        """The next rung of the ladder of learning rates at one batch size, or None once an unstable one is known."""
        start = self._start()
        if any(r.reached for r in results) or len(results) >= RANGE_TRIALS:
            return None
        _, log_rate = log_point(start)
        here = log_point(start)[0]
        stable = [e for b, e in stability.stable if b == here]
        unstable = [e for b, e in stability.unstable if b == here]
        if not results:
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
        parameters = replace(start, schedule=self._without_decay(rate))
        if any(r.parameters == parameters for r in results):
            return None  # the edge of the space
        return Proposal(parameters, cap=self._range_cost(start), why="range of learning rates")

    def _start(self) -> Parameters:
        """Where range trials run: the first guess, at the largest batch size that is still nearly free per step."""
        guess = self.first_guess
        if guess is None:
            middle = {a.name: np.sqrt(a.low * a.high) if a.log else 0.5 * (a.low + a.high) for a in self.space.axes()}
            guess = self.space.parameters({a.name: a.clip(middle[a.name]) for a in self.space.axes()})
        return guess

    def _without_decay(self, rate: float) -> Constant:
        return Constant(learning_rate=rate)

    def _range_cost(self, start: Parameters) -> float:
        """Long enough to show slow divergence (2.5 / (1 − momentum) steps), within a share of a full-length run."""
        size = start.global_batch_size
        full_steps = self.max_examples / size
        needed = max(10.0, 2.5 / (1.0 - (start.momentum or 0.0)), RANGE_SHARE * full_steps)
        return min(needed, max(RANGE_MOST_SHARE * full_steps, 5.0)) * self.cost_per_step(size)

    def _is_range_trial(self, proposal: Proposal) -> bool:
        return proposal.why == "range of learning rates"

    # Stages 2 and 3

    def _belief(self, results: Sequence[TrialResult]) -> Belief:
        return believe(
            results,
            objective=self.objective,
            max_examples=self.max_examples,
            cost_per_step=self.cost_per_step,
            seed=self.seed,
        )

    def _candidates(self, rng: np.random.Generator, belief: Belief) -> Candidates:
        return Candidates(space=self.space, rng=rng, belief=belief, horizon=self._horizon(belief), start=self._start())

    def _horizon(self, belief: Belief) -> Callable[[int], float]:
        """Steps that a candidate may take at a batch size: a full-length run, or well past the incumbent."""

        def steps(size: int) -> float:
            full = self.max_examples / size
            if belief.incumbent is None:
                return full
            return min(full, 1.6 * belief.incumbent.cost / self.cost_per_step(size))

        return steps

    def _first_hit(self, candidates: Candidates, belief: Belief, rng: np.random.Generator) -> Proposal:
        """The cheapest expected run, or one that shows the model more if it sees no way to the target."""
        if belief.model is not None:
            cap = max(self.full_cost(size) for size in self.space.batch_sizes.values()[:1])
            pool, expected = candidates.search(lambda c: belief.expected_costs(c, cap=cap).expected.mean(axis=0))
            best = pool[int(np.argmin(expected))]
            costs = belief.expected_costs([best], cap=cap)
            if costs.miss.mean() < 0.9:
                hit = float(np.median(costs.hit))
                limit = belief.cap_factor * 1.5 * hit * (1.0 + belief.misses_so_far * 0.3)
                return Proposal(best, cap=min(limit, self.full_cost(best.global_batch_size)), why="first hit")
        explore = candidates.without_decay()
        share = UNREACHED_SHARE * (1.0 + 0.5 * belief.misses_so_far)
        return Proposal(
            explore, cap=min(share, 1.0) * self.full_cost(explore.global_batch_size), why="show the model more"
        )

    def _improve(self, candidates: Candidates, belief: Belief) -> Proposal:
        incumbent = belief.incumbent
        assert incumbent is not None
        cap = belief.cap_factor * incumbent.cost
        if belief.worth_repeating(incumbent):
            return Proposal(incumbent.parameters, cap=1.3 * cap, why="repeat the incumbent")

        def minus_gain(c: Sequence[Parameters]) -> np.ndarray:
            return -belief.gain_per_cost(c, cap=cap)

        pool, score = candidates.search(minus_gain)
        best = pool[int(np.argmin(score))]
        return Proposal(best, cap=min(cap, self.full_cost(best.global_batch_size)), why="improvement")
