"""Search for steps to target at every batch size, and how far off the curve is that a method finds.

The batch sizes are 11, from 1/64 to 16 times the critical one. The error at one of them is that of the steps that the
recommendation needs, free of noise, above the fewest possible and relative to them; a target that is missed, or reached
in more than four times the steps, counts as 3, and so does a batch size without a recommendation. The unit of compute is
one optimal run at each batch size, in examples.

Ours is told one length for all trials, of which small batches need a small part. The baselines search each batch size on
its own, in turn, and are told a length of twice the optimum there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle

import numpy as np
from optuna.samplers import BaseSampler
from search_environment import BOUNDARY_RANGE, Environment, Problem, problem
from search_methods import Method, optuna_trials, qmc_sampler, tpe_sampler
from search_rows import Score
from search_scaling import planner_arguments, search
from search_truth import MISS_REGRET, Truth
from search_workloads import SimulatedCase, Stop

from scalesearch.core.axis import Interval
from scalesearch.core.curve_planner import CurvePlanner
from scalesearch.core.curve_standing import scaled
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import TrialResult
from scalesearch.core.schedule_space import PiecewiseSpace
from scalesearch.core.simulate.optimum import true_steps
from scalesearch.core.space import SearchSpace

SMALLER_OCTAVES, LARGER_OCTAVES = 6, 4  # around the critical batch size
LENGTH = (1.5, 3.0)  # of a trial of ours, in those of the optimum at the largest batch size
LENGTH_TOLD = 2.0  # to the baselines, in those of the optimum at each batch size
BUDGETS = (1.0, 2.0, 3.0, 6.0)
WITHIN = 0.1

Recommended = Mapping[int, Parameters]


@dataclass(frozen=True, kw_only=True)
class CurveProblem(Problem):
    """`lengths`: what the baselines are told is the length of a trial at each batch size, in examples."""

    lengths: Mapping[int, int]


def curve_environment(
    case: SimulatedCase, known: Truth, *, seed: int, guess_factor: float, budgets: tuple[float, ...]
) -> Environment:
    """The environment of a study whose budgets are in the unit of compute."""
    return Environment(
        replace(case, minimize="examples"),  # of two trials at one batch size, that with fewer examples has fewer steps
        curve_problem(case, known, seed=seed, guess_factor=guess_factor),
        unit=sum(known.curve[size].examples for size in sizes_of(known)),
        full_cost=math.inf,
        budgets=budgets,
    )


def sizes_of(known: Truth) -> tuple[int, ...]:
    centre = round(math.log2(known.critical_batch))
    return tuple(2**k for k in range(max(0, centre - SMALLER_OCTAVES), centre + LARGER_OCTAVES + 1))


def score(case: SimulatedCase, known: Truth, recommended: Recommended | None) -> Score:
    """The median error over batch sizes, with that of the worst and the share that is found to within WITHIN."""
    found = recommended or {}
    errors = np.array([_error(case, known, size, found.get(size)) for size in sizes_of(known)])
    return Score(
        value=float(np.median(errors)),
        missed=1.0 - len(found) / len(errors),
        more={"worst": float(errors.max()), "share_within_10_percent": float((errors <= WITHIN).mean())},
    )


def _error(case: SimulatedCase, known: Truth, size: int, recommended: Parameters | None) -> float:
    if recommended is None:
        return MISS_REGRET
    return min(true_steps(case.workload, recommended) / known.curve[size].steps - 1.0, MISS_REGRET)


def curve_problem(case: SimulatedCase, known: Truth, *, seed: int, guess_factor: float) -> CurveProblem:
    """As for the optimum, but with exactly these batch sizes, and trials and boundaries that suit all of them."""
    posed = problem(case, known, seed=seed, guess_factor=guess_factor)
    sizes = sizes_of(known)
    optima = [known.curve[size] for size in sizes]
    rates, examples = [o.parameters.learning_rate for o in optima], [o.examples for o in optima]
    random = np.random.default_rng((seed, 2))
    length = round(max(examples) * math.exp(random.uniform(*np.log(LENGTH))))
    space = replace(
        posed.space,
        batch_sizes=replace(posed.space.batch_sizes, low=sizes[0], high=sizes[-1]),
        learning_rate=Interval(
            min(posed.space.learning_rate.low, min(rates) / 4), max(posed.space.learning_rate.high, max(rates) * 4)
        ),
    )
    lengths = {size: round(LENGTH_TOLD * e) for size, e in zip(sizes, examples, strict=True)}
    space = _with_boundaries(space, min(lengths.values()) / BOUNDARY_RANGE, length)
    first_guess = space.nearest(posed.first_guess)
    return CurveProblem(space=space, max_examples=length, first_guess=first_guess, seed=seed, lengths=lengths)


def _with_boundaries(space: SearchSpace, low: float, high: float) -> SearchSpace:
    if not isinstance(space.schedule, PiecewiseSpace):
        return space
    return replace(space, schedule=replace(space.schedule, boundaries=Interval(low, high)))


def ours(environment: Environment) -> None:
    """All batch sizes in one search."""
    planner = CurvePlanner(**planner_arguments(environment))
    search(environment, planner, planner.leaders)


def each_size(
    environment: Environment, *, sampler: Callable[[int], BaseSampler], caps: bool = False, stops: bool = False
) -> None:
    """A study of Optuna for each batch size, in turn."""
    assert isinstance(environment.problem, CurveProblem)
    found: dict[int, Parameters] = {}
    parts = [_OneSize(environment, size, length, found) for size, length in environment.problem.lengths.items()]
    studies = cycle([optuna_trials(part, sampler=sampler, caps=caps, stops=stops) for part in parts])
    while environment.has_budget:
        next(next(studies))


class _OneSize:
    """The part of an environment that the search of one batch size sees. `found` holds the best of all of them."""

    def __init__(self, whole: Environment, size: int, length: int, found: dict[int, Parameters]) -> None:
        self.case, self.full_cost = whole.case, float(length)  # costs are in examples
        self.problem = _of_one_size(whole.problem, size, length)
        self.best: TrialResult | None = None
        self._whole, self._size, self._found = whole, size, found

    def cost_to_target(self, result: TrialResult) -> float:
        return self._whole.cost_to_target(result)

    def run(self, parameters: Parameters, *, cap: float, should_stop: Stop | None) -> TrialResult:
        result = self._whole.run(parameters, cap=cap, should_stop=should_stop)
        if result.reached and (self.best is None or self.cost_to_target(result) < self.cost_to_target(self.best)):
            self.best = result
        return result

    def recommend(self, parameters: Parameters | None) -> None:
        if parameters is not None:
            self._found[self._size] = parameters
        self._whole.recommend(dict(self._found))


def _of_one_size(joint: Problem, size: int, length: int) -> Problem:
    space = _with_boundaries(joint.space, length / BOUNDARY_RANGE, length)
    space = replace(space, batch_sizes=replace(space.batch_sizes, low=size, high=size))
    # The usual rule: the learning rate in proportion to the batch size.
    guess = scaled(joint.first_guess, size, rate=size / joint.first_guess.global_batch_size, examples=1.0)
    seed = int(np.random.SeedSequence((joint.seed, size)).generate_state(1)[0])
    return Problem(space=space, max_examples=length, first_guess=space.nearest(guess), seed=seed)


METHODS = {
    "scaling": Method("our search with aim = curve, as a study runs it", ours),
    "paper": Method("the paper's: quasi-random trials of full length", partial(each_size, sampler=qmc_sampler)),
    "tpe+cap": Method("TPE and a cap at the best cost", partial(each_size, sampler=tpe_sampler, caps=True)),
    "tpe+cap+stop": Method(
        "the same and our extrapolation stop", partial(each_size, sampler=tpe_sampler, caps=True, stops=True)
    ),
}
