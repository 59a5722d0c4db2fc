from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from scalesearch.core.curve import CurvePoint
from scalesearch.core.recommend import Findings, best_value, cost, findings
from scalesearch.core.results import Outcome, TrialResult

from .trials import METRIC, OBJECTIVE, SMOOTHED, trial

REACHED = [0.9, 0.5, 0.05]
FASTER = [0.9, 0.05]
METRIC_AT_END = replace(OBJECTIVE, target=None, minimize="metric")
ACCURACY_AT_END = replace(METRIC_AT_END, direction="maximize")


def found(*results: TrialResult) -> Findings:
    return findings(results, OBJECTIVE)


def recommended(result: Findings) -> int:
    assert result.recommendation is not None
    return result.recommendation.best.number


def test_the_cheapest_that_reached_the_target_wins() -> None:
    result = found(
        trial(0, REACHED, Outcome.REACHED),
        trial(1, FASTER, Outcome.REACHED, learning_rate=0.2),
        trial(2, REACHED, Outcome.REACHED, learning_rate=0.3),
    )
    assert recommended(result) == 1
    assert result.recommendation is not None
    assert result.recommendation.cost == pytest.approx(10 * 0.8 / 0.85)
    assert result.recommendation.parameters.learning_rate == 0.2


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.REACHED])
def test_reached_beats_every_other_outcome(outcome: Outcome) -> None:
    other = trial(0, [0.9, 0.11], outcome)
    assert recommended(found(other, trial(1, [*[0.9] * 50, 0.05], Outcome.REACHED))) == 1
    assert found(other).recommendation is None


def test_of_equal_trials_the_first_wins() -> None:
    same = [trial(n, REACHED, Outcome.REACHED, learning_rate=0.1 * (n + 1)) for n in range(3)]
    assert recommended(found(*same)) == 0


@pytest.mark.parametrize(("goal", "winner"), [("steps", 1), ("examples", 0), ("seconds", 1)])
def test_the_goal_decides(goal: str, winner: int) -> None:
    objective = replace(OBJECTIVE, minimize=goal)  # type: ignore[arg-type]
    results = [trial(0, REACHED, Outcome.REACHED, batch=8), trial(1, FASTER, Outcome.REACHED, batch=512)]
    assert recommended(findings(results, objective)) == winner


@pytest.mark.parametrize(("objective", "winner"), [(METRIC_AT_END, 1), (ACCURACY_AT_END, 2)])
def test_a_metric_counts_at_the_end_of_a_full_length_trial(objective: object, winner: int) -> None:
    results = [
        trial(0, [0.9, 0.01, 0.4], Outcome.EXHAUSTED),
        trial(1, [0.9, 0.5, 0.2], Outcome.EXHAUSTED, learning_rate=0.2),
        trial(2, [0.9, 0.5, 0.6], Outcome.EXHAUSTED, learning_rate=0.3),
        trial(3, [0.9, 0.0], Outcome.INTERRUPTED, learning_rate=0.4),
        trial(4, [0.9, 1.0], Outcome.DIVERGED, learning_rate=0.5),
    ]
    result = findings(results, objective)  # type: ignore[arg-type]
    assert recommended(result) == winner
    assert result.curve is None


def test_a_trial_that_did_not_get_there_has_no_cost() -> None:
    assert cost(trial(0, [0.9, 0.5], Outcome.CAPPED), OBJECTIVE) is None
    assert cost(trial(0, REACHED, Outcome.REACHED), OBJECTIVE) == pytest.approx(10 + 10 * 0.4 / 0.45)
    assert cost(trial(0, [0.9, 0.5], Outcome.EXHAUSTED), METRIC_AT_END) == 0.5


def test_best_value_is_the_best_finite_one() -> None:
    wild = [0.9, math.nan, 0.3, math.inf, -math.inf, 0.5]
    assert best_value(trial(0, wild, Outcome.DIVERGED), OBJECTIVE) == 0.3
    assert best_value(trial(0, wild, Outcome.DIVERGED), ACCURACY_AT_END) == 0.9
    assert best_value(trial(0, [math.nan, math.inf], Outcome.DIVERGED), OBJECTIVE) is None
    assert best_value(trial(0, [], Outcome.CRASHED), OBJECTIVE) is None


def test_the_closest_of_those_that_failed() -> None:
    result = found(
        trial(0, [], Outcome.CRASHED),
        trial(1, [0.9, 0.12, 0.3], Outcome.CAPPED),
        trial(2, [0.9, 0.2], Outcome.EXHAUSTED),
        trial(3, [math.nan], Outcome.DIVERGED),
    )
    assert result.recommendation is None
    assert result.closest is not None
    assert result.closest.number == 1
    assert found(trial(0, [], Outcome.CRASHED)).closest is None
    highest = findings([trial(0, [0.1, 0.2], Outcome.CAPPED), trial(1, [0.1, 0.3], Outcome.CAPPED)], ACCURACY_AT_END)
    assert highest.closest is not None
    assert highest.closest.number == 1


