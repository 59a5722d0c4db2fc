"""One study of one workload under a budget: the same problem and the same accounts for every method."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
from search_truth import FULL_LENGTH, MISS_REGRET, Truth, regrets
from search_workloads import Case, Stop, run_trial

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import TrialResult
from scalesearch.core.schedule import Piecewise, Schedule
from scalesearch.core.space import BatchSizes, ConstantSpace, Interval, PiecewiseSpace, SearchSpace

SMALLER_OCTAVES, LARGER_OCTAVES = 6, 4  # of the batch sizes searched, around the critical one
BOUNDARY_RANGE = 50.0
FRESH_SEEDS = 32
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
    log_off = -abs(random.normal()) * math.log(factor) if too_low else 0.3 * random.normal()
    rate = optimum.parameters.learning_rate * math.exp(log_off)
    examples = optimum.examples * math.exp(random.normal() * math.log(1.3))
    shares = np.sort([random.uniform(0.5, 1.0), *random.uniform(1.1, 1.6, size=8)])[: case.decays]
    schedule: Schedule = replace(optimum.parameters.schedule, learning_rate=rate)
    if isinstance(schedule, Piecewise):
        schedule = replace(schedule, boundaries=tuple(round(examples * s) for s in shares))
    guess = replace(optimum.parameters, schedule=schedule)
    return space.parameters(space.coordinates(guess))


class Environment:
    """Runs the trials that a method asks for, and keeps what they cost and what it recommends meanwhile.

    A trial costs at most FULL_LENGTH full runs.
    """

    def __init__(self, case: Case, truth: Truth, problem: Problem, *, budget: float) -> None:
        self.case, self.problem = case, problem
        self.results: list[TrialResult] = []
        self.full_cost = FULL_LENGTH * truth.unit
        self._truth = truth
        self._budget = budget * truth.unit
        self._spent = 0.0
        self._recommended: list[tuple[float, Parameters | None]] = []
        self._started, self._training = perf_counter(), 0.0

    @property
    def has_budget(self) -> bool:
        return self._spent < self._budget and len(self.results) < MOST_TRIALS

    @property
    def best(self) -> TrialResult | None:
        """The trial that reached the target at the least cost."""
        return min((r for r in self.results if r.reached), key=self.cost_to_target, default=None)

    def cost_to_target(self, result: TrialResult) -> float:
        """In the unit that is minimised; infinite for a miss."""
        return result.reached.cost(self.case.minimize) if result.reached else math.inf

    def run(
        self,
        parameters: Parameters,
        *,
        cap: float | None = None,
        seed: int | None = None,
        should_stop: Stop | None = None,
    ) -> TrialResult:
        """Run a trial and pay for it. `cap` is in the unit that is minimised."""
        started = perf_counter()
        number = len(self.results)
        fresh = int(np.random.SeedSequence((self.problem.seed, number)).generate_state(1)[0])
        result = run_trial(
            self.case,
            parameters,
            number=number,
            seed=fresh if seed is None else seed,
            max_cost=min(self.full_cost, math.inf if cap is None else cap),
            max_examples=self.problem.max_examples,
            should_stop=should_stop,
        )
        self.results.append(result)
        self._spent += self.case.spent(result)
        self._training += perf_counter() - started
        return result

    def recommend(self, parameters: Parameters | None) -> None:
        """What the method would recommend if the study ended now."""
        self._recommended.append((self._spent, parameters))

    def seconds_per_suggestion(self) -> float:
        """Wall time of the method itself, for each trial."""
        return (perf_counter() - self._started - self._training) / max(len(self.results), 1)

    def regret(self, budget: float) -> float | None:
        """Mean regret, over fresh seeds, of what was recommended within a budget in full runs; None: nothing was."""
        within = [p for spent, p in self._recommended if spent <= budget * self._truth.unit * (1 + 1e-9)]
        if not within or within[-1] is None:
            return None
        seeds = range(10_000, 10_000 + FRESH_SEEDS)
        return float(np.mean(regrets(self.case, within[-1], seeds, unit=self._truth.unit)))


def regret_or_miss(regret: float | None) -> float:
    """A study without a recommendation counts as one whose every run misses."""
    return MISS_REGRET if regret is None else regret
