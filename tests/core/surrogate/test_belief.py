from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Cost, Objective, Outcome, Reached, TrialResult
from scalesearch.core.surrogate import belief as module
from scalesearch.core.surrogate.belief import Belief, Incumbent, believe, cost_to_target, loss_of, rank
from tests.core.simulated import EASY, constant, decaying, run

MAX_EXAMPLES = 1000 * 64
OBJECTIVE = EASY.objective("steps")
NOISY = replace(EASY, run_noise=replace(EASY.run_noise, speed=0.15))


def believed(results: Sequence[TrialResult], *, objective: Objective = OBJECTIVE) -> Belief:
    return believe(results, objective=objective, max_examples=MAX_EXAMPLES, cost_per_step=lambda b: 1.0, seed=0)


def runs(*parameters: Parameters, max_examples: int = MAX_EXAMPLES) -> list[TrialResult]:
    return [run(EASY, p, max_examples=max_examples, goal="steps", seed=i) for i, p in enumerate(parameters)]


@cache
def several() -> tuple[TrialResult, ...]:
    """Four that reach the target, two that are stopped before, one that diverges."""
    hits = runs(constant(0.6), decaying(1.0, 60), decaying(1.3, 30), constant(0.5, global_batch_size=256))
    assert all(r.reached for r in hits)
    stopped = [replace(r, outcome=Outcome.CAPPED) for r in runs(constant(0.1), constant(0.02), max_examples=50 * 64)]
    return (*hits, *stopped, *runs(constant(5.0)))


def lucky(result: TrialResult, share: float) -> TrialResult:
    """The same run, as if it had taken `share` of its steps."""
    assert result.reached is not None
    reached = replace(result.reached, steps=share * result.reached.steps)
    measured = [replace(m, step=max(round(share * m.step), i)) for i, m in enumerate(result.measurements)]
    return replace(result, reached=reached, measurements=tuple(measured))


def test_nothing_is_known_without_results() -> None:
    belief = believed([])
    assert belief.model is None
    assert belief.incumbent is None
    assert belief.stability.stable == belief.stability.unstable == ()


def test_diverged_runs_alone_tell_the_limit() -> None:
    belief = believed(runs(constant(5.0), constant(3.0)))
    assert belief.model is None
    assert belief.incumbent is None
    assert np.exp(belief.stability.log_limit(np.array([np.log(64)])))[0] < 3.0


def test_one_run_that_missed_is_enough_for_a_model_but_leads_nothing() -> None:
    belief = believed(runs(constant(0.05), max_examples=50 * 64))
    assert belief.model is not None
    assert belief.incumbent is None
    assert belief.leaders == ()
    assert belief.misses_so_far == 1


def test_one_hit_leads() -> None:
    [hit] = runs(decaying(1.0, 60))
    belief = believed([hit])
    assert belief.incumbent is not None
    assert belief.incumbent.parameters == hit.parameters
    assert belief.incumbent.runs == 1
    assert belief.incumbent.cost == pytest.approx(cost_to_target(hit, lambda b: 1.0), rel=0.3)


def test_trials_that_measured_nothing_do_not_matter() -> None:
    nothing = [
        TrialResult(
            number=9,
            parameters=constant(0.3, global_batch_size=8192),
            seed=0,
            outcome=outcome,
            reason="",
            cost=Cost(),
            reached=None,
        )
        for outcome in (Outcome.OUT_OF_MEMORY, Outcome.CRASHED)
    ]
    assert believed(nothing).model is None
    with_others = believed([*several(), *nothing])
    assert with_others.incumbent is not None
    assert with_others.incumbent.parameters == believed(several()).incumbent.parameters  # type: ignore[union-attr]


