from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from scalesearch.core.accumulation import AsFewAsFit
from scalesearch.core.axis import Interval
from scalesearch.core.curve_planner import CurvePlanner, sizes_of
from scalesearch.core.curve_standing import MOST_ATTEMPTS
from scalesearch.core.memory import Memory
from scalesearch.core.proposal import Proposal
from scalesearch.core.range_trials import RANGE
from scalesearch.core.results import Goal, Outcome, TrialResult
from scalesearch.core.schedule_space import PiecewiseSpace
from scalesearch.core.simulate import Decays, true_curve, true_steps
from scalesearch.core.simulate.workload import LearningRateMap
from scalesearch.core.space import BatchSizes, SearchSpace
from tests.core.simulated import EASY, constant, run, run_proposal

SIZES = (8, 16, 32, 64, 128, 256, 512)
MAX_EXAMPLES = 100_000  # about three times what the largest batch size needs
FIRST_GUESS = constant(0.05, global_batch_size=32)
SPACE = SearchSpace(
    batch_sizes=BatchSizes(low=SIZES[0], high=SIZES[-1], multiple_of=None, divisor=1),
    learning_rate=Interval(1e-3, 10.0),
    momentum=None,
    schedule=PiecewiseSpace(decays=1, boundaries=Interval(100, MAX_EXAMPLES), decay_factor=Interval(0.1, 0.1)),
)


@dataclass(frozen=True)
class Study:
    """What a study proposed, and what came of it."""

    planner: CurvePlanner
    proposals: tuple[Proposal, ...]
    results: tuple[TrialResult, ...]


def planner(*, goal: Goal = "steps", seed: int = 0, space: SearchSpace = SPACE) -> CurvePlanner:
    return CurvePlanner(
        space=space,
        objective=EASY.objective(goal),
        max_examples=MAX_EXAMPLES,
        first_guess=FIRST_GUESS,
        step_seconds=EASY.step_time,
        seed=seed,
    )


@cache
def best_steps() -> dict[int, float]:
    curve = true_curve(EASY, SIZES, decays=Decays(number=1))
    return {o.parameters.global_batch_size: o.steps for o in curve}


def unit() -> float:
    """Examples of one optimal run at each batch size."""
    return sum(b * s for b, s in best_steps().items())


@cache
def study(seed: int, /) -> Study:
    """Four units' worth of trials."""
    return studied(planner(seed=seed), budget=4.0 * unit())


def first_part(units: float) -> tuple[TrialResult, ...]:
    """The trials of so many units of a study."""
    results = study(0).results
    spent = np.cumsum([r.measurements[-1].examples for r in results])
    return results[: int(np.searchsorted(spent, units * unit()))]


def studied(plans: CurvePlanner, *, budget: float, results: Sequence[TrialResult] = ()) -> Study:
    proposals: list[Proposal] = []
    results = list(results)
    while sum(r.measurements[-1].examples for r in results) < budget:
        proposals.append(plans.propose(results))
        results.append(run_proposal(EASY, plans, proposals[-1], tuple(results)))
    return Study(plans, tuple(proposals), tuple(results))


def errors(study: Study) -> dict[int, float]:
    """How much longer, free of noise, the leader of each batch size takes than the best parameters there."""
    leaders = study.planner.leaders(study.results)
    return {size: true_steps(EASY, p) / best_steps()[size] - 1.0 for size, p in leaders.items()}


