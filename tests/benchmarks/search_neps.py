"""PriorBand of NePS (needs the package `neural-pipeline-search`): Hyperband that samples around a prior and its best."""

from __future__ import annotations

import neps
import numpy as np
import torch
from neps.optimizers import algorithms
from search_environment import Environment
from search_fidelity import SHORTEST, score

from scalesearch.core.axis import Axis
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import TrialResult
from scalesearch.core.space import SearchSpace

LENGTH = "length"
CONFIDENCE = "medium"


def priorband(environment: Environment) -> None:
    """The first guess is the prior, and the first trial. A trial that is promoted goes on from where it was."""
    problem = environment.problem
    np.random.seed(problem.seed)  # it draws from the global generators
    torch.manual_seed(problem.seed)
    torch.set_num_threads(1)  # studies run side by side
    names = [axis.name for axis in problem.space.axes()]
    optimizer = neps.AskAndTell(
        algorithms.priorband(_space(problem.space, problem.first_guess), sample_prior_first=True)
    )
    results: dict[str, TrialResult] = {}
    while environment.has_budget:
        trial = optimizer.ask()
        parameters = problem.space.parameters({name: float(trial.config[name]) for name in names})
        result = environment.run(
            parameters,
            cap=trial.config[LENGTH] * environment.full_cost,
            continues=results.get(trial.metadata.previous_trial_id or ""),
        )
        results[trial.metadata.id] = result
        optimizer.tell(trial, score(environment, result))
        environment.recommend(environment.best.parameters if environment.best else None)


def _space(space: SearchSpace, first_guess: Parameters) -> neps.PipelineSpace:
    made = neps.PipelineSpace()
    guess = space.coordinates(first_guess)
    for axis in space.axes():
        setattr(made, axis.name, _parameter(axis, guess[axis.name]))
    setattr(made, LENGTH, neps.FloatFidelity(SHORTEST, 1.0))
    return made


def _parameter(axis: Axis, prior: float) -> neps.Float | neps.Integer:
    if axis.integer:
        low, high = int(axis.low), int(axis.high)
        return neps.Integer(low, high, log=axis.log, prior=int(prior), prior_confidence=CONFIDENCE)
    return neps.Float(axis.low, axis.high, log=axis.log, prior=prior, prior_confidence=CONFIDENCE)
