"""Where a study of the whole curve stands after its first hit, and what it should do next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from scalesearch.core.axis import Interval
from scalesearch.core.candidates import Candidates
from scalesearch.core.curve import CurvePoint
from scalesearch.core.parameters import Parameters
from scalesearch.core.planner import CONFIRM_CAP, CONTENDER, COST_EXPONENT, LARGE_GAIN, SMALL_GAIN
from scalesearch.core.proposal import Proposal
from scalesearch.core.range_trials import RangeTrials, is_range
from scalesearch.core.results import Outcome, TrialResult
from scalesearch.core.schedule import Linear, Piecewise
from scalesearch.core.space import SearchSpace
from scalesearch.core.surrogate.belief import Belief, Incumbent, rank
from scalesearch.core.surrogate.modes import Array
from scalesearch.core.surrogate.rate_map import RateMap

TWICE = 2  # runs that a leader needs to be settled
ATTEMPTS = 4  # at a batch size that does not reach the target, before the others are improved
MOST_ATTEMPTS = 12
GAIN_OF_VERIFYING = 2.0  # a batch size of which nothing is known, as a share of its steps
LATER = 3.0  # how much dearer each failed attempt at a batch size counts, so that others come first
DIVERGED_ATTEMPT = 0.25
BACK_OFF = 0.85  # of the rate, for each run that diverged at a batch size
BEYOND = 4.0  # times the reference steps: what a prediction for a batch size without a hit may need
VERIFY_CAP = 1.3  # times the predicted steps, at least
ANOTHER_ATTEMPT = 1.4  # times the cap of the attempt before it
QUANTILE_90 = 1.645  # standard deviations on either side
HORIZON = 1.6  # times the leader's steps: how late a boundary is looked for


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a curve study stands after its first hit. `rough` is a belief in units of the reference steps.

    Inside, all rates are those that act; `as_set` has those of the trials exactly as they were set.
    """

    given_space: SearchSpace
    as_set: Mapping[Parameters, Parameters]
    rates: RateMap
    sizes: tuple[int, ...]
    max_examples: int
    start: Parameters
    seed: int
    confirming: bool
    results: tuple[TrialResult, ...]
    pending: tuple[Parameters, ...]
    rough: Belief
    cost_per_step: Callable[[int], float]
    price_per_step: Callable[[int], float]

    def propose(self) -> Proposal:
        """The next trial, at the rate to be set."""
        proposal = self._propose()
        return replace(proposal, parameters=self._as_set(proposal.parameters))

    def _as_set(self, parameters: Parameters) -> Parameters:
        return self.as_set.get(parameters) or self.given_space.nearest(self.rates.as_set(parameters))

    @cached_property
    def space(self) -> SearchSpace:
        """The space of acting rates, wide enough for those of every batch size."""
        given = self.given_space.learning_rate
        factors = [float(size) ** self.rates.exponent for size in self.sizes]
        acting = Interval(given.low * min(factors), given.high * max(factors))
        return replace(self.given_space, learning_rate=acting)

    def _space_at(self, size: int) -> SearchSpace:
        """The acting rates of one batch size."""
        given, factor = self.given_space.learning_rate, float(size) ** self.rates.exponent
        return replace(self.given_space, learning_rate=Interval(given.low * factor, given.high * factor))

    def _is_within(self, parameters: Parameters) -> bool:
        rates = self._space_at(parameters.global_batch_size).learning_rate
        return rates.low <= parameters.learning_rate <= rates.high

    def _propose(self) -> Proposal:
        range_trials = RangeTrials(self._space_at(self.start.global_batch_size), self.max_examples, self.start)
        if (range_trial := range_trials.next(self.results, self.rough, self.pending)) is not None:
            size = range_trial.parameters.global_batch_size
            steps = (range_trial.cap or np.inf) / self.rough.cost_per_step(size)
            return replace(range_trial, cap=steps * self.cost_per_step(size))
        best, gain, price = self._best_improvement
        size = best.global_batch_size
        if self._open_sizes:
            waiting = min(self._open_sizes, key=self._turn)
            # Cheap improvements come before dear verifications, which they make better guesses.
            of_verifying = GAIN_OF_VERIFYING / self._price(waiting) ** COST_EXPONENT
            if self.confirming or gain < SMALL_GAIN or of_verifying > gain / price**COST_EXPONENT:
                return self._verify(waiting)
        if self.confirming:
            return self._repeat_the_most_doubtful()
        leader = self.ranked[size][0]
        if self.belief.worth_repeating(leader) and gain < LARGE_GAIN:
            return self._repeat(leader, why="repeat of a leader")
        if gain < SMALL_GAIN:
            return self._repeat_the_most_doubtful()
        return self._capped(best, self.belief.cap_factor, why=self.belief.attributed("improvement"))

    def is_settled(self) -> bool:
        """Whether no batch size waits, every leader was run twice, and next to nothing is to be gained."""
        if self._open_sizes or any(self.ranked[s][0].runs < TWICE for s in self.sizes if s in self.ranked):
            return False
        return self._best_improvement[1] < SMALL_GAIN

    def curve(self) -> dict[int, CurvePoint]:
        """What is expected of the leader of each batch size that has reached the target."""
        points = {}
        for size, (leader, *_) in self.ranked.items():
            steps = leader.hit / self.rough.cost_per_step(size)
            half = np.exp(QUANTILE_90 * leader.log_error)
            interval = (float(steps / half), float(steps * half))
            points[size] = CurvePoint(parameters=self._as_set(leader.parameters), steps=steps, interval=interval)
        return points

    def cheapest_first(self, cost_per_step: Callable[[int], float]) -> list[Parameters]:
        """The leaders by their cost to target."""
        sizes = sorted(self.ranked, key=lambda size: self.steps(size) * cost_per_step(size))
        return [self._as_set(self.ranked[size][0].parameters) for size in sizes]

    @cached_property
    def ranked(self) -> Mapping[int, tuple[Incumbent, ...]]:
        """At each batch size that has reached the target, the parameters that did, in the unit of `rough`."""
        at = defaultdict(list)
        for incumbent in rank(self.results, self.rough):
            at[incumbent.parameters.global_batch_size].append(self._with_pending(incumbent))
        return {size: tuple(at[size]) for size in sorted(at)}

    def _with_pending(self, incumbent: Incumbent) -> Incumbent:
        """A repeat that is running counts as a run."""
        return replace(incumbent, runs=incumbent.runs + self.pending.count(incumbent.parameters))

    def steps(self, size: int) -> float:
        """Expected steps to target of the leader; without one, the reference."""
        reference = 1.0 / self.rough.cost_per_step(size)
        return reference * self.ranked[size][0].cost if size in self.ranked else reference

    @cached_property
    def belief(self) -> Belief:
        """In units of each leader's expected steps."""
        leaders = tuple(ranked[0] for ranked in self.ranked.values())
        return replace(
            self.rough,
            cost_per_step=lambda size: 1.0 / self.steps(size),
            leaders=leaders,
            incumbent=replace(leaders[0], cost=1.0),
        )

    def _price(self, size: int) -> float:
        """Of a run to the target."""
        return self.steps(size) * self.price_per_step(size)

    @property
    def _open_sizes(self) -> list[int]:
        """Batch sizes that have not reached the target, and still may."""
        waiting = [s for s in self.sizes if s not in self.ranked]
        return [s for s in waiting if self._attempts(s) < ATTEMPTS and self._attempts(s, ever=True) < MOST_ATTEMPTS]

    def _turn(self, size: int) -> float:
        """What a batch size waits for: the least is verified next. The nearer to what is known, the better the guess."""
        away = min(abs(np.log2(size / known)) for known in self.ranked)
        return float(self._price(size) * LATER ** (max(away - 1.0, 0.0) + self._attempts(size)))

    def _attempts(self, size: int, *, ever: bool = False) -> float:
        """Trials at a batch size since what leads at the nearest one was found: with better parameters to go by, a batch
        size gets another chance. Or `ever`, since the first hit anywhere. One that diverged cost next to nothing.
        """
        nearest = self.ranked[min(self.ranked, key=lambda s: abs(np.log(s / size)))][0].parameters
        first = next(i for i, r in enumerate(self.results) if r.reached and (ever or r.parameters == nearest))
        first = max(first, self._after_range) if size == self.start.global_batch_size else first
        tried = [r for r in self.results[first:] if r.parameters.global_batch_size == size]
        pending = sum(p.global_batch_size == size for p in self.pending)
        return pending + sum(DIVERGED_ATTEMPT if r.outcome is Outcome.DIVERGED else 1.0 for r in tried)

    @cached_property
    def _after_range(self) -> int:
        """Where the range trials are over."""
        return max((i for i, r in enumerate(self.results) if is_range(r)), default=-1) + 1

    def _largest_rate(self, size: int) -> float:
        """Above it no candidate is taken: the lower, the more runs diverged at a batch size that has not got there yet."""
        diverged = [r.parameters for r in self.results if r.outcome is Outcome.DIVERGED]
        rates = [p.effective_learning_rate for p in diverged if p.global_batch_size == size]
        return min(rates, default=np.inf) * BACK_OFF ** len(rates)

    def _candidates(self, space: SearchSpace, near: Iterable[Parameters] = ()) -> Candidates:
        measured = {r.parameters for r in self.results}
        return Candidates(
            space=space,
            rng=np.random.default_rng((self.seed, len(self.results) + len(self.pending))),
            belief=self.belief,
            horizon=lambda size: min(self.max_examples / size, HORIZON * self.steps(size)),
            start=space.nearest(self.start),
            near=tuple(near),
            measured=frozenset({*measured, *self.pending}),
            pending=tuple(p for p in self.pending if p not in measured),
        )

    def _verify(self, size: int) -> Proposal:
        """A run at the parameters of least expected steps at a batch size that has not reached the target."""
        space = replace(self._space_at(size), batch_sizes=replace(self.space.batch_sizes, low=size, high=size))
        near = [space.nearest(p) for p in self._transferred(size)]
        largest = self._largest_rate(size)

        def score(c: Sequence[Parameters]) -> Array:
            too_large = np.array([p.effective_learning_rate > largest for p in c])
            expected = self.belief.expected_costs(c, cap=BEYOND).expected().mean(axis=0)
            return np.asarray(np.where(too_large, np.inf, expected))

        pool, expected = self._candidates(space, near).search(score)
        best = pool[int(np.argmin(expected))]
        costs = self.belief.expected_costs([best], cap=BEYOND)
        factor = max(VERIFY_CAP, self.belief.cap_factor) * ANOTHER_ATTEMPT ** self._attempts(size)
        cap = factor * float(costs.hit.mean())
        smaller = max((s for s in self.ranked if s < size), default=None)
        if self._attempts(size) >= 1.0 and smaller is not None:
            cap = max(cap, VERIFY_CAP * self.steps(smaller) / self.steps(size))  # as many steps are always enough
        return self._capped(best, cap, why="verification")

    def _transferred(self, size: int) -> Iterable[Parameters]:
        """What leads at the nearest batch sizes, with its rate and its boundaries kept or scaled with the batch size."""
        nearest = sorted(self.ranked, key=lambda s: abs(np.log(s / size)))[:2]
        for leader in (self.ranked[s][0].parameters for s in nearest):
            ratio = size / leader.global_batch_size
            for rate in (1.0, ratio):
                for examples in (1.0, ratio):
                    yield scaled(leader, size, rate=rate, examples=examples)

    @cached_property
    def _best_improvement(self) -> tuple[Parameters, float, float]:
        """The candidate of most expected improvement per cost of its trial, that improvement as a share, and that cost."""
        belief, cap, candidates = self.belief, self.belief.cap_factor, self._candidates(self.space)

        def score(c: Sequence[Parameters]) -> Array:
            gain, cost = belief.gains(c, cap=cap)
            verified = np.array([p.global_batch_size in self.ranked and self._is_within(p) for p in c])
            price = np.array([self._price(p.global_batch_size) for p in c])
            return np.asarray(-np.where(verified, gain, 0.0) * candidates.novelty(c) / (cost * price) ** COST_EXPONENT)

        pool, scores = candidates.search(score)
        best = pool[int(np.argmin(scores))]
        if best.global_batch_size not in self.ranked:
            return self.belief.leaders[0].parameters, 0.0, 1.0
        gain, cost = belief.gains([best], cap=cap)
        price = float(cost[0]) * self._price(best.global_batch_size)
        return best, float(gain[0] * candidates.novelty([best])[0]), price

    def _repeat_the_most_doubtful(self) -> Proposal:
        """A run of the contender with the fewest at the batch size with the fewest; of equals, the cheapest."""
        reached = [s for s in self.sizes if s in self.ranked] or list(self.ranked)  # a baseline may lie elsewhere
        size = min(reached, key=lambda s: (self.ranked[s][0].runs, self._price(s)))
        leader, *others = self.ranked[size]
        contenders = [leader, *(o for o in others if o.cost <= CONTENDER * leader.cost)]
        return self._repeat(min(contenders, key=lambda c: c.runs), why="confirmation")

    def _repeat(self, incumbent: Incumbent, *, why: str) -> Proposal:
        return self._capped(incumbent.parameters, CONFIRM_CAP * self.belief.cap_factor, why=why)

    def _capped(self, parameters: Parameters, relative_cap: float, *, why: str) -> Proposal:
        """A trial that may take `relative_cap` times the leader's steps."""
        size = parameters.global_batch_size
        steps = min(relative_cap * self.steps(size), self.max_examples / size)
        return Proposal(parameters, cap=steps * self.cost_per_step(size), why=why)


def scaled(parameters: Parameters, size: int, *, rate: float, examples: float) -> Parameters:
    """`parameters` at another batch size, with the learning rate and the decay boundaries multiplied."""
    schedule = parameters.schedule
    if isinstance(schedule, Piecewise):
        boundaries: list[int] = []
        for boundary in schedule.boundaries:
            boundaries.append(max(round(boundary * examples), (boundaries or [0])[-1] + 1))
        schedule = replace(schedule, boundaries=tuple(boundaries))
    elif isinstance(schedule, Linear):
        schedule = replace(schedule, decay_examples=max(1, round(schedule.decay_examples * examples)))
    return replace(
        parameters,
        global_batch_size=size,
        schedule=replace(schedule, learning_rate=rate * schedule.learning_rate),
    )
