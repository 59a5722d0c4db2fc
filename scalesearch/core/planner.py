"""What to train next: the trial of least expected cost to target, per cost of finding out.

A planner is a pure function of the trials so far and its seed, so a search that is continued proposes what it would have
proposed. It goes through three stages:

1. *Range*: short runs at rising learning rates, until one is unstable. Nothing is assumed about the model.
2. *First hit*: a loss-curve model of all runs predicts cost to target; the cheapest prediction is tried, with a cap.
3. *Improvement*: expected improvement over the incumbent per cost of the trial, with the chance of a miss; an incumbent
   that won once and might have been lucky is repeated first. A fork, which begins as an earlier trial did and decays
   elsewhere, costs only what is new of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from scalesearch.core.candidates import Candidates
from scalesearch.core.edges import Edges, Limits
from scalesearch.core.extrapolation import misses_target
from scalesearch.core.forks import Forks
from scalesearch.core.memory import Memory
from scalesearch.core.parameters import Parameters
from scalesearch.core.proposal import Proposal, space_that_fits
from scalesearch.core.range_trials import RANGE, RangeTrials, start_of
from scalesearch.core.results import Measurement, Objective, Outcome, TrialResult
from scalesearch.core.space import SearchSpace
from scalesearch.core.step_time import fit_step_times
from scalesearch.core.surrogate.belief import Belief, Incumbent, believe
from scalesearch.core.surrogate.cost import odds
from scalesearch.core.surrogate.modes import Array
from scalesearch.core.surrogate.residual import similarity

LEAST_CHANCE = 0.1
LARGE_GAIN = 0.12  # of the leader's cost: with so much to gain elsewhere, its own run need not be repeated yet
SMALL_GAIN = 0.01  # of the leader's cost: not worth a trial
SETTLED_RUNS = 4
COST_EXPONENT = 0.8  # improvement per cost^0.8: cheap trials are preferred a little less than in proportion
CONTENDER = 1.15  # times the leader's expected cost: what may still turn out to be better
CONFIRM_CAP = 1.3
TRUST_RADIUS = 2.5  # in lengths of the residual: how far the model is believed after one miss; after four, half as far
FORK_GAIN = 0.05  # of the leader's cost, at least: a fork has the luck of the run that it goes on from
LEAST_NEW = 0.1  # of the cost of a run, for what is new of a fork
UNREACHED_SHARE = 0.4  # of a full-length run, for a run that is to show the model more


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Proposes trials and recommends parameters.

    Args:
        space: where to search.
        objective: with a target.
        max_examples: full length of a trial.
        first_guess: where to begin; by default the middle of the space.
        step_seconds: seconds per step at a global batch size; by default fitted to what the trials measured.
        limits: how far the space may be widened where the optimum lies at its edge (`core.edges`); None: not at all.
        seed: of everything random.
        confirming: only repeat the leading candidates from now on, since the budget nears its end.
        memory: of the last belief; planners of one study may share one.
    """

    space: SearchSpace
    objective: Objective
    max_examples: int
    first_guess: Parameters | None = None
    step_seconds: Callable[[int], float] | None = None
    limits: Limits | None = None
    seed: int = 0
    confirming: bool = False
    memory: Memory[Belief] = field(default_factory=Memory, compare=False, repr=False)

    def propose(self, results: Sequence[TrialResult], pending: Sequence[Parameters] = ()) -> Proposal:
        """The next trial, beside the `pending` ones, which it neither doubles nor waits for.

        Interrupted trials count for nothing, so that an interruption changes no proposal.
        """
        results = [r for r in results if r.outcome is not Outcome.INTERRUPTED]
        belief = with_pending(self._belief(results), pending)
        return self._where_searched(results, belief)._propose(results, belief, tuple(pending))

    def _where_searched(self, results: Sequence[TrialResult], belief: Belief) -> Planner:
        """In the space that is searched after `results`: widened by the edge rule, and within what fits in memory."""
        planner = replace(self, space=space_that_fits(self.space, results))
        if self.limits is None or belief.incumbent is None:
            return planner
        edges = Edges(
            space=planner.space,
            leader=belief.incumbent.parameters,
            results=results,
            stability=belief.stability,
            limits=self.limits,
        )
        return replace(planner, space=edges.widened(), first_guess=planner._start)

    def _propose(self, results: Sequence[TrialResult], belief: Belief, pending: tuple[Parameters, ...]) -> Proposal:
        if self.confirming and belief.incumbent is not None:
            return self._confirm(belief)
        range_trials = RangeTrials(self.space, self.max_examples, self._start)
        if (range_trial := range_trials.next(results, belief, pending)) is not None:
            return range_trial
        candidates = self._candidates(results, belief, pending)
        if belief.incumbent is None:
            return self._first_hit(candidates, belief)
        return self._improve(candidates, belief, belief.incumbent)

    def _candidates(
        self, results: Sequence[TrialResult], belief: Belief, pending: tuple[Parameters, ...] = ()
    ) -> Candidates:
        measured = {r.parameters for r in results}
        return Candidates(
            space=self.space,
            rng=np.random.default_rng((self.seed, len(results) + len(pending))),
            belief=belief,
            horizon=self._horizon(belief),
            start=self._start,
            measured=frozenset({*measured, *pending}),
            forks=Forks(space=self.space, results=tuple(results), max_examples=self.max_examples),
            pending=tuple(p for p in pending if p not in measured),  # a repeat tells nothing about what is near it
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
        searched = self._where_searched(results, belief)
        _, gain = searched._best_improvement(searched._candidates(results, belief), belief, belief.incumbent)
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

    @property
    def _start(self) -> Parameters:
        return start_of(self.space, self.first_guess)

    def _belief(self, results: Sequence[TrialResult]) -> Belief:
        counted = tuple(r for r in results if r.outcome is not Outcome.INTERRUPTED)
        settings = (self.objective, self.max_examples, self.step_seconds, self.seed)
        return self.memory.of(
            counted,
            settings,
            lambda: believe(
                counted,
                objective=self.objective,
                max_examples=self.max_examples,
                cost_per_step=self.cost_per_step(counted),
                seed=self.seed,
            ),
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
            full = self._full_cost(replace(self._start, global_batch_size=smallest), belief)
            pool, cost_per_hit = candidates.search(partial(candidates.cost_per_hit, cap=full))
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
        challenger = min(belief.leaders, key=lambda leader: leader.cost)
        if challenger.runs == 1 and challenger.cost < incumbent.cost and gain < LARGE_GAIN * incumbent.cost:
            return Proposal(challenger.parameters, cap=CONFIRM_CAP * cap, why="repeat of a challenger")
        if gain < SMALL_GAIN * incumbent.cost:
            return self._confirm(belief)
        why = "improvement"
        if (fork := self._better_fork(candidates, belief, incumbent, than=best)) is not None:
            best, why = fork, "fork"
        return Proposal(best, cap=min(cap, self._full_cost(best, belief)), why=belief.attributed(why))

    def _best_improvement(
        self, candidates: Candidates, belief: Belief, incumbent: Incumbent
    ) -> tuple[Parameters, float]:
        """The candidate of most expected improvement per cost of its trial, and that improvement.

        With every miss the search stays nearer to the incumbent: the model, which promised a hit, is wrong further out.
        """
        cap = belief.cap_factor * incumbent.cost

        def score(c: Sequence[Parameters]) -> Array:
            gain, cost = belief.gains(c, cap=cap)
            gain *= similarity(c, [incumbent.parameters]) ** (belief.misses_in_a_row / TRUST_RADIUS**2)
            return np.asarray(-gain * candidates.novelty(c) / cost**COST_EXPONENT)

        pool, scores = candidates.search(score)
        best = pool[int(np.argmin(scores))]
        return best, float((belief.gains([best], cap=cap)[0] * candidates.novelty([best]))[0])

    def _better_fork(
        self, candidates: Candidates, belief: Belief, incumbent: Incumbent, *, than: Parameters
    ) -> Parameters | None:
        """A fork of more expected improvement per cost of what is new of it than a trial of `than`, if there is one."""
        cap = belief.cap_factor * incumbent.cost
        forks = candidates.of_leaders()
        pool = [than, *forks]
        gains, costs = belief.gains(pool, cap=cap)
        saved = [0.0, *(steps * belief.cost_per_step(p.global_batch_size) for p, steps in forks.items())]
        new = np.maximum(costs - np.array(saved), LEAST_NEW * costs)
        gains = gains * candidates.novelty(pool)
        least = np.array([SMALL_GAIN, *[FORK_GAIN] * len(forks)]) * incumbent.cost
        best = int(np.argmax(np.where(gains >= least, gains / new**COST_EXPONENT, 0.0)))
        return pool[best] if best else None


def with_pending(belief: Belief, pending: Sequence[Parameters]) -> Belief:
    """The belief in which a repeat of a leader that is running counts as a run."""
    leaders = tuple(replace(leader, runs=leader.runs + pending.count(leader.parameters)) for leader in belief.leaders)
    return replace(belief, leaders=leaders, incumbent=leaders[0] if leaders else None)
