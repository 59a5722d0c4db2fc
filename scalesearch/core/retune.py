"""What to train next when a known optimum is moved to other hardware: as in a search, but from what is known.

The learning curves of the old study hold on any hardware, since they are functions of steps; only what a step costs is new.
They tell how many steps any batch size needs, but not which learning rates are stable at batch sizes that were never
tried. So a retune goes through these stages:

1. *Range*: short runs at rising learning rates, at a batch size that fills the devices. They also tell whether a rate acts
   at other batch sizes as it did at the old ones.
2. *First hit*: the parameters of most hits per cost, of those that the model proposes and of the usual rules.
3. *Race*: rules that may win, capped by the leader, and improvements and repeats as in any search (`core.planner`).
4. Rules that are not expected to win, so that it is known what they would have cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from scalesearch.core.axis import Interval
from scalesearch.core.curve_planner import CurvePlanner
from scalesearch.core.memory import Memory
from scalesearch.core.parameters import Parameters
from scalesearch.core.planner import Planner
from scalesearch.core.proposal import Proposal
from scalesearch.core.race import KNEE, MOST_GROWTH, Race, of_rule
from scalesearch.core.results import Measurement, Objective, Outcome, TrialResult
from scalesearch.core.scaling_rules import Rule
from scalesearch.core.space import SearchSpace
from scalesearch.core.surrogate.belief import Belief, believe, curve_of, loss_of, losses_of
from scalesearch.core.surrogate.loss_curves import Curve, fit_loss_curves
from scalesearch.core.surrogate.modes import runs_of
from scalesearch.core.surrogate.rate_map import CLEARLY, RateMap

EXPONENTS = (0.25, 0.5)
LEAST_POINTS = 5  # of a new run that is to tell how rates act


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """What a retune begins with.

    Args:
        rules: what the usual rules make of the old configuration.
        old: trials of the old study, with `reached` by the present objective; their numbers and costs do not count.
        forgets_old: after the first run that reaches the target, believe the new trials only, since data, model or
            optimizer have changed.
        adaptive: the optimizer divides by the size of the gradient, as Adam does, so that a rate may act more or less
            strongly at other batch sizes.
    """

    rules: tuple[Rule, ...]
    old: tuple[TrialResult, ...] = ()
    forgets_old: bool = False
    adaptive: bool = False


@dataclass(frozen=True, kw_only=True)
class RetunePlanner:
    """Proposes trials and recommends parameters, which have always been run; see `Planner` for the common arguments."""

    space: SearchSpace
    objective: Objective
    max_examples: int
    start: WarmStart
    step_seconds: Callable[[int], float] | None = None
    seed: int = 0
    confirming: bool = False
    memory: Memory[Belief] = field(default_factory=Memory, compare=False, repr=False)

    def propose(self, results: Sequence[TrialResult], pending: Sequence[Parameters] = ()) -> Proposal:
        """The next trial, beside the `pending` ones; interrupted trials count for nothing."""
        counted = _counted(results)
        if not self.start.old and not counted:
            return of_rule(self.start.rules[0], cap=None)
        rates = self._rates(counted)
        proposal = self._race(counted, rates).propose(tuple(map(rates.acting, pending)))
        return replace(proposal, parameters=self._as_set(proposal.parameters, rates, counted))

    def recommend(self, results: Sequence[TrialResult]) -> Parameters | None:
        """Of the parameters that were run here and reached the target, those of least expected cost, or None."""
        counted = _counted(results)
        rates = self._rates(counted)
        best = self._race(counted, rates).recommend() if counted else None
        return self._as_set(best, rates, counted) if best is not None else None

    def is_settled(self, results: Sequence[TrialResult]) -> bool:
        """Whether every rule has been run, the leader is confirmed, and going on is expected to gain next to nothing."""
        counted = _counted(results)
        return bool(counted) and self._race(counted, self._rates(counted)).is_settled()

    def should_stop(self, measured: Sequence[Measurement], proposal: Proposal, results: Sequence[TrialResult]) -> bool:
        """Whether a running trial can be stopped before its cap: its curve, carried on, misses the target."""
        return self._planner(self.space, RateMap()).should_stop(
            measured, proposal, [*self.start.old, *_counted(results)]
        )

    def cost_per_step(self, results: Sequence[TrialResult]) -> Callable[[int], float]:
        """What one step costs here, in the unit that the study minimises, at a global batch size."""
        return self._planner(self.space, RateMap()).cost_per_step(results)

    def expected_cost(self, parameters: Parameters, results: Sequence[TrialResult]) -> float | None:
        """What a run of `parameters` is expected to cost here, or None if the model sees no way to the target."""
        counted = _counted(results)
        if not self.start.old and not counted:
            return None
        rates = self._rates(counted)
        return self._race(counted, rates).expected_cost(rates.acting(parameters))

    def _race(self, results: Sequence[TrialResult], rates: RateMap) -> Race:
        old = () if self.start.forgets_old and any(r.reached for r in results) else self.start.old
        acting, acting_old = _acting(results, rates), _acting(old, rates)
        planner = self._planner(self._acting_space(rates), rates)
        cost_per_step = self.cost_per_step(results)
        known = (*acting_old, *acting)

        def fit() -> Belief:
            return believe(
                known,
                objective=self.objective,
                max_examples=self.max_examples,
                cost_per_step=cost_per_step,
                seed=self.seed,
            )

        # As the planner has it in its memory, which is the same one.
        belief = self.memory.of(known, (self.objective, self.max_examples, self.step_seconds, self.seed), fit)
        rules = tuple(replace(r, parameters=rates.acting(r.parameters)) for r in self.start.rules)
        return Race(planner=planner, rules=rules, old=acting_old, results=acting, belief=belief)

    def _planner(self, space: SearchSpace, rates: RateMap) -> Planner:
        return Planner(
            space=space,
            objective=self.objective,
            max_examples=self.max_examples,
            first_guess=space.nearest(rates.acting(self._start)),
            step_seconds=self.step_seconds,
            seed=self.seed,
            confirming=self.confirming,
            memory=self.memory,
        )

    @property
    def _start(self) -> Parameters:
        """By linear scaling to a batch size that fills the devices."""
        grown = next(r.parameters for r in self.start.rules if r.name == "linear")
        sizes = self.space.batch_sizes.values()
        size = grown.global_batch_size
        if self.step_seconds is not None:
            filled = [b for b in sizes if self.step_seconds(b) <= KNEE * self.step_seconds(sizes[0])]
            size = int(np.clip(max(filled, default=size), size, MOST_GROWTH * size))
        return self.space.nearest(replace(grown, global_batch_size=size))

    # Rates as they act

    def _rates(self, results: Sequence[TrialResult]) -> RateMap:
        """Under which the old curves foretell the new runs clearly best; without one, rates act as they are set.

        Under SGD they do, and what the curves say against it is a misfit of the model.
        """
        if not self.start.adaptive:
            return RateMap()
        old, new = self._curves(self.start.old), [c for c in self._curves(results) if len(c.steps) >= LEAST_POINTS]
        if not old or not new or self.objective.target is None:
            return RateMap()
        misfits = {exponent: self._misfit(old, new, RateMap(exponent)) for exponent in (0.0, *EXPONENTS)}
        best = min(misfits, key=misfits.__getitem__)
        return RateMap(best) if misfits[best] < CLEARLY * misfits[0.0] else RateMap()

    def _misfit(self, old: Sequence[Curve], new: Sequence[Curve], rates: RateMap) -> float:
        """Root mean square of log(foretold / measured loss) of the new runs."""
        acting_old = [replace(c, parameters=rates.acting(c.parameters)) for c in old]
        acting_new = [replace(c, parameters=rates.acting(c.parameters)) for c in new]
        points = [c.parameters for c in (*acting_old, *acting_new)]
        model = fit_loss_curves(
            acting_old,
            initial_loss=max(float(c.losses[0]) for c in old),
            target=loss_of(self.objective.target or 0.0, self.objective),
            longest=max(p.effective_learning_rate * self.max_examples / p.global_batch_size for p in points),
            members=1,
            rng=np.random.default_rng(0),
        )
        errors = []
        for curve in acting_new:
            foretold = model.predict(runs_of([curve.parameters]), curve.steps[None])[0, 0]
            errors.append(float(np.mean(np.log(np.maximum(foretold, 1e-12) / curve.losses) ** 2)))
        return float(np.sqrt(np.mean(errors)))

    def _curves(self, results: Sequence[TrialResult]) -> list[Curve]:
        curves = (curve_of(r, losses_of(r, self.objective)) for r in results)
        return [c for c in curves if c is not None]

    def _acting_space(self, rates: RateMap) -> SearchSpace:
        """The space with room for all rates as they act."""
        sizes, rate = self.space.batch_sizes.values(), self.space.learning_rate
        factors = [size**rates.exponent for size in (sizes[0], sizes[-1])]
        return replace(self.space, learning_rate=Interval(rate.low * factors[0], rate.high * factors[1]))

    def _as_set(self, acting: Parameters, rates: RateMap, results: Sequence[TrialResult]) -> Parameters:
        """As it was run, if it was; the rates of new ones within the space."""
        given = [*(rule.parameters for rule in self.start.rules), *(r.parameters for r in (*self.start.old, *results))]
        known = {rates.acting(p): p for p in given}
        p = known.get(acting) or rates.as_set(acting)
        if p.global_batch_size % self.space.batch_sizes.divisor:
            p = self.start.rules[0].parameters  # an old configuration, as it can be kept here
        if acting in known:
            return p
        rate = self.space.learning_rate.clip(p.learning_rate)
        return replace(p, schedule=replace(p.schedule, learning_rate=rate))


AnyPlanner = Planner | CurvePlanner | RetunePlanner


def _counted(results: Sequence[TrialResult]) -> tuple[TrialResult, ...]:
    return tuple(r for r in results if r.outcome is not Outcome.INTERRUPTED)


def _acting(results: Sequence[TrialResult], rates: RateMap) -> tuple[TrialResult, ...]:
    return tuple(replace(r, parameters=rates.acting(r.parameters)) for r in results)