@pytest.mark.parametrize("seed", range(2))
def test_every_batch_size_is_verified_and_near_its_optimum(seed: int) -> None:
    found = study(seed)
    assert {r.parameters.global_batch_size for r in found.results if r.reached} == set(SIZES)
    assert max(errors(found).values()) < 0.3
    assert sorted(errors(found).values())[len(SIZES) // 2] < 0.1


def test_the_cheapest_batch_sizes_come_first() -> None:
    """In examples these are the small ones, from the first hit on to both sides of it."""
    verified = [p.parameters.global_batch_size for p in study(0).proposals if p.why == "verification"]
    upwards = [size for size in dict.fromkeys(verified) if size > FIRST_GUESS.global_batch_size]
    assert upwards == sorted(upwards)
    assert verified.index(min(verified)) < verified.index(SIZES[-1])


def test_a_first_hit_is_given_no_more_than_twice_as_long_as_any_trial_before_it() -> None:
    """However long a full length is: it is for the largest batch size."""
    space = replace(SPACE, learning_rate=Interval(1e-4, 0.01))  # too low by far: whatever is tried takes long
    plans = replace(planner(space=space), max_examples=400_000, first_guess=constant(0.001, global_batch_size=32))
    more = studied(plans, budget=70_000)
    first_hits = [p for p in more.proposals if p.why == "first hit"]
    assert [p.cap * p.parameters.global_batch_size for p in first_hits if p.cap] == [20_000, 40_000]


def test_a_cheap_improvement_comes_before_a_dear_verification() -> None:
    """A leader that takes many times too long teaches little, and is soon improved."""

    def far_too_slow(size: int) -> TrialResult:
        return run(EASY, constant(0.01, global_batch_size=size), max_examples=MAX_EXAMPLES, goal="steps", seed=size)

    results = list(first_part(0.4))
    assert not any(r.reached for r in results)
    results += [far_too_slow(8), far_too_slow(16)]
    assert all(r.reached for r in results[-2:])
    more = studied(planner(), budget=sum(r.cost.examples for r in results) + 0.5 * unit(), results=results)
    proposed = [(p.why, p.parameters.global_batch_size) for p in more.proposals]
    assert ("improvement", 8) in proposed or ("improvement", 16) in proposed
    assert ("verification", 512) not in proposed


def test_a_trial_is_capped_at_a_multiple_of_what_is_expected_at_its_batch_size() -> None:
    found = study(0)
    caps = [p for p in found.proposals if p.why != RANGE and p.cap is not None]
    assert len(caps) == sum(p.why != RANGE for p in found.proposals)
    for proposal in caps:
        if proposal.why in ("improvement", "repeat of a leader", "confirmation"):
            best = best_steps()[proposal.parameters.global_batch_size]
            assert 0.9 * best < proposal.cap <= 2.5 * best


def test_the_curve_is_what_runs_of_the_leaders_take() -> None:
    found = study(0)
    points = found.planner.curve(found.results)
    assert {size: point.parameters for size, point in points.items()} == found.planner.leaders(found.results)
    for size, point in points.items():
        steps = [r.reached.steps for r in found.results if r.parameters == point.parameters and r.reached]
        assert point.steps == pytest.approx(sum(steps) / len(steps), rel=0.15)
        assert point.interval[0] < point.steps < point.interval[1] < 1.5 * point.steps
        assert point.parameters.global_batch_size == size


@pytest.mark.parametrize("goal", ["seconds", "steps", "examples"])
def test_the_optimum_comes_with_the_curve(goal: Goal) -> None:
    found = replace(study(0).planner, objective=EASY.objective(goal)).recommend(study(0).results)
    assert found is not None
    per_step = {"seconds": EASY.step_time, "steps": lambda size: 1.0, "examples": float}[goal]
    cost = true_steps(EASY, found) * per_step(found.global_batch_size)
    assert cost < 1.25 * min(steps * per_step(size) for size, steps in best_steps().items())


def test_what_is_only_measured_is_not_recommended() -> None:
    """The best batch size for steps is the largest one, which is taken in micro-batches here."""
    found = study(0)
    limited = AsFewAsFit(replicas=1, largest_share=64, only_measured=True)
    space = replace(SPACE, accumulation=limited)
    results = [replace(r, parameters=space.accumulated(r.parameters)) for r in found.results]
    assert (best := found.planner.recommend(found.results)) is not None
    assert best.global_batch_size > 64
    only_measured = replace(found.planner, space=space, memory=Memory())
    assert (best := only_measured.recommend(results)) is not None
    assert (best.global_batch_size, best.accumulation) == (64, 1)
    assert only_measured.curve(results).keys() == found.planner.curve(found.results).keys()
    may_be = replace(only_measured, space=replace(space, accumulation=replace(limited, only_measured=False)))
    assert (best := may_be.recommend(results)) is not None
    assert best.accumulation > 1


def test_the_caps_are_in_the_unit_of_the_goal() -> None:
    in_steps, in_seconds = (replace(study(0).planner, objective=EASY.objective(goal)) for goal in ("steps", "examples"))
    for count in (0, 1, 3, len(study(0).results)):
        one, other = (p.propose(study(0).results[:count]) for p in (in_steps, in_seconds))
        assert one.parameters == other.parameters
        assert one.cap is not None
        assert other.cap == pytest.approx(one.cap * one.parameters.global_batch_size)


def test_when_confirming_every_leader_is_repeated_before_any_again() -> None:
    results = first_part(3.0)
    confirming = replace(planner(), confirming=True)
    before = confirming.leaders(results)
    assert set(before) == set(SIZES)
    runs = {size: sum(r.parameters == p for r in results) for size, p in before.items()}
    more = studied(confirming, budget=4.2 * unit(), results=results)
    assert {p.why for p in more.proposals} == {"confirmation"}
    assert more.proposals[0].parameters.global_batch_size in {s for s, n in runs.items() if n == min(runs.values())}
    assert all(sum(r.parameters == p for r in more.results) >= 2 for p in confirming.leaders(more.results).values())


def test_a_study_without_more_to_gain_is_settled_once_all_is_confirmed() -> None:
    plans, results = planner(), list(study(0).results)
    for _ in range(60):
        if plans.is_settled(results):
            break
        proposal = plans.propose(results)
        results.append(run_proposal(EASY, plans, proposal, tuple(results)))
    assert plans.is_settled(results)
    assert set(plans.leaders(results)) == set(SIZES)
    assert all(sum(r.parameters == p for r in results) >= 2 for p in plans.leaders(results).values())
    assert not plans.is_settled(results[:6])


def test_a_batch_size_out_of_memory_is_left_alone() -> None:
    results = list(first_part(1.0))
    lost = replace(results[0], parameters=constant(0.1, global_batch_size=256), outcome=Outcome.OUT_OF_MEMORY)
    results = [r for r in results if r.parameters.global_batch_size < 256] + [replace(lost, number=99, reached=None)]
    more = studied(planner(), budget=sum(r.measurements[-1].examples for r in results) + unit(), results=results)
    assert max(p.parameters.global_batch_size for p in more.proposals) < 256


def test_a_target_out_of_reach_at_large_batch_sizes_ends_the_attempts() -> None:
    short = replace(planner(), max_examples=4_000)  # a batch of 512 would need twice that
    more = studied(short, budget=3.0 * unit())
    assert set(short.leaders(more.results)) >= {8, 16, 32, 64}
    assert 512 not in short.leaders(more.results)
    assert sum(p.parameters.global_batch_size == 512 for p in more.proposals) <= MOST_ATTEMPTS


def test_the_same_results_give_the_same_proposal_and_interruptions_none() -> None:
    results = study(0).results[:9]
    interrupted = replace(results[3], number=99, outcome=Outcome.INTERRUPTED, reached=None)
    proposal = planner().propose(results)
    assert planner().propose(results) == proposal
    assert planner().propose([*results, interrupted]) == proposal
    used = planner()
    used.propose(study(0).results[:5])
    assert used.propose(results) == proposal


def test_a_trial_that_is_running_is_not_asked_for_again() -> None:
    for count in (2, 6, len(study(0).results)):
        results = study(0).results[:count]
        first = planner().propose(results)
        second = planner().propose(results, [first.parameters])
        assert second.parameters != first.parameters or first.why in ("confirmation", "repeat of a leader")


def test_of_many_batch_sizes_those_a_factor_of_two_apart_are_measured() -> None:
    assert sizes_of(SPACE) == SIZES
    multiples = replace(SPACE, batch_sizes=BatchSizes(low=48, high=1536, multiple_of=48, divisor=1))
    assert sizes_of(multiples) == (48, 96, 192, 384, 768, 1536)


def test_a_rate_that_acts_more_strongly_at_larger_batches_is_seen_through() -> None:
    """As Adam's does: the best rates rise with the square root of the batch size and then fall."""
    acts = LearningRateMap(scale=0.5, batch_exponent=0.5)
    adam_like = replace(EASY, learning_rate=acts)
    plans = replace(planner(), first_guess=constant(0.1, global_batch_size=32))
    results: list[TrialResult] = []
    while sum(r.measurements[-1].examples for r in results) < 3.5 * unit():
        proposal = plans.propose(results)
        results.append(run_proposal(adam_like, plans, proposal, tuple(results)))
    leaders = plans.leaders(results)
    assert set(leaders) == set(SIZES)
    assert all(any(p == r.parameters and r.reached for r in results) for p in leaders.values()), "as they were set"
    late = {size: true_steps(adam_like, p) / best_steps()[size] - 1.0 for size, p in leaders.items()}
    assert max(late.values()) < 0.3
    assert sorted(late.values())[len(SIZES) // 2] < 0.1
