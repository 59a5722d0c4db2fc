"""Searches where the loss-curve model is wrong, and where it is right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import pytest

from scalesearch.core.axis import Interval
from scalesearch.core.planner import Planner
from scalesearch.core.proposal import Proposal
from scalesearch.core.results import Outcome, TrialResult
from scalesearch.core.schedule_space import PiecewiseSpace
from scalesearch.core.space import BatchSizes, SearchSpace
from scalesearch.core.surrogate import switch
from tests.core.crossing_curves import STEP_SECONDS, CrossingCurves, least_seconds, seconds_to_target
from tests.core.simulated import EASY, constant, run, run_proposal

MAX_EXAMPLES = 16_000
SIZES = (16, 32, 64, 128, 256, 512, 1024)
SPACE = SearchSpace(
    batch_sizes=BatchSizes(low=SIZES[0], high=SIZES[-1], multiple_of=None, divisor=1),
    learning_rate=Interval(1e-3, 30.0),
    momentum=None,
    schedule=PiecewiseSpace(
        decays=1, boundaries=Interval(MAX_EXAMPLES / 50, MAX_EXAMPLES), decay_factor=Interval(0.1, 0.1)
    ),
)
BASELINE = constant(0.15, global_batch_size=32)
SEEDS = range(6)
BUDGET = 12.0
SCALAR = "(scalar model)"


@dataclass(frozen=True)
class Study:
    """What was recommended, relative to the true optimum, and why each trial was run."""

    regret: float
    reasons: tuple[str, ...]


def train(planner: Planner, proposal: Proposal, results: Sequence[TrialResult]) -> TrialResult:
    size = proposal.parameters.global_batch_size
    most_steps = math.inf if proposal.cap is None else proposal.cap / STEP_SECONDS(size)
    result = run(
        EASY,
        proposal.parameters,
        max_examples=MAX_EXAMPLES,
        seed=1000 * planner.seed + len(results),
        max_steps=most_steps,
        should_stop=partial(planner.should_stop, proposal=proposal, results=tuple(results)),
        trainer=CrossingCurves(),
    )
    # As a study reports it: the curve of a trial that was stopped early rules the target out up to its cap.
    was_stopped = result.outcome is Outcome.CAPPED and proposal.cap is not None
    return replace(result, ruled_out_steps=most_steps) if was_stopped else result


@cache
def study(seed: int, *, scalar: bool) -> Study:
    """BUDGET full runs, the first of which is a baseline that somebody has chosen."""
    planner = Planner(
        space=SPACE,
        objective=EASY.objective("seconds"),
        max_examples=MAX_EXAMPLES,
        first_guess=BASELINE,
        step_seconds=STEP_SECONDS,
        seed=seed,
    )
    results = [train(planner, Proposal(BASELINE, cap=None, why="baseline"), ())]
    reasons = []
    with pytest.MonkeyPatch.context() as patch:
        if not scalar:
            patch.setattr(switch, "LEAST_JUDGED", math.inf)
        while sum(r.cost.device_seconds for r in results) < BUDGET * least_seconds(SIZES):
            proposal = planner.propose(results)
            reasons.append(proposal.why)
            results.append(train(planner, proposal, results))
        recommended = planner.recommend(results)
    assert recommended is not None
    return Study(seconds_to_target(recommended) / least_seconds(SIZES) - 1.0, tuple(reasons))


def test_the_scalar_model_takes_over_where_curves_mislead() -> None:
    """A search that stays near its leader may not find out within this budget that it is misled."""
    took_over = [any(SCALAR in reason for reason in study(seed, scalar=True).reasons) for seed in SEEDS]
    assert sum(took_over) >= len(SEEDS) - 1
    assert not any(SCALAR in reason for seed in SEEDS for reason in study(seed, scalar=False).reasons)


def test_it_finds_better_parameters_than_the_curves_that_mislead() -> None:
    with_it, without = (np.mean([study(s, scalar=scalar).regret for s in SEEDS]) for scalar in (True, False))
    assert with_it < 0.5 * without


def test_the_loss_curves_stay_in_charge_where_they_are_right() -> None:
    planner = Planner(
        space=SPACE,
        objective=EASY.objective("seconds"),
        max_examples=MAX_EXAMPLES,
        first_guess=constant(0.05, global_batch_size=32),
        step_seconds=EASY.step_time,
    )
    results: list[TrialResult] = []
    reasons = []
    for _ in range(18):
        proposal = planner.propose(results)
        reasons.append(proposal.why)
        results.append(run_proposal(EASY, planner, proposal, results))
    assert reasons.count("improvement") > switch.LEAST_JUDGED
    assert not any(SCALAR in reason for reason in reasons)