def test_the_best_of_several_leads_and_the_others_follow() -> None:
    belief = believed(several())
    assert belief.incumbent is not None
    hits = {r.parameters: r for r in several() if r.reached}
    cheapest = min(hits.values(), key=lambda r: cost_to_target(r, lambda b: 1.0) or np.inf)
    assert belief.incumbent.parameters == cheapest.parameters
    assert belief.leaders[0] == belief.incumbent
    assert {leader.parameters for leader in belief.leaders} <= set(hits)
    assert belief.misses_so_far == 0, "misses count until the first hit"


def test_predictions_are_near_what_was_seen() -> None:
    belief = believed(several())
    hits = [r for r in several() if r.reached]
    costs = belief.expected_costs([r.parameters for r in hits], cap=float(MAX_EXAMPLES / 64))
    seen = [cost_to_target(r, lambda b: 1.0) for r in hits]
    np.testing.assert_allclose(np.log(costs.hit.mean(axis=0)), np.log(np.array(seen, dtype=float)), atol=0.25)


def test_a_single_lucky_run_does_not_lead() -> None:
    """Noisy repeats of a good point, and one run of a slightly worse point that took two thirds of its steps."""
    good, worse = decaying(1.3, 30), decaying(1.2, 34)
    repeats = [run(NOISY, good, max_examples=MAX_EXAMPLES, goal="steps", seed=s) for s in range(12)]
    luck = lucky(run(EASY, worse, max_examples=MAX_EXAMPLES, goal="steps"), 0.7)
    results = [*several(), *repeats, luck]
    costs = {id(r): cost_to_target(r, lambda b: 1.0) for r in results if r.reached}
    mean_of_good = np.mean([c for r in repeats if (c := costs[id(r)]) is not None])
    assert costs[id(luck)] < mean_of_good  # type: ignore[operator]
    incumbent = believed(results).incumbent
    assert incumbent is not None
    assert incumbent.cost > costs[id(luck)] * 1.05  # type: ignore[operator]


def test_misses_count_against_a_point() -> None:
    good = decaying(1.3, 30)
    hits = runs(good, good)
    missed = [
        replace(run(EASY, good, max_examples=20 * 64, goal="steps", seed=7), outcome=Outcome.CAPPED, reached=None)
    ] * 3
    once, often = (believed([*several(), *hits, *m]).incumbent for m in (missed[:1], missed))
    assert once is not None
    assert often is not None
    assert {once.parameters, often.parameters} <= {r.parameters for r in several()}
    if once.parameters == often.parameters == good:
        assert often.miss > once.miss
        assert often.cost > once.cost


def test_interrupted_runs_are_ignored() -> None:
    cut = replace(run(EASY, constant(0.3), max_examples=40 * 64, seed=3), outcome=Outcome.INTERRUPTED, reached=None)
    with_it, without = believed([*several(), cut]), believed(several())
    assert with_it.incumbent == without.incumbent
    assert with_it.stability == without.stability


def test_the_gain_is_that_of_candidates_better_than_the_incumbent() -> None:
    belief = believed(several())
    assert belief.incumbent is not None
    cap = belief.cap_factor * belief.incumbent.cost
    hopeless, leader = constant(0.005), belief.incumbent.parameters
    gains, costs = belief.gains([hopeless, leader], cap=cap)
    assert 0.0 <= gains[0] < 0.01 * gains[1]
    assert gains[1] < belief.incumbent.cost
    assert costs[0] == pytest.approx(cap), "a trial that does not reach the target costs its cap"
    assert 0.0 < costs[1] < cap


def test_of_about_equal_costs_the_lower_rate_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALM", 0.0)
    belief = believed(several())
    by_cost = rank(several(), belief)
    rates = [leader.parameters.learning_rate for leader in by_cost]
    assert rates[0] > min(rates)
    lowest = by_cost[int(np.argmin(rates))]
    difference = np.log(lowest.cost / by_cost[0].cost) / np.log(rates[0] / min(rates))  # in nats per nat
    two = (lowest.parameters, by_cost[0].parameters)
    results = [r for r in several() if r.reached is None or r.parameters in two]
    for calm, leads in ((0.9 * difference, rates[0]), (1.1 * difference, min(rates))):
        monkeypatch.setattr(module, "CALM", calm)
        assert rank(results, belief)[0].parameters.learning_rate == leads


