"""Our own search, run as a study runs it, but in the space that all methods are given: it is not widened at its edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from search_environment import Environment

from scalesearch.core.planner import Planner
from scalesearch.core.results import TrialResult
from scalesearch.core.retune import AnyPlanner
from scalesearch.study.account import CONFIRMATION_SHARE

Recommend = Callable[[Sequence[TrialResult]], Any]


def scaling(environment: Environment, *, confirms: bool = True) -> None:
    """The search for the optimum. Without `confirms`, no part of the budget is kept for repeats of the leaders."""
    planner = Planner(**planner_arguments(environment))
    search(environment, planner, planner.recommend, confirms=confirms)


def planner_arguments(environment: Environment) -> dict[str, Any]:
    case, problem = environment.case, environment.problem
    return {
        "space": problem.space,
        "objective": case.objective,
        "max_examples": problem.max_examples,
        "first_guess": problem.first_guess,
        "step_seconds": case.step_seconds,
        "seed": problem.seed,
    }


def search(environment: Environment, planner: AnyPlanner, recommend: Recommend, *, confirms: bool = True) -> None:
    """A study with each budget of the environment.

    What a planner proposes depends on the trials and its seed alone, so a study with a small budget does what one with a
    large budget does, until it confirms: only that part is run for each of them.
    """
    for budget in environment.budgets if confirms else environment.budgets[-1:]:
        share = CONFIRMATION_SHARE if confirms else 0.0
        _trials(environment, planner, recommend, until=(1.0 - share) * budget)
        if confirms:
            confirming = replace(planner, confirming=True)
            _trials(environment.with_budget(budget), confirming, recommend, until=budget)


def _trials(environment: Environment, planner: AnyPlanner, recommend: Recommend, *, until: float) -> None:
    while environment.spent < until and environment.has_budget:
        before = tuple(environment.results)
        if planner.is_settled(before):
            return
        proposal = planner.propose(before)
        environment.run(
            proposal.parameters,
            cap=proposal.cap,
            why=proposal.why,
            should_stop=partial(planner.should_stop, proposal=proposal, results=before),
        )
        environment.recommend(recommend(environment.results))
