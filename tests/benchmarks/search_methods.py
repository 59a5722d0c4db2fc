"""The methods compared: each runs a study in an environment until the budget is spent."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial

import optuna
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner
from optuna.samplers import BaseSampler, CmaEsSampler, QMCSampler, RandomSampler, TPESampler
from optuna.trial import Trial, TrialState
from search_environment import Environment
from search_workloads import Stop

from scalesearch.core.extrapolation import misses_target
from scalesearch.core.results import Measurement, Outcome, TrialResult
from scalesearch.search.scaling import distributions

REPORTS = 20  # to a pruner, evenly over a full-length trial
DIVERGED_PENALTY = 4.0
MOST_DISTANCE = 3.0

Method = Callable[[Environment], None]


def methods() -> dict[str, Method]:
    """The methods that can run here, by name."""
    found: dict[str, Method] = {
        "random": partial(_optuna, sampler=lambda seed: RandomSampler(seed=seed)),
        "qmc": partial(_optuna, sampler=_qmc),
        "tpe": partial(_optuna, sampler=_tpe),
        "tpe+median": partial(_optuna, sampler=_tpe, pruner=MedianPruner(n_startup_trials=5, n_warmup_steps=2)),
        "tpe+hyperband": partial(_optuna, sampler=_tpe, pruner=HyperbandPruner(max_resource=REPORTS)),
        "tpe+cap+stop": partial(_optuna, sampler=_tpe, caps=True),
    }
    if importlib.util.find_spec("cmaes"):
        found["cmaes"] = partial(_optuna, sampler=lambda seed: CmaEsSampler(seed=seed, warn_independent_sampling=False))
    if importlib.util.find_spec("smac"):
        from search_smac import smac

        found["smac"] = smac
    if importlib.util.find_spec("scalesearch.core.planner"):
        found["scaling"] = _scaling
    return found


def _scaling(environment: Environment) -> None:
    from scalesearch.core.planner import Planner

    problem, case = environment.problem, environment.case
    planner = Planner(
        space=problem.space,
        objective=case.objective,
        max_examples=problem.max_examples,
        first_guess=problem.first_guess,
        step_seconds=case.workload.step_time,
        seed=problem.seed,
    )
    while environment.has_budget:
        before = tuple(environment.results)
        proposal = planner.propose(before)
        environment.run(
            proposal.parameters,
            cap=proposal.cap,
            should_stop=partial(planner.should_stop, proposal=proposal, results=before),
        )
        environment.recommend(planner.recommend(environment.results))


def _tpe(seed: int) -> BaseSampler:
    return TPESampler(seed=seed)


def _qmc(seed: int) -> BaseSampler:
    with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
        return QMCSampler(scramble=True, seed=seed, warn_independent_sampling=False)


def _optuna(
    environment: Environment,
    *,
    sampler: Callable[[int], BaseSampler],
    pruner: BasePruner | None = None,
    caps: bool = False,
) -> None:
    """A sampler and a pruner of Optuna, starting from the first guess.

    Args:
        caps: stop a trial once it has cost more than the best one, or if its curve, carried on, misses the target.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space, first_guess = environment.problem.space, environment.problem.first_guess
    study = optuna.create_study(sampler=sampler(environment.problem.seed), pruner=pruner or optuna.pruners.NopPruner())
    study.enqueue_trial(space.coordinates(first_guess))
    while environment.has_budget:
        trial = study.ask(distributions(space))
        best = environment.best
        cap = environment.cost_to_target(best) if caps and best else environment.full_cost
        parameters = space.parameters(trial.params)
        stop: Stop | None = None
        if pruner is not None:
            stop = _PrunerStop(environment, trial)
        elif caps:
            cost_per_example = (
                environment.case.cost_per_step(parameters.global_batch_size) / parameters.global_batch_size
            )
            stop = partial(
                misses_target,
                objective=environment.case.objective,
                boundaries=parameters.schedule.boundaries,
                cap_examples=min(cap / cost_per_example, environment.problem.max_examples),
            )
        result = environment.run(parameters, cap=cap, should_stop=stop)
        if pruner is not None and result.reason == "stopped":
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, _value(environment, result, cap))
        environment.recommend(environment.best.parameters if environment.best else None)


def _value(environment: Environment, result: TrialResult, cap: float) -> float:
    """Log cost to target; for a miss, as if it took somewhat longer than its cap, the longer the further it stayed."""
    if result.reached:
        return math.log(environment.cost_to_target(result))
    if result.outcome is Outcome.DIVERGED:
        return math.log(cap) + DIVERGED_PENALTY
    objective = environment.case.objective
    distance = math.log(result.measurements[-1].metrics[objective.metric] / objective.target)
    return math.log(cap) + 0.1 + min(max(distance, 0.0), MOST_DISTANCE)


class _PrunerStop:
    """Reports the log metric at REPORTS even points of a full-length trial, and asks the pruner."""

    def __init__(self, environment: Environment, trial: Trial) -> None:
        self._case, self._trial = environment.case, trial
        self._interval = environment.full_cost / REPORTS
        self._reported = 0

    def __call__(self, measured: Sequence[Measurement]) -> bool:
        now = measured[-1]
        value = now.metrics[self._case.objective.metric]
        if not now.step or not 0.0 < value < math.inf:
            return False
        point = int(now.step * self._case.cost_per_step(now.examples // now.step) / self._interval)
        for missing in range(self._reported + 1, point + 1):
            self._trial.report(math.log(value), missing)
            self._reported = missing
            if self._trial.should_prune():
                return True
        return False
