"""SMAC3 with Hyperband over the length of trials (needs the package `smac`)."""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

from ConfigSpace import Configuration, ConfigurationSpace, Float, Integer
from search_environment import Environment
from search_fidelity import SHORTEST, score
from smac import MultiFidelityFacade, Scenario
from smac.runhistory.dataclasses import TrialValue

from scalesearch.core.axis import Axis
from scalesearch.core.results import TrialResult


def smac(environment: Environment) -> None:
    """The first guess is the first trial. A trial that is promoted goes on from where it was."""
    problem = environment.problem
    axes = {axis.name: axis for axis in problem.space.axes()}
    space = ConfigurationSpace(seed=problem.seed)
    space.add([_hyperparameter(axis) for axis in axes.values()])
    first = Configuration(space, values=_typed(axes, problem.space.coordinates(problem.first_guess)))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Loky-backed parallel loops")  # of its random forest
        scenario = Scenario(
            space,
            deterministic=True,
            n_trials=100_000,
            min_budget=SHORTEST,
            max_budget=1.0,
            seed=problem.seed,
            output_directory=Path(folder),
        )
        facade = MultiFidelityFacade(
            scenario,
            lambda config, seed, budget: math.nan,  # trials are asked for and told, never called
            initial_design=MultiFidelityFacade.get_initial_design(scenario, additional_configs=[first]),
            logging_level=False,
            overwrite=True,
        )
        results: dict[Configuration, TrialResult] = {}
        while environment.has_budget:
            asked = facade.ask()
            parameters = problem.space.parameters({name: float(asked.config[name]) for name in axes})
            cap = asked.budget * environment.full_cost
            result = environment.run(parameters, cap=cap, continues=results.get(asked.config))
            results[asked.config] = result
            facade.tell(asked, TrialValue(cost=score(environment, result)))
            environment.recommend(environment.best.parameters if environment.best else None)


def _hyperparameter(axis: Axis) -> Float | Integer:
    if axis.integer:
        return Integer(axis.name, (int(axis.low), int(axis.high)), log=axis.log)
    return Float(axis.name, (axis.low, axis.high), log=axis.log)


def _typed(axes: Mapping[str, Axis], at: Mapping[str, float]) -> dict[str, float]:
    return {name: int(value) if axes[name].integer else float(value) for name, value in at.items()}
