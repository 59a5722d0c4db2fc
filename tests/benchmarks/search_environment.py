"""One study of one workload under a budget: the same problem and the same accounts for every method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
from search_truth import MISS_REGRET, Truth, regrets
from search_workloads import Case, Stop, run_trial

from scalesearch.core.axis import Interval
from scalesearch.core.parameters import Parameters
from scalesearch.core.prefix import seed_to_share, trained_before
from scalesearch.core.results import TrialResult
from scalesearch.core.schedule import Piecewise, Schedule
from scalesearch.core.schedule_space import ConstantSpace, PiecewiseSpace
from scalesearch.core.space import BatchSizes, SearchSpace

SMALLER_OCTAVES, LARGER_OCTAVES = 6, 4  # of the batch sizes searched, around the critical one
BOUNDARY_RANGE = 50.0
MOST_TRIALS = 1500


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What a method is told."""

    space: SearchSpace
    max_examples: int
    first_guess: Parameters
    seed: int


def problem(case: Case, truth: Truth, *, seed: int, guess_factor: float) -> Problem:
    """The problem that a seed poses.

    The space has 10 octaves of batch, 4 decades of learning rate and boundaries over a factor of 50, and more only
    where the optimum would lie within two octaves, or a factor of four, of an edge; where it lies in them is random.
    The first guess has a batch from an eighth to twice the critical one, a learning rate that is off by about
    `guess_factor`, three times in four too low, and boundaries that are off by about 1.3.
    """
    random = np.random.default_rng((seed, 1))
    centre = round(math.log2(truth.critical_batch)) + int(random.integers(-1, 2))
    best = truth.best
    low = min(2 ** max(0, centre - SMALLER_OCTAVES), best.global_batch_size // 4)
    high = max(2 ** (centre + LARGER_OCTAVES), best.global_batch_size * 4)
    rates = [o.parameters.learning_rate for b, o in truth.curve.items() if low <= b <= high]
    middle = math.exp(np.mean(np.log(rates))) * 10 ** random.uniform(-0.5, 0.5)
    examples = truth.curve[best.global_batch_size].examples
    max_examples = round(examples * math.exp(random.uniform(math.log(3), math.log(6))))
    space = SearchSpace(
        batch_sizes=BatchSizes(low=low, high=high, multiple_of=None, divisor=1),
        learning_rate=Interval(min(middle / 100, best.learning_rate / 4), max(middle * 100, best.learning_rate * 4)),
        momentum=Interval(case.momentum, case.momentum) if case.momentum is not None else None,
        schedule=PiecewiseSpace(
            decays=case.decays,
            boundaries=Interval(max_examples / BOUNDARY_RANGE, max_examples),
            decay_factor=Interval(case.decay_factor, case.decay_factor),
        )
        if case.decays
        else ConstantSpace(),
    )
    guess = _first_guess(case, truth, space, random, guess_factor)
    return Problem(space=space, max_examples=max_examples, first_guess=guess, seed=seed)


def _first_guess(
    case: Case, truth: Truth, space: SearchSpace, random: np.random.Generator, factor: float
) -> Parameters:
    sizes = [b for b in truth.curve if space.batch_sizes.low <= b <= space.batch_sizes.high]
    wanted = math.log2(truth.critical_batch) + random.uniform(-3, 1)
    optimum = truth.curve[min(sizes, key=lambda b: abs(math.log2(b) - wanted))]
    too_low = random.random() < 0.75
    log_off = -abs(random.normal()) if too_low else random.normal() / 3.0
    rate = optimum.parameters.learning_rate * math.exp(log_off * math.log(factor))
    examples = optimum.examples * math.exp(random.normal() * math.log(1.3))
    shares = np.sort([random.uniform(0.5, 1.0), *random.uniform(1.1, 1.6, size=8)])[: case.decays]
    schedule: Schedule = replace(optimum.parameters.schedule, learning_rate=rate)
    if isinstance(schedule, Piecewise):
        schedule = replace(schedule, boundaries=tuple(round(examples * s) for s in shares))
    guess = replace(optimum.parameters, schedule=schedule)
    return space.parameters(space.coordinates(guess))


class Environment:
    """Runs the trials that a method asks for, and keeps what they cost and what it recommends meanwhile.

    Args:
        case: what is trained; a cost is in the unit that it minimises.
        problem: what the method is told.
        unit: the cost in which budgets count: that of a full run.
        full_cost: the most that a trial costs.
        budgets: at which the recommendations are looked at, in ascending order; the last one is what can be spent.
    """

    def __init__(
        self, case: Case, problem: Problem, *, unit: float, full_cost: float, budgets: Sequence[float]
    ) -> None:
        self.case, self.problem, self.full_cost = case, problem, full_cost
        self.budgets = tuple(budgets)
        self.results: list[TrialResult] = []
        self._unit = unit
        self._cost = 0.0
        self._recommended: list[tuple[float, Any]] = []
        self._studies: dict[float, Environment] = {}
        self._effort = _Effort(perf_counter())

    @property
    def spent(self) -> float:
        """In full runs."""
        return self._cost / self._unit

    @property
    def has_budget(self) -> bool:
        return self.spent < self.budgets[-1] and len(self.results) < MOST_TRIALS

    @property
    def best(self) -> TrialResult | None:
        """The trial that reached the target at the least cost."""
        return min((r for r in self.results if r.reached), key=self.cost_to_target, default=None)

    def cost_to_target(self, result: TrialResult) -> float:
        """Infinite for a miss."""
        return result.reached.cost(self.case.minimize) if result.reached else math.inf

    def run(
        self,
        parameters: Parameters,
        *,
        cap: float | None = None,
        should_stop: Stop | None = None,
        continues: TrialResult | None = None,
        why: str = "",
    ) -> TrialResult:
        """Run a trial and pay for what is new of it, up to a cost of `cap`.

        One that `continues` another, or differs from earlier ones in later decays only, has their seed and goes on from them.
        """
        started = perf_counter()
        number = len(self.results)
        fresh = int(np.random.SeedSequence((self.problem.seed, number)).generate_state(1)[0])
        earlier = [(r.parameters, r.seed) for r in self.results]
        shared = seed_to_share(parameters, earlier, max_examples=self.problem.max_examples)
        result = run_trial(
            self.case,
            parameters,
            number=number,
            seed=continues.seed if continues else fresh if shared is None else shared,
            max_cost=min(self.full_cost, math.inf if cap is None else cap),
            max_examples=self.problem.max_examples,
            should_stop=should_stop,
        )
        result = replace(result, why=why)
        self.results.append(result)
        paid = continues.measurements[-1].step if continues else trained_before(result, self.results[:-1])
        steps = max(result.measurements[-1].step - paid, 0)
        self._cost += steps * self.case.cost_per_step(parameters.global_batch_size)
        self._effort.trained(perf_counter() - started)
        return result

    def recommend(self, recommendation: Any) -> None:
        """What the method would recommend if the study ended now."""
        self._recommended.append((self.spent, recommendation))

    def recommended(self, budget: float) -> Any:
        """What was recommended within a budget, or None."""
        study = self._studies.get(budget, self)
        within = [recommendation for spent, recommendation in study._recommended if spent <= budget * (1 + 1e-9)]
        return within[-1] if within else None

    def with_budget(self, budget: float) -> Environment:
        """A study that has done the same so far, and whose recommendation counts at this budget."""
        study = copy(self)
        study.budgets, study.results, study._recommended = (budget,), [*self.results], [*self._recommended]
        self._studies[budget] = study
        return study

    @property
    def largest(self) -> Environment:
        """The study with the largest budget."""
        return self._studies.get(self.budgets[-1], self)

    def seconds_per_suggestion(self) -> float:
        """Wall time of the method itself, for each trial."""
        return self._effort.seconds_per_suggestion()


@dataclass
class _Effort:
    """Wall time, and how much of it went into so many trials."""

    started: float
    training: float = 0.0
    trials: int = 0

    def trained(self, seconds: float) -> None:
        self.training += seconds
        self.trials += 1

    def seconds_per_suggestion(self) -> float:
        return (perf_counter() - self.started - self.training) / max(self.trials, 1)


def log_distance(case: Case, result: TrialResult) -> float:
    """How far the last metric of a trial was from the target, at least 0: the logarithm of their ratio."""
    objective = case.objective
    assert objective.target is not None
    return max(math.log(result.measurements[-1].metrics[objective.metric] / objective.target), 0.0)


def mean_regret(case: Case, recommended: Parameters | None, *, unit: float) -> float:
    """Over fresh seeds; a study without a recommendation counts as one whose every run misses."""
    if recommended is None:
        return MISS_REGRET
    seeds = range(10_000, 10_000 + case.fresh_seeds)
    return float(np.mean(regrets(case, recommended, seeds, unit=unit)))
