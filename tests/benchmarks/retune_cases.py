"""What a retune is posed: an old study at a sixteenth of the best batch, and a machine with more devices."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from search_environment import Problem, problem
from search_truth import _ALL_SOURCES, Truth, _best_with_noise, _kept, regrets, spread, truth
from search_workloads import SimulatedCase, run_trial

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import TrialResult
from scalesearch.core.scaling_rules import Rule, scaling_rules
from scalesearch.core.schedule import Piecewise

OLD_SHARE = 16  # the best batch on the new machine over that of the old study
OLD_POINTS, OLD_REPEATS = 3, 2  # the leader of a study has been run again
RATE_OFF, BOUNDARY_OFF = 0.2, 0.15  # standard deviations of the logarithm, of the old runs around their optimum


@dataclass(frozen=True, kw_only=True)
class Retune:
    """`case` is the workload on the new machine, `truth` what is best there; `old` are the runs of the old study."""

    case: SimulatedCase
    truth: Truth
    problem: Problem
    old: tuple[TrialResult, ...]
    rules: tuple[Rule, ...]
    replicas: int


def on_replicas(case: SimulatedCase, replicas: int) -> SimulatedCase:
    """The workload on several of its devices: each is filled by as large a share, and all wait for one another."""
    one = case.workload.step_time
    waits = one.sync_seconds + 0.1 * one.base_seconds * 2.0 * (replicas - 1) / replicas
    several = replace(one, saturation_batch=one.saturation_batch * replicas, sync_seconds=waits)
    return replace(case, minimize="seconds", workload=replace(case.workload, step_time=several))


def truth_on(case: SimulatedCase, replicas: int) -> tuple[SimulatedCase, Truth]:
    """The true optimum there; steps to target are those of one device."""
    alone = truth(case)
    there = on_replicas(case, replicas)

    def find(case: SimulatedCase) -> Truth:
        curve = {b: replace(o, seconds=o.steps * case.step_seconds(b)) for b, o in alone.curve.items()}
        cheapest = sorted(curve.values(), key=lambda o: o.seconds)
        unit = cheapest[0].seconds
        best = _best_with_noise(case, [o.parameters for o in cheapest[:2]], unit)
        regret = regrets(case, best, range(4096, 4096 + 128), unit=unit)
        return replace(alone, curve=curve, best=best, unit=unit * (1.0 + float(np.mean(regret))), **spread(regret))

    found: Truth = _kept("retune", _ALL_SOURCES, there, find)
    return there, found


def retune(case: SimulatedCase, replicas: int, *, seed: int) -> Retune:
    """The task that a seed poses."""
    there, known = truth_on(case, replicas)
    random = np.random.default_rng((seed, replicas, 5))
    wanted = max(known.best.global_batch_size // OLD_SHARE, 1)
    size = min(known.curve, key=lambda b: abs(math.log2(b / wanted)))
    optimum = known.curve[size]
    posed = problem(there, known, seed=seed, guess_factor=2.5)
    low = min(posed.space.batch_sizes.low, size)
    rates = replace(
        posed.space.learning_rate, low=min(posed.space.learning_rate.low, optimum.parameters.learning_rate / 4)
    )
    space = replace(posed.space, batch_sizes=replace(posed.space.batch_sizes, low=low), learning_rate=rates)
    posed = replace(posed, space=space)

    def trained(parameters: Parameters) -> TrialResult:
        most = 4.0 * optimum.steps * case.cost_per_step(size)
        return run_trial(case, parameters, number=0, seed=int(random.integers(2**31)), max_cost=most)

    old = [trained(_near(optimum.parameters, random)) for _ in range(OLD_POINTS)]
    reached = [r for r in old if r.reached]
    leader = min(reached, key=lambda r: r.reached.steps).parameters if reached else optimum.parameters
    old += [trained(leader) for _ in range(OLD_REPEATS)]
    return Retune(
        case=there,
        truth=known,
        problem=posed,
        old=tuple(old),
        rules=scaling_rules(leader, growth=replicas, divisor=1),
        replicas=replicas,
    )


def _near(parameters: Parameters, random: np.random.Generator) -> Parameters:
    schedule = replace(
        parameters.schedule, learning_rate=parameters.learning_rate * math.exp(-abs(random.normal(0.0, RATE_OFF)))
    )
    if isinstance(schedule, Piecewise):
        later = math.exp(abs(random.normal(0.0, BOUNDARY_OFF)))
        schedule = replace(schedule, boundaries=tuple(round(b * later) + i for i, b in enumerate(schedule.boundaries)))
    return replace(parameters, schedule=schedule)
