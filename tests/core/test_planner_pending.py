"""Proposals while other trials are running."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from scalesearch.core.axis import Interval
from scalesearch.core.parameters import Parameters
from scalesearch.core.planner import Planner, Proposal, with_pending
from scalesearch.core.range_trials import RANGE
from scalesearch.core.results import TrialResult
from scalesearch.core.schedule_space import ConstantSpace
from scalesearch.core.simulate import SimulatedWorkload, true_cost
from scalesearch.core.space import BatchSizes
from scalesearch.core.surrogate.residual import similarity
from tests.core.simulated import EASY, decaying, run, run_proposal
from tests.core.test_planner import SEARCHING, SPACE, best_cost, planner, study, train

REPEATS = ("repeat of the leader", "repeat of a challenger", "confirmation")


def asked(plans: Planner, results: Sequence[TrialResult], count: int) -> list[Proposal]:
    """So many proposals before any of them is run."""
    proposals: list[Proposal] = []
    for _ in range(count):
        proposals.append(plans.propose(results, [p.parameters for p in proposals]))
    return proposals


@dataclass(frozen=True)
class Abreast:
    """What several workers were given, and what came of it: whenever the oldest trial ends, a new one is asked for."""

    proposals: list[Proposal]
    results: list[TrialResult]


@cache
def abreast(plans: Planner, *, workload: SimulatedWorkload = EASY, workers: int, trials: int = 20) -> Abreast:
    done = Abreast([], [])
    known: list[tuple[TrialResult, ...]] = []
    while (number := len(done.results)) < trials:
        while len(done.proposals) - number < workers:
            pending = [p.parameters for p in done.proposals[number:]]
            known.append(tuple(done.results))
            done.proposals.append(plans.propose(done.results, pending))
        result = run_proposal(workload, plans, done.proposals[number], known[number])
        done.results.append(replace(result, number=number))
    return done


@pytest.mark.parametrize("known", [0, 2, 4, 8, 12])
def test_four_at_once_are_four_points(known: int) -> None:
    results = study().results[:known]
    proposals = asked(planner(), results, 4)
    searching = [p.parameters for p in proposals if p.why in SEARCHING]
    assert len(set(searching)) == len(searching)
    assert not {r.parameters for r in results} & set(searching)
    assert proposals == asked(planner(), results, 4), "and the same four again"
    assert proposals[0] == planner().propose(results)


def test_the_ladder_goes_on_past_rates_that_are_pending() -> None:
    proposals = asked(planner(), [], 4)
    assert {p.why for p in proposals} == {RANGE}
    rates = np.array([p.parameters.learning_rate for p in proposals])
    assert rates[1:] / rates[:-1] == pytest.approx(3.0)
    diverged = train(planner(), replace(proposals[0], parameters=replace_rate(proposals[0].parameters, 8.0)), ())
    start = replace(planner(), first_guess=diverged.parameters)
    below = [p.parameters.learning_rate for p in asked(start, [diverged], 3)]
    assert below == pytest.approx([8.0 / 3.0, 8.0 / 9.0, 8.0 / 27.0])


def replace_rate(parameters: Parameters, learning_rate: float) -> Parameters:
    return replace(parameters, schedule=replace(parameters.schedule, learning_rate=learning_rate))


def test_a_bisection_that_is_pending_is_not_waited_for() -> None:
    trials = [(r, p) for r, p in zip(study().results, study().proposals, strict=True) if p.why == RANGE]
    *before, (_, bisection) = trials
    results = [r for r, _ in before]
    assert planner().propose(results) == bisection
    assert planner().propose(results, [bisection.parameters]).why != RANGE


def test_within_what_is_stable() -> None:
    for known in range(6, len(study().results), 3):
        results = study().results[:known]
        belief = planner()._belief(results)
        for proposal in asked(planner(), results, 4):
            limit = float(belief.stability.log_limit(np.log(proposal.parameters.global_batch_size)))
            assert np.log(proposal.parameters.effective_learning_rate) < limit + 1e-6


def test_nothing_next_to_a_pending_point() -> None:
    whys = [p.why for p in study().proposals]
    for known in (whys.index("first hit"), whys.index("improvement"), len(whys) - 1 - whys[::-1].index("improvement")):
        results = study().results[:known]
        points = [p.parameters for p in asked(planner(), results, 4) if p.why in SEARCHING]
        for i, point in enumerate(points[1:], start=1):
            assert similarity([point], points[:i])[0] < 0.9
        near = replace_rate(points[0], 1.02 * points[0].learning_rate)
        assert similarity([points[0]], [near])[0] > 0.9
        other = planner().propose(results, [near])
        assert other.why not in SEARCHING or similarity([other.parameters], [near])[0] < 0.9


def test_a_pending_repeat_counts_as_a_run() -> None:
    confirming = replace(planner(), confirming=True)
    proposals = asked(confirming, study().results, 6)
    belief = confirming._belief(study().results)
    runs = {leader.parameters: leader.runs for leader in belief.leaders}
    for proposal in proposals:
        contenders = {p: n for p, n in runs.items() if p in {q.parameters for q in proposals}}
        assert runs[proposal.parameters] == min(contenders.values())
        runs[proposal.parameters] += 1


def test_a_doubtful_leader_is_not_repeated_twice_at_once() -> None:
    hits = [r for r in study().results if r.reached]
    belief = planner()._belief([*study().results[:6], hits[0]])
    [leader] = belief.leaders
    doubtful = replace(belief, leaders=(replace(leader, miss=0.5),))
    for pending, repeat in (((), True), ((decaying(0.1, 20),), True), ((leader.parameters,), False)):
        now = with_pending(doubtful, pending)
        assert now.incumbent is not None
        assert now.worth_repeating(now.incumbent) is repeat


@pytest.mark.parametrize("seed", [0, 1])
def test_four_workers_find_about_as_good_an_answer(seed: int) -> None:
    """For as many trials, though each is chosen without what three others tell."""
    plans = planner(seed=seed)
    recommended = plans.recommend(abreast(plans, workers=4).results)
    assert recommended is not None
    assert true_cost(EASY, recommended, "seconds") < 1.25 * best_cost("seconds")


def test_no_point_is_bought_again_but_as_a_repeat() -> None:
    """Also where the target is out of reach, and so no run is worth repeating."""
    out_of_reach = replace(EASY, target=1e-4)
    hopeless = replace(planner(), objective=out_of_reach.objective("seconds"))
    for workers in (1, 4):
        none_reached = abreast(hopeless, workload=out_of_reach, workers=workers)
        assert not any(r.reached for r in none_reached.results)
        assert not any(p.why in REPEATS for p in none_reached.proposals)
        for done in (none_reached, abreast(planner(), workers=workers)):
            seen: set[Parameters] = set()
            for proposal in done.proposals:
                assert proposal.why in REPEATS or proposal.parameters not in seen
                seen.add(proposal.parameters)


def test_trials_that_never_end_only_repel() -> None:
    """Those of a process that died, for ever pending, among them the optimum's own neighbour."""
    dead = [planner().propose([]).parameters, decaying(1.2, 20), *asked_parameters(study().results[:9])]
    results: list[TrialResult] = []
    for _ in range(16):
        proposal = planner().propose(results, dead)
        assert proposal.parameters not in dead
        results.append(train(planner(), proposal, tuple(results)))
    assert any(r.reached for r in results)


def asked_parameters(results: Sequence[TrialResult]) -> list[Parameters]:
    return [p.parameters for p in asked(planner(), results, 2)]


def test_a_space_of_one_point_is_repeated() -> None:
    one = replace(
        SPACE,
        batch_sizes=BatchSizes(low=64, high=64, multiple_of=None, divisor=1),
        learning_rate=Interval(0.5, 0.5),
        schedule=ConstantSpace(),
    )
    point = run(EASY, planner(space=one).propose([]).parameters, max_examples=10_000).parameters
    assert planner(space=one).propose([], [point]).parameters == point