def test_an_interrupted_baseline_is_replaced_by_its_next_run() -> None:
    interrupted = trial(0, [0.9, 0.6], Outcome.INTERRUPTED, is_baseline=True)
    again = trial(1, REACHED, Outcome.REACHED, is_baseline=True)
    result = found(interrupted, again)
    assert result.baseline is not None
    assert result.baseline.best.number == 1
    assert result.baseline.runs == 1
    assert recommended(result) == 1


def test_while_it_was_only_interrupted_the_baseline_that_got_furthest_stands() -> None:
    result = found(
        trial(0, [0.9, 0.6], Outcome.INTERRUPTED, is_baseline=True),
        trial(1, [0.9, 0.6, 0.5], Outcome.INTERRUPTED, is_baseline=True),
    )
    assert result.baseline is not None
    assert (result.baseline.best.number, result.baseline.cost, result.baseline.runs) == (1, None, 0)
    assert found(trial(0, REACHED, Outcome.REACHED)).baseline is None


def test_runs_are_those_of_the_same_parameters_that_ended_by_themselves() -> None:
    result = found(
        trial(0, REACHED, Outcome.REACHED),
        trial(1, [0.9, 0.5], Outcome.INTERRUPTED),
        trial(2, [], Outcome.CRASHED),
        trial(3, [0.9, 0.5], Outcome.CAPPED),
        trial(4, [0.9, 0.5], Outcome.CAPPED, learning_rate=0.2),
    )
    assert result.recommendation is not None
    assert result.recommendation.runs == 2


def test_outcomes_are_counted() -> None:
    result = found(trial(0, REACHED, Outcome.REACHED), trial(1, [], Outcome.CRASHED), trial(2, [], Outcome.CRASHED))
    assert result.outcomes == {Outcome.REACHED: 1, Outcome.CRASHED: 2}


def test_batch_sizes_hold_the_best_in_each_unit() -> None:
    result = found(
        trial(0, REACHED, Outcome.REACHED, batch=128),
        trial(1, FASTER, Outcome.REACHED, batch=128, learning_rate=0.2),
        trial(2, [0.9, 0.5], Outcome.CAPPED, batch=128, learning_rate=0.3),
        trial(3, [0.9, 0.5], Outcome.CAPPED, batch=16),
    )
    small, large = result.batch_sizes
    assert (small.global_batch_size, small.trials, small.reached, small.best) == (16, 1, 0, None)
    assert (small.steps_to_target, small.examples_to_target, small.seconds_to_target) == (None, None, None)
    assert (large.global_batch_size, large.trials, large.reached) == (128, 3, 2)
    assert large.best is not None
    assert large.best.number == 1
    assert large.steps_to_target == pytest.approx(10 * 0.8 / 0.85)
    assert large.examples_to_target == pytest.approx(128 * 10 * 0.8 / 0.85)


def scaling(batches: Sequence[int]) -> list[TrialResult]:
    """Trials whose steps to target are about 20 · (1 + 64 / batch)."""
    return [trial(n, [0.9] * round(2 * (1 + 64 / b)) + [0.0], Outcome.REACHED, batch=b) for n, b in enumerate(batches)]


def test_the_first_crossing_of_a_batch_size_is_the_earliest_of_all_its_trials() -> None:
    lucky, steady = [0.9, 0.0, 0.9, 0.9], [0.9, 0.5, 0.3, 0.0, 0.0]
    once, twice = (
        trial(0, lucky, Outcome.EXHAUSTED, objective=SMOOTHED),
        trial(1, steady, Outcome.REACHED, objective=SMOOTHED),
    )
    [row] = found(once, twice).batch_sizes
    assert twice.first_reached is not None
    assert (row.steps_to_target, row.reached) == (twice.first_reached.steps, 1)
    assert row.steps_to_first_crossing == pytest.approx(10 * 0.8 / 0.9)


def test_the_curve_is_of_the_batch_sizes_that_reached() -> None:
    assert found(*scaling([8, 16, 32])).curve is None
    unreached = trial(9, [0.9, 0.5], Outcome.CAPPED, batch=64)
    assert found(*scaling([8, 16, 32]), unreached).curve is None
    assert found(*scaling([8, 16, 32, 64])).curve is not None


