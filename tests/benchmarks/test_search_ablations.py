"""That each ablation takes away what it says, and puts it back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from search_ablations import ABLATIONS, ablated
from search_environment import Environment, Problem
from search_scaling import planner_arguments, scaling
from search_workloads import SimulatedCase

from scalesearch.core import planner
from scalesearch.core.axis import Interval
from scalesearch.core.parameters import Parameters
from scalesearch.core.planner import Planner
from scalesearch.core.proposal import Proposal
from scalesearch.core.range_trials import RANGE
from scalesearch.core.results import Measurement, Outcome, TrialResult
from scalesearch.core.schedule import Constant
from scalesearch.core.schedule_space import PiecewiseSpace
from scalesearch.core.space import BatchSizes, SearchSpace
from scalesearch.core.surrogate import belief, loss_curves
from scalesearch.core.surrogate.belief import Belief, Incumbent
from scalesearch.core.surrogate.cost import Costs, Noise
from scalesearch.core.surrogate.stability import Stability
from tests.core.simulated import EASY

FULL_RUN = 65.0  # seconds, about
MAX_EXAMPLES = 10_000
CASE = SimulatedCase(
    name="easy",
    workload=EASY,
    decays=1,
)
PROBLEM = Problem(
    space=SearchSpace(
        batch_sizes=BatchSizes(low=8, high=512, multiple_of=None, divisor=1),
        learning_rate=Interval(1e-3, 10.0),
        momentum=None,
        schedule=PiecewiseSpace(
            decays=1, boundaries=Interval(MAX_EXAMPLES / 50, MAX_EXAMPLES), decay_factor=Interval(0.1, 0.1)
        ),
    ),
    max_examples=MAX_EXAMPLES,
    first_guess=Parameters(global_batch_size=32, schedule=Constant(learning_rate=0.05)),
    seed=0,
)


def environment(*budgets: float) -> Environment:
    return Environment(CASE, PROBLEM, unit=FULL_RUN, full_cost=4.0 * FULL_RUN, budgets=budgets)


def plans() -> Planner:
    return Planner(**planner_arguments(environment(1.0)))


def believe(results: Sequence[TrialResult]) -> Belief:
    """As the planner does."""
    return plans()._belief(results)


@pytest.fixture(scope="module")
def results() -> tuple[TrialResult, ...]:
    """Range trials, misses and several hits."""
    studied = environment(9.0)
    scaling(studied)
    found = tuple(studied.results)
    assert sum(r.reached is not None for r in found) >= 3
    assert any(r.outcome is Outcome.CAPPED for r in found)
    return found


@pytest.mark.parametrize("name", ABLATIONS)
def test_everything_is_put_back(name: str) -> None:
    def found() -> list[Any]:
        return [vars(owner)[attribute] for owner, attribute, _ in ABLATIONS[name].replacements]

    before = found()
    with suppress(RuntimeError), ABLATIONS[name].applied():
        assert all(now is not was for now, was in zip(found(), before, strict=True))
        raise RuntimeError
    assert all(now is was for now, was in zip(found(), before, strict=True))


def test_range_trials() -> None:
    assert plans().propose([]).why == RANGE
    with ABLATIONS["range"].applied():
        assert plans().propose([]).why != RANGE


def test_the_stability_limit() -> None:
    seen = Stability(stable=((3.0, -2.0),), unstable=((3.0, -1.8),))
    assert seen.log_limit(np.array([3.0])) < -1.8
    with ABLATIONS["stability"].applied():
        assert seen.log_limit(np.array([3.0])) > -1.8


def test_curves_of_capped_runs(results: tuple[TrialResult, ...]) -> None:
    def coefficients(trials: Sequence[TrialResult]) -> Any:
        model = believe(trials).model
        assert model is not None
        return model.coefficients

    capped = next(i for i, r in enumerate(results) if r.outcome is Outcome.CAPPED and len(r.measurements) > 8)
    changed = [*results[:capped], _with_losses_times(results[capped], 1.02), *results[capped + 1 :]]
    first_hit = next(i for i, r in enumerate(results) if r.reached)
    assert not np.array_equal(coefficients(results), coefficients(changed))
    before_the_hit = coefficients(results[:first_hit])
    with ABLATIONS["curves"].applied():
        np.testing.assert_array_equal(coefficients(results), coefficients(changed))
        np.testing.assert_array_equal(coefficients(results[:first_hit]), before_the_hit)


def _with_losses_times(result: TrialResult, factor: float) -> TrialResult:
    metric = CASE.objective.metric
    measured = [replace(m, metrics={metric: factor * m.metrics[metric]}) for m in result.measurements[1:]]
    return replace(result, measurements=(result.measurements[0], *measured))


def test_opinions_of_the_ensemble(results: tuple[TrialResult, ...]) -> None:
    row = np.array([0.0, 2.0])
    assert loss_curves._noise_share(row, 0.3)[0].any()
    with_opinions = believe(results).model
    with ABLATIONS["opinions"].applied():
        assert not loss_curves._noise_share(row, 0.3)[0].any()
        assert not loss_curves._noise_share(row, 0.3)[1].any()
        without = believe(results).model
    assert with_opinions is not None
    assert without is not None
    assert not np.allclose(with_opinions.coefficients, without.coefficients)


def test_the_scalar_model(results: tuple[TrialResult, ...]) -> None:
    """It takes over where every run takes five times as long as its curve says."""
    leader = believe(results).leaders[0].parameters
    studied = environment(100.0)
    for share in np.geomspace(0.5, 1.0, 10):
        rate = share * leader.schedule.learning_rate
        studied.run(replace(leader, schedule=replace(leader.schedule, learning_rate=rate)))
    misled = [_slower(r, 5.0) for r in studied.results if r.reached]
    assert believe(misled).scalar is not None
    with ABLATIONS["scalar"].applied():
        assert believe(misled).scalar is None


def _slower(result: TrialResult, factor: float) -> TrialResult:
    assert result.reached is not None
    return replace(result, reached=replace(result.reached, steps=factor * result.reached.steps))


def test_the_chance_of_a_miss(results: tuple[TrialResult, ...]) -> None:
    costs = Costs(hit=np.array([[2.0]]), miss=np.array([[0.5]]))
    assert costs.expected() == 4.0
    missed = [*results, *(_missed(r) for r in results if r.reached)]
    doubted = believe(missed).incumbent
    with ABLATIONS["misses"].applied():
        assert costs.expected() == 2.0
        trusted = believe(missed).incumbent
    assert doubted is not None
    assert trusted is not None
    assert doubted.miss > 0.2
    assert trusted.cost < 0.8 * doubted.cost


def _missed(result: TrialResult) -> TrialResult:
    return replace(result, reached=None, outcome=Outcome.CAPPED, number=result.number + 100)


def test_the_residual(results: tuple[TrialResult, ...]) -> None:
    hits = [r.parameters for r in results if r.reached]
    assert believe(results).residual.at(hits)[0].any()
    with ABLATIONS["residual"].applied():
        assert not believe(results).residual.at(hits)[0].any()


def test_repeats(results: tuple[TrialResult, ...]) -> None:
    noisy = replace(believe(results), noise=Noise(level=0.1, bias=0.0, log_cost=1e3))
    once = Incumbent(PROBLEM.first_guess, cost=1.0, miss=0.0, runs=1)
    assert noisy.worth_repeating(once)
    trials = list({r.parameters: r for r in results if r.reached}.values())
    dearest = belief.rank(trials, noisy)[-1].parameters
    trials += [replace(r, number=100) for r in trials if r.parameters == dearest]
    assert belief.rank(trials, noisy)[0].parameters == dearest  # it alone has won twice
    with ABLATIONS["repeats"].applied():
        assert not noisy.worth_repeating(once)
        by_cost = belief.rank(trials, noisy)
    assert by_cost[0].parameters != dearest
    compared = [i.cost * i.parameters.effective_learning_rate**belief.CALM for i in by_cost]
    assert compared == sorted(compared)


def test_the_preference_for_lower_rates(results: tuple[TrialResult, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(belief, "CALM", 50.0)
    believed = believe(results)
    hit = next(r for r in results if r.reached)
    schedule = replace(hit.parameters.schedule, learning_rate=0.999 * hit.parameters.learning_rate)
    lower = replace(hit.parameters, schedule=schedule)
    as_good = [hit, replace(hit, parameters=lower)]
    assert belief.rank(as_good, believed)[0].parameters == lower
    with ABLATIONS["calm"].applied():
        costs = [leader.cost for leader in belief.rank(as_good, believed)]
    assert costs == sorted(costs)


def test_caps(results: tuple[TrialResult, ...]) -> None:
    assert plans().propose(results).cap is not None
    with ABLATIONS["cap"].applied():
        assert plans().propose(results).cap is None
        assert plans().propose([]).cap is not None  # a range trial


def test_the_extrapolation_stop() -> None:
    flat = [
        Measurement(
            step=n,
            examples=32 * n,
            train_seconds=float(n),
            elapsed_seconds=float(n),
            train_loss=0.5,
            metrics={CASE.objective.metric: 0.5},
        )
        for n in range(40)
    ]
    proposal = Proposal(PROBLEM.first_guess, cap=60.0, why="improvement")
    assert plans().should_stop(flat, proposal, [])
    with ABLATIONS["stop"].applied():
        assert not plans().should_stop(flat, proposal, [])


def test_improvement_per_cost(results: tuple[TrialResult, ...]) -> None:
    """Without the cost, the trial of most improvement is proposed."""

    def improvement(trials: Sequence[TrialResult]) -> float:
        believed = believe(trials)
        assert believed.incumbent is not None
        return plans()._best_improvement(plans()._candidates(trials, believed), believed, believed.incumbent)[1]

    first_hit = next(i for i, r in enumerate(results) if r.reached)
    per_cost = [improvement(results[:n]) for n in (first_hit + 1, len(results))]
    with ABLATIONS["per-cost"].applied():
        assert planner.COST_EXPONENT == 0.0
        whatever_the_cost = [improvement(results[:n]) for n in (first_hit + 1, len(results))]
    # The same one where dearer trials also promise less.
    assert all(more >= less for more, less in zip(whatever_the_cost, per_cost, strict=True))


def test_confirmation(results: tuple[TrialResult, ...]) -> None:
    """With it, what begins in the last fifth of the budget repeats what came before, instead of anything new."""
    first_hit = next(i for i, r in enumerate(results) if r.reached)
    tried = [r.parameters for r in results]
    new = next(i for i in range(first_hit + 1, len(results)) if tried[i] not in tried[:i])
    spent = sum(r.measurements[-1].step * CASE.step_seconds(r.parameters.global_batch_size) for r in results[:new])
    confirmed, ablated_study = (environment(0.999 * spent / FULL_RUN / 0.8) for _ in range(2))
    scaling(confirmed)
    ablated(ablated_study, ablation=ABLATIONS["confirmation"])
    late = [r.parameters for r in confirmed.largest.results[new:]]
    assert late
    assert set(late) <= set(tried[:new])
    assert [r.parameters for r in ablated_study.largest.results][: new + 1] == tried[: new + 1]
    assert [r.parameters for r in ablated_study.largest.results] != [r.parameters for r in confirmed.largest.results]


def test_the_estimate_of_noise(results: tuple[TrialResult, ...]) -> None:
    fixed = Noise(level=0.03, bias=0.0, log_cost=0.1)
    assert believe(results).noise != fixed
    with ABLATIONS["noise"].applied():
        assert believe(results).noise == fixed


def test_a_study_with_a_small_budget_is_the_beginning_of_one_with_a_large_budget() -> None:
    small, large, both = environment(4.0), environment(6.0), environment(4.0, 6.0)
    for studied in (small, large, both):
        scaling(studied)
    assert [r.parameters for r in both.largest.results] == [r.parameters for r in large.largest.results]
    assert both.recommended(4.0) == small.recommended(4.0)
    assert both.recommended(6.0) == large.recommended(6.0)
    assert small.recommended(4.0) is not None
    assert len(small.largest.results) < len(large.largest.results)


def test_of_a_trial_that_goes_on_only_the_rest_is_paid() -> None:
    studied = environment(100.0)
    short = studied.run(PROBLEM.first_guess, cap=20.0)
    after_short = studied.spent
    long = studied.run(PROBLEM.first_guess, cap=50.0, continues=short)
    assert math.isclose(after_short, 20.0 / FULL_RUN, rel_tol=0.1)
    assert math.isclose(studied.spent, 50.0 / FULL_RUN, rel_tol=0.1)
    assert long.measurements[5] == short.measurements[5]
    assert long.measurements[-1].step > short.measurements[-1].step
