"""The methods compared: each runs a study in an environment until the budget is spent."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import optuna
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner
from optuna.samplers import BaseSampler, CmaEsSampler, QMCSampler, RandomSampler, TPESampler
from optuna.trial import Trial, TrialState
from search_ablations import ABLATIONS, ablated
from search_environment import Environment, log_distance
from search_scaling import scaling
from search_workloads import Stop

from scalesearch.core.extrapolation import misses_target
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Measurement, Outcome, TrialResult
from scalesearch.search.scaling import distributions

REPORTS = 20  # to a pruner, evenly over a full-length trial
DIVERGED_PENALTY = 4.0
MOST_DISTANCE = 3.0

Run = Callable[[Environment], None]


@dataclass(frozen=True)
class Method:
    """`package` is what it needs besides our own dependencies, and `module` its name for `import`."""

    about: str
    run: Run
    package: str | None = None
    module: str | None = None

    @property
    def can_run(self) -> bool:
        return self.module is None or importlib.util.find_spec(self.module) is not None


def qmc_sampler(seed: int) -> BaseSampler:
    with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
        return QMCSampler(scramble=True, seed=seed, warn_independent_sampling=False)


def tpe_sampler(seed: int) -> BaseSampler:
    return TPESampler(seed=seed)


def optuna_trials(
    environment: Environment,
    *,
    sampler: Callable[[int], BaseSampler],
    pruner: Callable[[], BasePruner] | None = None,
    caps: bool = False,
    stops: bool = False,
    enqueued: Sequence[Parameters] | None = None,
) -> Iterator[None]:
    """One trial after another by a sampler and a pruner of Optuna, the first guess (or what is `enqueued`) first.

    Args:
        caps: stop a trial once it has cost more than the best one.
        stops: stop a trial if its curve, carried on, misses the target.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space, first_guess = environment.problem.space, environment.problem.first_guess
    study = optuna.create_study(
        sampler=sampler(environment.problem.seed), pruner=pruner() if pruner else optuna.pruners.NopPruner()
    )
    for parameters in enqueued or [first_guess]:
        study.enqueue_trial(space.coordinates(parameters))
    while True:
        trial = study.ask(distributions(space))
        best = environment.best
        cap = environment.cost_to_target(best) if caps and best else environment.full_cost
        parameters = space.parameters(trial.params)
        stop: Stop | None = None
        if pruner is not None:
            stop = _PrunerStop(environment, trial)
        elif stops:
            size = parameters.global_batch_size
            stop = partial(
                misses_target,
                objective=environment.case.objective,
                boundaries=parameters.schedule.boundaries,
                cap_examples=min(cap / environment.case.cost_per_step(size) * size, environment.problem.max_examples),
            )
        result = environment.run(parameters, cap=cap, should_stop=stop)
        if pruner is not None and result.reason == "stopped":
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, _value(environment, result, cap))
        environment.recommend(environment.best.parameters if environment.best else None)
        yield


def _optuna(
    environment: Environment,
    *,
    sampler: Callable[[int], BaseSampler],
    pruner: Callable[[], BasePruner] | None = None,
    caps_and_stops: bool = False,
) -> None:
    trials = optuna_trials(environment, sampler=sampler, pruner=pruner, caps=caps_and_stops, stops=caps_and_stops)
    while environment.has_budget:
        next(trials)


def _smac(environment: Environment) -> None:
    from search_smac import smac

    smac(environment)


def _priorband(environment: Environment) -> None:
    from search_neps import priorband

    priorband(environment)


def _median_pruner() -> BasePruner:
    return MedianPruner(n_startup_trials=5, n_warmup_steps=2)


def _hyperband_pruner() -> BasePruner:
    return HyperbandPruner(max_resource=REPORTS)


METHODS = {
    "random": Method("Optuna's random search", partial(_optuna, sampler=lambda seed: RandomSampler(seed=seed))),
    "qmc": Method("Optuna's Sobol sequence", partial(_optuna, sampler=qmc_sampler)),
    "tpe": Method("Optuna's TPE as it comes", partial(_optuna, sampler=tpe_sampler)),
    "tpe+median": Method("TPE and MedianPruner", partial(_optuna, sampler=tpe_sampler, pruner=_median_pruner)),
    "tpe+hyperband": Method("TPE and HyperbandPruner", partial(_optuna, sampler=tpe_sampler, pruner=_hyperband_pruner)),
    "cmaes": Method(
        "Optuna's CMA-ES",
        partial(_optuna, sampler=lambda seed: CmaEsSampler(seed=seed, warn_independent_sampling=False)),
        "cmaes",
        "cmaes",
    ),
    "tpe+cap+stop": Method(
        "TPE, a cap at the best cost, and our extrapolation stop",
        partial(_optuna, sampler=tpe_sampler, caps_and_stops=True),
    ),
    "smac": Method("SMAC3, multi-fidelity: Hyperband with a random forest", _smac, "smac", "smac"),
    "priorband": Method("NePS's PriorBand, the first guess as prior", _priorband, "neural-pipeline-search", "neps"),
    "scaling": Method("our search, as a study runs it", scaling),
}
ABLATED = {
    f"scaling-{name}": Method(ablation.about, partial(ablated, ablation=ablation))
    for name, ablation in ABLATIONS.items()
}


def listed() -> str:
    """All methods in words, for `--help`."""
    lines = ["methods:"]
    for name, method in METHODS.items():
        needs = f" (needs the package `{method.package}`)" if method.package else ""
        lines.append(f"  {name:22}{method.about}{needs}")
    lines.append("\nour search without one of its parts (--ablations runs all of them, and scaling):")
    lines += [f"  {name:22}{method.about}" for name, method in ABLATED.items()]
    return "\n".join(lines)


def _value(environment: Environment, result: TrialResult, cap: float) -> float:
    """Log cost to target; for a miss, as if it took somewhat longer than its cap, the longer the further it stayed."""
    if result.reached:
        return math.log(environment.cost_to_target(result))
    if result.outcome is Outcome.DIVERGED:
        return math.log(cap) + DIVERGED_PENALTY
    return math.log(cap) + 0.1 + min(log_distance(environment.case, result), MOST_DISTANCE)


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