def test_caveats_say_what_is_not_established() -> None:
    one = found(trial(0, REACHED, Outcome.REACHED))
    assert one.caveats == (
        "the recommendation was run once: a single best run is partly luck, so expect somewhat more",
        "run only once: global batch 64",
    )
    twice = found(trial(0, REACHED, Outcome.REACHED), trial(1, REACHED, Outcome.REACHED))
    assert twice.caveats == ()


def test_edges_are_those_of_a_recommendation() -> None:
    edges = ["the optimum lies at an edge"]
    assert findings([trial(0, REACHED, Outcome.REACHED)], OBJECTIVE, edges=edges).edges == tuple(edges)
    assert findings([trial(0, [0.9], Outcome.CAPPED)], OBJECTIVE, edges=edges).edges == ()


def test_a_curve_comes_with_its_caveat() -> None:
    caveats = found(*scaling([8, 16, 32, 64])).caveats
    assert any(c.startswith("S(B) is fitted to the best trials found so far") for c in caveats)


def test_without_a_recommendation_there_are_no_caveats_about_it() -> None:
    assert found(trial(0, [0.9], Outcome.CAPPED)).caveats == ()


def test_without_trials_nothing_is_found() -> None:
    result = found()
    assert (result.recommendation, result.baseline, result.curve, result.closest) == (None, None, None, None)
    assert (result.batch_sizes, result.outcomes, result.caveats) == ((), {}, ())
    assert result.objective.metric == METRIC


def test_the_leader_is_recommended_by_its_median_run_though_a_lucky_run_was_faster() -> None:
    slow, slower = [*[0.9] * 5, 0.05], [*[0.9] * 7, 0.05]
    results = [
        trial(0, FASTER, Outcome.REACHED, learning_rate=0.3),
        trial(1, slower, Outcome.REACHED),
        trial(2, REACHED, Outcome.REACHED),
        trial(3, slow, Outcome.REACHED),
        trial(4, [0.9, 0.5], Outcome.CAPPED),
    ]
    result = findings(results, OBJECTIVE, leader=results[1].parameters)
    assert result.recommendation is not None
    assert recommended(result) == 3
    assert (result.recommendation.runs, result.recommendation.missed) == (4, 1)
    assert any("trial 0" in caveat and "luck" in caveat for caveat in result.caveats)
    assert any("1 of 4 runs" in caveat for caveat in result.caveats)


def test_a_leader_that_never_reached_the_target_is_not_recommended() -> None:
    results = [trial(0, FASTER, Outcome.REACHED, learning_rate=0.3), trial(1, [0.9, 0.5], Outcome.CAPPED)]
    assert recommended(findings(results, OBJECTIVE, leader=results[1].parameters)) == 0


def test_the_interval_is_that_of_students_t_on_log_cost() -> None:
    results = [trial(n, [*[0.9] * (n + 1), 0.05], Outcome.REACHED) for n in (4, 5, 7)]
    candidate = findings(results, OBJECTIVE, leader=results[0].parameters).recommendation
    assert candidate is not None
    assert candidate.interval is not None
    logs = [math.log(cost(r, OBJECTIVE) or 0.0) for r in results]
    mean = sum(logs) / 3
    sd = math.sqrt(sum((x - mean) ** 2 for x in logs) / 2)
    half = 2.919986 * sd / math.sqrt(3)  # the 95 % quantile of t with 2 degrees of freedom
    assert candidate.interval == pytest.approx((math.exp(mean - half), math.exp(mean + half)), rel=1e-5)
    alone = found(results[0]).recommendation
    assert alone is not None
    assert alone.interval is None


def test_the_baseline_is_compared_by_the_median_of_all_its_runs() -> None:
    slow = [*[0.9] * 9, 0.05]
    results = [
        trial(0, slow, Outcome.REACHED, is_baseline=True),
        trial(1, REACHED, Outcome.REACHED),
        trial(2, FASTER, Outcome.REACHED, learning_rate=0.3),
    ]
    baseline = found(*results).baseline
    assert baseline is not None
    assert (baseline.best.number, baseline.runs) == (1, 2)


