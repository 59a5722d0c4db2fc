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
from scalesearch.core.results import Measurement, Objective, Outcome, TrialResult
from scalesearch.core.schedule import Constant
from scalesearch.core.space import SearchSpace
from scalesearch.core.step_time import fit_step_times
from scalesearch.core.surrogate.belief import Belief, Incumbent, believe
from scalesearch.core.surrogate.cost import odds
from scalesearch.core.surrogate.modes import Array
from scalesearch.core.surrogate.stability import log_point

RANGE = "range of learning rates"
RANGE_FACTOR = 3.0
RANGE_TRIALS = 9
RANGE_SHARE = 0.02  # of a full-length run, for each range trial, unless momentum needs longer to show
RANGE_MOST_SHARE = 0.05
LEAST_CHANCE = 0.1
LARGE_GAIN = 0.25  # of the leader's cost: with so much to gain elsewhere, its own run need not be repeated yet
SMALL_GAIN = 0.01  # of the leader's cost: not worth a trial
SETTLED_RUNS = 4
COST_EXPONENT = 0.8  # improvement per cost^0.8: cheap trials are preferred a little less than in proportion
CONTENDER = 1.15  # times the leader's expected cost: what may still turn out to be better
CONFIRM_CAP = 1.3
UNREACHED_SHARE = 0.4  # of a full-length run, for a run that is to show the model more


