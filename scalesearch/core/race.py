"""The stages of a retune after some trials, at the rates as they act (`core.surrogate.rate_map`); see `core.retune`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from scalesearch.core.candidates import Candidates
from scalesearch.core.parameters import Parameters
from scalesearch.core.planner import CONFIRM_CAP, Planner, with_pending
from scalesearch.core.proposal import Proposal, space_that_fits
from scalesearch.core.range_trials import RangeTrials, is_range
from scalesearch.core.results import TrialResult
from scalesearch.core.scaling_rules import Rule
from scalesearch.core.surrogate.belief import Belief, rank
from scalesearch.core.surrogate.cost import odds
from scalesearch.core.surrogate.stability import log_point

KNEE = 1.5  # times the time of the shortest step: where devices are filled
MOST_GROWTH = 16.0  # of the batch size, over the rules', for the first trials
MAY_WIN = 1.1  # times the leader's cost: a rule that is expected to need no more is run before anything is improved
RUNS_HERE = 3  # of what is recommended, however often the old study ran it: its quality is shown by several seeds
FULL_LENGTH = 4.0  # times what the quickest old run needed to the target
LOSER_CAP = 3.0  # times the leader's cost, for a rule that is only run to know what it costs


@dataclass(frozen=True, kw_only=True)
class Race:
    """What is known, `old` and new, and what to run next; `planner` searches the space once the target was reached."""

    planner: Planner
    rules: tuple[Rule, ...]
    old: tuple[TrialResult, ...]
    results: tuple[TrialResult, ...]
    belief: Belief

    @property
    def known(self) -> tuple[TrialResult, ...]:
        """All trials that count."""
        return (*self.old, *self.results)

    def propose(self, pending: tuple[Parameters, ...]) -> Proposal:
        """The next trial."""
        belief = with_pending(self.belief, pending)
        if not any(r.reached for r in self.results):
            return self._first_hit(replace(belief, incumbent=None), pending)
        assert belief.incumbent is not None
        leader_cost = belief.incumbent.cost
        untried = self._untried(pending)
        if untried and not self.planner.confirming:
            rule, cost = untried[0]
            if cost <= MAY_WIN * leader_cost:
                return of_rule(rule, cap=belief.cap_factor * leader_cost)
            if self._gains_nothing:
                return of_rule(rule, cap=LOSER_CAP * leader_cost)
        if not self._is_confirmed_here(pending) and self._gains_nothing:
            leader, cap = self.recommend(), CONFIRM_CAP * belief.cap_factor * leader_cost
            assert leader is not None
            return Proposal(leader, cap=cap, why="repeat of the leader")
        return self.planner.propose(self.known, pending)

    def recommend(self) -> Parameters | None:
        """Of the parameters that were run here and reached the target, those of least expected cost, or None."""
        reached = {r.parameters for r in self.results if r.reached}
        if not reached:
            return None
        return next(i.parameters for i in rank(self.known, self.belief) if i.parameters in reached)

    def is_settled(self) -> bool:
        """Whether every rule has been run, the leader is confirmed, and going on is expected to gain next to nothing."""
        if not any(r.reached for r in self.results) or self._untried(()):
            return False
        return self._is_confirmed_here(()) and self._gains_nothing

    @cached_property
    def _gains_nothing(self) -> bool:
        """Whether the leader of all that is known is confirmed, and going on is expected to gain next to nothing."""
        return self.planner.is_settled(self.known)

    def _is_confirmed_here(self, pending: Sequence[Parameters]) -> bool:
        """Whether what is recommended was run often enough on this hardware."""
        leader = self.recommend()
        return (*(r.parameters for r in self.results), *pending).count(leader) >= RUNS_HERE

    def expected_cost(self, parameters: Parameters) -> float | None:
        """Of a run of `parameters` to the target; None if the model sees no way to it."""
        if self.belief.model is None:
            return None
        size = parameters.global_batch_size
        full = self.planner.max_examples / size * self.belief.cost_per_step(size)
        costs = self.belief.expected_costs([parameters], cap=full)
        return float(costs.hit.mean()) if costs.miss.mean() < 0.5 else None

    def _untried(self, pending: Sequence[Parameters]) -> list[tuple[Rule, float]]:
        """The rules that have not been run, with their expected costs, in the order of these."""
        tried = {*(r.parameters for r in self.results if not is_range(r)), *pending}
        left = {r.parameters: r for r in reversed(self.rules) if r.parameters not in tried}
        if not left or self.belief.model is None or self.belief.incumbent is None:
            return []
        costs = self.belief.expected_costs(list(left), cap=LOSER_CAP * self.belief.incumbent.cost)
        return sorted(zip(left.values(), costs.expected().mean(axis=0).tolist(), strict=True), key=lambda rc: rc[1])

    def _old_went_as_far(self, start: Parameters) -> bool:
        """Whether the old study had been at batch sizes on either side of the start, so that it knows the stable rates."""
        sizes = [r.parameters.global_batch_size for r in self.old if r.reached]
        return bool(sizes) and min(sizes) < start.global_batch_size <= max(sizes)

    @property
    def _long_enough(self) -> int:
        """Examples of a full-length run as the old study needs it, where trials may be far longer."""
        needed = min((r.reached.examples for r in self.old if r.reached), default=math.inf)
        return int(min(FULL_LENGTH * needed, self.planner.max_examples))

    def _is_stable(self, parameters: Parameters) -> bool:
        """Whether the rate is below all that are known to be too high."""
        log_batch, log_rate = log_point(parameters)
        return bool(log_rate < self.belief.stability.log_forbidden(np.array(log_batch)))

    def _first_hit(self, belief: Belief, pending: tuple[Parameters, ...]) -> Proposal:
        """A range trial or, with these done, the parameters of most hits per cost."""
        space = space_that_fits(self.planner.space, self.results)
        start = self.planner.first_guess
        assert start is not None
        ladder = RangeTrials(space, self._long_enough, start)
        if not self._old_went_as_far(start) and (rung := ladder.next(self.results, belief, pending)) is not None:
            return rung
        measured = {r.parameters for r in self.results if not is_range(r)}
        candidates = Candidates(
            space=space,
            rng=np.random.default_rng((self.planner.seed, len(self.results) + len(pending))),
            belief=belief,
            horizon=lambda size: self.planner.max_examples / size,
            start=start,
            near=tuple(rule.parameters for rule in self.rules),
            measured=frozenset({*measured, *pending}),
            pending=tuple(p for p in pending if p not in measured),
        )
        smallest = space.batch_sizes.values()[0]
        full = self.planner.max_examples / smallest * belief.cost_per_step(smallest)
        pool, scores = candidates.search(partial(candidates.cost_per_hit, cap=full))
        rules = [p for r in self.rules if (p := r.parameters) not in candidates.measured and self._is_stable(p)]
        if rules:
            pool, scores = [*pool, *rules], np.concatenate([scores, candidates.cost_per_hit(rules, cap=full)])
        best = pool[int(np.argmin(scores))]
        _, cap, _ = odds(belief.expected_costs([best], cap=full))
        return Proposal(best, cap=float(cap[0]), why="first hit")


def of_rule(rule: Rule, *, cap: float | None) -> Proposal:
    """A run of what a rule makes of the present configuration."""
    return Proposal(rule.parameters, cap=cap, why=f"rule: {rule.name}")