def test_the_cap_lets_an_unlucky_run_of_a_better_point_win() -> None:
    assert 1.0 < believed(several()).cap_factor < 4.0
    noisy = [run(NOISY, decaying(1.0, 60), max_examples=MAX_EXAMPLES, goal="steps", seed=s) for s in range(12)]
    assert believed(noisy).cap_factor > believed(runs(*[decaying(1.0, 60)] * 12)).cap_factor


def test_an_incumbent_with_one_doubtful_run_is_worth_repeating() -> None:
    belief = believed(several())
    doubtful = Incumbent(constant(0.1), cost=10.0, miss=0.5, runs=1)
    assert belief.worth_repeating(doubtful)
    assert not belief.worth_repeating(replace(doubtful, runs=2))
    assert not belief.worth_repeating(replace(doubtful, miss=0.0))


def test_the_same_results_and_seed_give_the_same_belief() -> None:
    candidates = [constant(0.3), decaying(1.1, 40)]
    first, again = (believed(several()).expected_costs(candidates, cap=500.0) for _ in range(2))
    np.testing.assert_array_equal(first.hit, again.hit)


def test_a_metric_of_which_more_is_better_becomes_a_distance_from_one() -> None:
    accuracy = Objective(metric="a", direction="maximize", target=0.9, minimize="steps")
    assert loss_of(0.9, accuracy) == pytest.approx(0.1)
    assert loss_of(0.95, accuracy) < loss_of(0.9, accuracy)
    assert loss_of(0.25, OBJECTIVE) == 0.25


def test_a_study_of_accuracy_believes_the_same_as_one_of_the_error() -> None:
    def as_accuracy(result: TrialResult) -> TrialResult:
        measured = tuple(replace(m, metrics={"a": 1.0 - m.metrics["val/loss"]}) for m in result.measurements)
        return replace(result, measurements=measured)

    accuracy = Objective(metric="a", direction="maximize", target=1.0 - EASY.target, minimize="steps")
    error, mirrored = believed(several()), believed([as_accuracy(r) for r in several()], objective=accuracy)
    assert error.incumbent is not None
    assert mirrored.incumbent is not None
    assert mirrored.incumbent.parameters == error.incumbent.parameters
    assert mirrored.incumbent.cost == pytest.approx(error.incumbent.cost, rel=1e-3)


def test_cost_to_target_is_that_of_its_steps_at_their_usual_time() -> None:
    """The seconds that a trial happened to take do not choose."""
    reached = Reached(steps=50.0, examples=3200.0, seconds=999.0, evaluation_step=50, evaluation_examples=3200)
    slow = replace(several()[0], reached=reached)
    assert cost_to_target(slow, lambda b: 0.01 * b) == pytest.approx(50.0 * 0.64)
    assert cost_to_target(several()[-1], lambda b: 1.0) is None


def at_high_plateau(learning_rate: float) -> TrialResult:
    """A run at too high a rate that does not diverge: its loss stays where it was."""
    [result] = runs(constant(learning_rate), max_examples=200 * 64)
    initial = result.measurements[0].metrics["val/loss"]
    measured = [replace(m, train_loss=initial, metrics={"val/loss": initial}) for m in result.measurements]
    return replace(result, outcome=Outcome.CAPPED, measurements=tuple(measured), reached=None)


def test_runs_at_too_high_a_rate_teach_the_model_nothing() -> None:
    stable = runs(constant(0.3), decaying(0.8, 60))
    with_others = believed([*stable, at_high_plateau(2.5), at_high_plateau(3.0)])
    assert with_others.stability.gradual
    where = [decaying(0.7, 70), constant(0.5)]
    predicted, alone = (b.expected_costs(where, cap=1000.0).hit.mean(axis=0) for b in (with_others, believed(stable)))
    np.testing.assert_allclose(predicted, alone, rtol=0.1)