@dataclass(frozen=True)
class Proposal:
    """A trial to run.

    `cap` is the cost, in the goal's unit, after which to stop it; None: its full length.
    """

    parameters: Parameters
    cap: float | None
    why: str


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Proposes trials and recommends parameters.

    Args:
        space: where to search.
        objective: with a target.
        max_examples: full length of a trial.
        first_guess: where to begin; by default the middle of the space.
        step_seconds: seconds per step at a global batch size; by default fitted to what the trials measured.
        seed: of everything random.
        confirming: only repeat the leading candidates from now on, since the budget nears its end.
    """

    space: SearchSpace
    objective: Objective
    max_examples: int
    first_guess: Parameters | None = None
    step_seconds: Callable[[int], float] | None = None
    seed: int = 0
    confirming: bool = False

    def propose(self, results: Sequence[TrialResult]) -> Proposal:
        """The next trial. Interrupted trials count for nothing, so that an interruption changes no proposal."""
        results = [r for r in results if r.outcome is not Outcome.INTERRUPTED]
        return replace(self, space=_that_fits(self.space, results))._propose(results)

    def _propose(self, results: Sequence[TrialResult]) -> Proposal:
        belief = self._belief(results)
        if self.confirming and belief.incumbent is not None:
            return self._confirm(belief)
        if (range_trial := self._range_trial(results, belief)) is not None:
            return range_trial
        candidates = self._candidates(results, belief)
        if belief.incumbent is None:
            return self._first_hit(candidates, belief)
        return self._improve(candidates, belief, belief.incumbent)

    def _candidates(self, results: Sequence[TrialResult], belief: Belief) -> Candidates:
        return Candidates(
            space=self.space,
            rng=np.random.default_rng((self.seed, len(results))),
            belief=belief,
            horizon=self._horizon(belief),
            start=self._start(),
            measured=frozenset(r.parameters for r in results),
        )

    def recommend(self, results: Sequence[TrialResult]) -> Parameters | None:
        """The parameters of least expected cost among those that reached the target, or None."""
        incumbent = self._belief(results).incumbent
        return incumbent.parameters if incumbent else None

    def is_settled(self, results: Sequence[TrialResult]) -> bool:
        """Whether the leader is confirmed and going on is expected to gain next to nothing."""
        belief = self._belief(results)
        if belief.incumbent is None or belief.incumbent.runs < SETTLED_RUNS:
            return False
        _, gain = self._best_improvement(self._candidates(results, belief), belief, belief.incumbent)
        return gain < SMALL_GAIN * belief.incumbent.cost

    def should_stop(self, measured: Sequence[Measurement], proposal: Proposal, results: Sequence[TrialResult]) -> bool:
        """Whether a running trial can be stopped before its cap: its curve, carried on, misses the target."""
        if proposal.why == RANGE:
            return False
        cap = proposal.cap if proposal.cap is not None else np.inf
        size = proposal.parameters.global_batch_size
        cap_examples = min(cap / self.cost_per_step(results)(size) * size, self.max_examples)
        boundaries = proposal.parameters.schedule.boundaries
        return misses_target(measured, self.objective, boundaries=boundaries, cap_examples=cap_examples)

    def cost_per_step(self, results: Sequence[TrialResult]) -> Callable[[int], float]:
        """What one step costs, in the unit that the study minimises, at a global batch size."""
        if self.objective.minimize == "seconds":
            return self.step_seconds or fit_step_times(results)
        return float if self.objective.minimize == "examples" else lambda global_batch_size: 1.0

    # Stage 1

    def _range_trial(self, results: Sequence[TrialResult], belief: Belief) -> Proposal | None:
        """The next rung of the ladder of learning rates at one batch size, or None once an unstable one is known."""
        start, stability = self._start(), belief.stability
        if len(results) >= RANGE_TRIALS:
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
        parameters = self.space.nearest(replace(start, schedule=Constant(learning_rate=rate)))
        if any(r.parameters == parameters for r in results):
            return None  # the edge of the space
        return Proposal(parameters, cap=self._range_cost(start, belief), why=RANGE)

    def _start(self) -> Parameters:
        """Where range trials run: the first guess, or the middle of the space."""
        guess = self.first_guess
        if guess is None:
            middle = {a.name: np.sqrt(a.low * a.high) if a.log else 0.5 * (a.low + a.high) for a in self.space.axes()}
            return self.space.parameters({a.name: a.clip(middle[a.name]) for a in self.space.axes()})
        return self.space.nearest(guess)

    def _range_cost(self, start: Parameters, belief: Belief) -> float:
        """Long enough to show slow divergence (2.5 / (1 − momentum) steps), within a share of a full-length run."""
        size = start.global_batch_size
        full_steps = self.max_examples / size
        needed = max(10.0, 2.5 / (1.0 - (start.momentum or 0.0)), RANGE_SHARE * full_steps)
        return min(needed, max(RANGE_MOST_SHARE * full_steps, 5.0)) * belief.cost_per_step(size)

    # Stages 2 and 3

    def _belief(self, results: Sequence[TrialResult]) -> Belief:
        return believe(
            results,
            objective=self.objective,
            max_examples=self.max_examples,
            cost_per_step=self.cost_per_step(results),
            seed=self.seed,
        )

    def _full_cost(self, parameters: Parameters, belief: Belief) -> float:
        """Cost of a full-length trial."""
        size = parameters.global_batch_size
        return self.max_examples / size * belief.cost_per_step(size)

    def _horizon(self, belief: Belief) -> Callable[[int], float]:
        """Steps that a candidate may take at a batch size: a full-length run, or well past the incumbent."""

        def steps(size: int) -> float:
            full = self.max_examples / size
            if belief.incumbent is None:
                return full
            return min(full, 1.6 * belief.incumbent.cost / belief.cost_per_step(size))

        return steps

    def _first_hit(self, candidates: Candidates, belief: Belief) -> Proposal:
        """The best odds of a first hit per cost, or a run that shows the model more if it sees no way to the target."""
        if belief.model is not None:
            smallest = self.space.batch_sizes.values()[0]
            full = self._full_cost(replace(self._start(), global_batch_size=smallest), belief)
            pool, cost_per_hit = candidates.search(lambda c: odds(belief.expected_costs(c, cap=full))[0])
            best = pool[int(np.argmin(cost_per_hit))]
            _, cap, chance = odds(belief.expected_costs([best], cap=full))
            if chance[0] >= LEAST_CHANCE:
                return Proposal(best, cap=min(float(cap[0]), self._full_cost(best, belief)), why="first hit")
        explore = candidates.without_decay()
        share = UNREACHED_SHARE * (1.0 + 0.5 * belief.misses_so_far)
        return Proposal(explore, cap=min(share, 1.0) * self._full_cost(explore, belief), why="show the model more")

    def _confirm(self, belief: Belief) -> Proposal:
        """A run of the contender with the fewest: racing, the leader first."""
        leader = belief.leaders[0]
        contenders = [c for c in belief.leaders if c.cost <= CONTENDER * leader.cost]
        least = min(contenders, key=lambda c: c.runs)
        return Proposal(least.parameters, cap=CONFIRM_CAP * belief.cap_factor * leader.cost, why="confirmation")

    def _improve(self, candidates: Candidates, belief: Belief, incumbent: Incumbent) -> Proposal:
        best, gain = self._best_improvement(candidates, belief, incumbent)
        cap = belief.cap_factor * incumbent.cost
        if belief.worth_repeating(incumbent) and gain < LARGE_GAIN * incumbent.cost:
            return Proposal(incumbent.parameters, cap=CONFIRM_CAP * cap, why="repeat of the leader")
        if gain < SMALL_GAIN * incumbent.cost:
            return self._confirm(belief)
        return Proposal(best, cap=min(cap, self._full_cost(best, belief)), why="improvement")

    def _best_improvement(
        self, candidates: Candidates, belief: Belief, incumbent: Incumbent
    ) -> tuple[Parameters, float]:
        """The candidate of most expected improvement per cost of its trial, and that improvement."""
        cap = belief.cap_factor * incumbent.cost

        def score(c: Sequence[Parameters]) -> Array:
            gain, cost = belief.gains(c, cap=cap)
            return np.asarray(-gain / cost**COST_EXPONENT)

        pool, scores = candidates.search(score)
        best = pool[int(np.argmin(scores))]
        return best, float(belief.gains([best], cap=cap)[0][0])


def _that_fits(space: SearchSpace, results: Sequence[TrialResult]) -> SearchSpace:
    """The space below the batch sizes at which the memory of a device ran out."""
    too_large = min(
        (r.parameters.global_batch_size for r in results if r.outcome is Outcome.OUT_OF_MEMORY), default=None
    )
    if too_large is None:
        return space
    sizes = space.batch_sizes.values()
    largest = max((s for s in sizes if s < too_large), default=sizes[0])
    return replace(space, batch_sizes=replace(space.batch_sizes, high=largest))
