"""What multi-fidelity methods are told: a trial's length as a fidelity, and how good a trial of some length was."""

from __future__ import annotations

import math

from search_environment import Environment, log_distance

from scalesearch.core.results import Outcome, TrialResult

SHORTEST = 1.0 / 27.0  # of a full-length trial
DIVERGED = 10.0  # above the log cost of a full-length trial


def score(environment: Environment, result: TrialResult) -> float:
    """Log cost to target; for a miss, that of a full-length trial and how far it stayed from the target."""
    if result.reached:
        return math.log(environment.cost_to_target(result))
    if result.outcome is Outcome.DIVERGED:
        return math.log(environment.full_cost) + DIVERGED
    return math.log(environment.full_cost) + min(log_distance(environment.case, result), DIVERGED)