def test_of_a_curve_each_batch_size_shows_its_leader_and_none_is_left_out() -> None:
    results = [
        trial(0, REACHED, Outcome.REACHED, batch=16),
        trial(1, FASTER, Outcome.REACHED, batch=64, learning_rate=0.3),
        trial(2, REACHED, Outcome.REACHED, batch=64),
        trial(3, [0.9, 0.5], Outcome.CAPPED, batch=64),
        trial(4, [0.9, 0.5, 0.4], Outcome.CAPPED, batch=128),
        trial(5, [0.9, 0.5, 0.5, 0.05], Outcome.REACHED, batch=64),
        trial(6, [0.9, 0.5, 0.5, 0.5, 0.05], Outcome.REACHED, batch=64),
    ]
    points = {
        r.parameters.global_batch_size: CurvePoint(parameters=r.parameters, steps=21.0, interval=(19.0, 24.0))
        for r in (results[0], results[2])
    }
    found = findings(results, OBJECTIVE, curve_sizes=(16, 64, 128, 256), points=points)
    at = {b.global_batch_size: b for b in found.batch_sizes}
    assert list(at) == [16, 64, 128, 256]
    assert (at[64].steps_to_target, at[64].examples_to_target, at[64].seconds_to_target) == (21.0, 21.0 * 64, 10.5)
    assert at[64].interval == (19.0, 24.0)
    assert at[64].leader is not None
    assert (at[64].leader.best.number, at[64].leader.runs, at[64].leader.missed) == (5, 4, 1)
    assert (at[128].leader, at[128].steps_to_target, at[128].most_examples) == (None, None, 20 * 128)
    assert (at[256].leader, at[256].trials) == (None, 0)
    assert any("not reached at global batch 128, 256" in caveat for caveat in found.caveats)
    assert any("run only once: global batch 16" in caveat for caveat in found.caveats)


def test_the_curve_is_fitted_to_what_is_expected_of_the_leaders() -> None:
    sizes = (8, 32, 128, 512)
    results = [trial(n, REACHED, Outcome.REACHED, batch=b) for n, b in enumerate(sizes)]
    points = {
        b: CurvePoint(parameters=r.parameters, steps=100 * (1 + 64 / b), interval=(1.0, 1e6))
        for b, r in zip(sizes, results, strict=True)
    }
    curve = findings(results, OBJECTIVE, curve_sizes=sizes, points=points).curve
    assert curve is not None
    assert (curve.s_min, curve.b_crit) == (pytest.approx(100, rel=1e-3), pytest.approx(64, rel=1e-3))


SECONDS = replace(OBJECTIVE, minimize="seconds")


def slowed(result: TrialResult, factor: float) -> TrialResult:
    """The same run on a machine that was busy."""
    assert result.reached is not None
    assert result.first_reached is not None
    return replace(
        result,
        reached=replace(result.reached, seconds=factor * result.reached.seconds),
        first_reached=replace(result.first_reached, seconds=factor * result.first_reached.seconds),
    )


def test_with_a_profile_a_machine_that_was_busy_for_a_while_changes_nothing() -> None:
    quicker, slower = trial(0, FASTER, Outcome.REACHED), trial(1, REACHED, Outcome.REACHED, learning_rate=0.2)
    busy = (slowed(quicker, 9.0), slower)
    assert recommended(findings(busy, SECONDS)) == 1, "by what the runs took"
    profiled = findings(busy, SECONDS, step_seconds=lambda batch: 0.01 * batch)
    assert recommended(profiled) == 0
    assert profiled.profiled
    assert profiled.recommendation is not None
    steps = 10 * 0.8 / 0.85
    assert profiled.recommendation.cost == pytest.approx(0.64 * steps)
    [row] = profiled.batch_sizes
    assert row.seconds_to_target == pytest.approx(0.64 * steps)
    reached, crossed = profiled.results[0].reached, profiled.results[0].first_reached
    assert reached is not None
    assert crossed is not None
    assert reached.seconds == crossed.seconds == pytest.approx(0.64 * steps)


def test_a_profile_changes_nothing_where_seconds_are_not_minimised() -> None:
    results = (trial(0, FASTER, Outcome.REACHED), trial(1, REACHED, Outcome.REACHED, learning_rate=0.2))
    assert findings(results, OBJECTIVE, step_seconds=lambda batch: 1.0) == findings(results, OBJECTIVE)


def test_what_was_only_measured_in_micro_batches_is_told_and_not_recommended() -> None:
    at_once, faster = trial(0, REACHED, Outcome.REACHED), trial(1, FASTER, Outcome.REACHED, batch=256)
    faster = replace(faster, parameters=replace(faster.parameters, accumulation=4))
    assert recommended(findings([at_once, faster], OBJECTIVE)) == 1
    for leader in (None, faster.parameters):
        only_measured = findings([at_once, faster], OBJECTIVE, leader=leader, recommends_accumulated=False)
        assert recommended(only_measured) == 0
        assert any("global batch 256: measured in micro-batches" in caveat for caveat in only_measured.caveats)
    nothing = findings([faster], OBJECTIVE, recommends_accumulated=False)
    assert nothing.recommendation is None
    assert any("not recommended" in caveat for caveat in nothing.caveats)
