"""Retunes of simulated workloads, whose true optimum is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from unittest.mock import Mock

import pytest

from scalesearch.core.axis import Interval
from scalesearch.core.parameters import Parameters
from scalesearch.core.race import RUNS_HERE, Race
from scalesearch.core.range_trials import RANGE
from scalesearch.core.results import Outcome, TrialResult
from scalesearch.core.retune import RetunePlanner, WarmStart
from scalesearch.core.scaling_rules import scaling_rules
from scalesearch.core.schedule_space import ConstantSpace
from scalesearch.core.simulate import Decays, SimulatedWorkload, true_curve
from scalesearch.core.simulate.workload import LearningRateMap, StepTime
from scalesearch.core.space import BatchSizes, SearchSpace
from scalesearch.core.surrogate.belief import believe
from scalesearch.core.surrogate.rate_map import RateMap

from .simulated import EASY, constant, run

MAX_EXAMPLES = 60_000
OLD_SIZE, REPLICAS = 8, 4
STEP_SECONDS = StepTime(saturation_batch=256.0, sync_seconds=0.2)
SPACE = SearchSpace(
    batch_sizes=BatchSizes(low=8, high=512, multiple_of=None, divisor=REPLICAS),
    learning_rate=Interval(1e-3, 4.0),
    momentum=None,
    schedule=ConstantSpace(),
)
ADAM_LIKE = replace(EASY, learning_rate=LearningRateMap(batch_exponent=0.5, reference_batch=8.0))
PRESENT = constant(0.2, global_batch_size=OLD_SIZE)


@cache
def old_runs(workload: SimulatedWorkload = EASY) -> tuple[TrialResult, ...]:
    rates = (0.1, 0.2, 0.2, 0.3)
    return tuple(
        run(workload, constant(rate, global_batch_size=OLD_SIZE), max_examples=MAX_EXAMPLES, seed=i)
        for i, rate in enumerate(rates)
    )


def planner(workload: SimulatedWorkload = EASY, **fields: object) -> RetunePlanner:
    rules = scaling_rules(PRESENT, growth=REPLICAS, divisor=REPLICAS)
    adaptive = workload.learning_rate.batch_exponent != 0.0
    complete = {
        "space": SPACE,
        "objective": workload.objective("seconds"),
        "max_examples": MAX_EXAMPLES,
        "start": WarmStart(rules=rules, old=old_runs(workload), adaptive=adaptive),
        "step_seconds": STEP_SECONDS,
    }
    return RetunePlanner(**(complete | fields))  # type: ignore[arg-type]


def follow(retune: RetunePlanner, *, trials: int, workload: SimulatedWorkload = EASY) -> list[tuple[str, TrialResult]]:
    """What it proposes and what comes of it, until it is settled or so many trials are run."""
    done: list[tuple[str, TrialResult]] = []
    for number in range(trials):
        results = [r for _, r in done]
        if retune.is_settled(results):
            break
        proposal = retune.propose(results)
        size = proposal.parameters.global_batch_size
        cap = proposal.cap / STEP_SECONDS(size) if proposal.cap is not None else float("inf")
        result = run(workload, proposal.parameters, max_examples=MAX_EXAMPLES, seed=100 + number, max_steps=cap)
        done.append((proposal.why, result))
    return done


def cost(results: Sequence[TrialResult], parameters: Parameters) -> float:
    steps = [r.reached.steps for r in results if r.parameters == parameters and r.reached]
    return sum(steps) / len(steps) * STEP_SECONDS(parameters.global_batch_size)


@pytest.fixture(scope="module")
def raced() -> list[tuple[str, TrialResult]]:
    return follow(planner(), trials=16)


def test_it_finds_the_optimum_of_the_new_hardware(raced: list[tuple[str, TrialResult]]) -> None:
    results = [r for _, r in raced]
    best = planner().recommend(results)
    assert best is not None
    sizes = (32, 64, 128, 256)
    least = min(
        o.steps * STEP_SECONDS(b) for b, o in zip(sizes, true_curve(EASY, sizes, decays=Decays(number=0)), strict=True)
    )
    assert cost(results, best) < 1.25 * least
    assert cost(old_runs(), PRESENT) > 2.0 * least


def test_only_what_was_run_here_is_recommended(raced: list[tuple[str, TrialResult]]) -> None:
    retune = planner()
    seen: list[TrialResult] = []
    for _, result in raced:
        best = retune.recommend(seen)
        assert best is None or best in {r.parameters for r in seen if r.reached}
        seen.append(result)
    assert retune.recommend([]) is None


def test_it_begins_with_a_range_of_rates_and_then_reaches_the_target_at_once(
    raced: list[tuple[str, TrialResult]],
) -> None:
    whys = [why for why, _ in raced]
    assert whys[0] == RANGE
    first = next(i for i, (_, r) in enumerate(raced) if r.reached)
    assert whys[first] in ("first hit", "rule: linear", "rule: sqrt")
    assert first <= whys.index("first hit") + 2


def test_range_trials_are_short_for_the_old_study_however_long_trials_may_be() -> None:
    quickest = min(r.reached.examples for r in old_runs() if r.reached)
    for max_examples in (MAX_EXAMPLES, 50 * MAX_EXAMPLES):
        proposal = planner(max_examples=max_examples).propose([])
        assert proposal.why == RANGE
        assert proposal.cap is not None
        size = proposal.parameters.global_batch_size
        assert proposal.cap / STEP_SECONDS(size) * size <= 0.2 * quickest + 5 * size


def test_a_rule_at_the_parameters_of_a_range_trial_is_still_to_be_run(raced: list[tuple[str, TrialResult]]) -> None:
    retune = planner()
    until_hit = [replace(r, why=why) for why, r in raced]
    first = next(i for i, r in enumerate(until_hit) if r.reached)
    linear = next(r.parameters for r in retune.start.rules if r.name == "linear")
    others = [r for r in until_hit[: first + 1] if r.parameters != linear]
    short = replace(until_hit[0], parameters=linear)
    for why, is_left in ((RANGE, True), ("improvement", False)):
        race = retune._race([replace(short, why=why), *others], RateMap())
        assert (linear in {rule.parameters for rule, _ in race._untried(())}) == is_left


def test_every_rule_is_run_before_it_is_settled() -> None:
    retune = planner()
    results = [r for _, r in follow(retune, trials=30)]
    assert retune.is_settled(results)
    assert {r.parameters for r in retune.start.rules} <= {r.parameters for r in results}


def test_what_the_old_study_had_confirmed_is_run_several_times_here_too() -> None:
    retune = planner(objective=EASY.objective("examples"))
    here = [run(EASY, PRESENT, max_examples=MAX_EXAMPLES, seed=9)]
    often = tuple(run(EASY, PRESENT, max_examples=MAX_EXAMPLES, seed=i) for i in range(5))
    belief = believe(
        [*often, *here], objective=retune.objective, max_examples=MAX_EXAMPLES, cost_per_step=float, seed=0
    )
    usual = retune._planner(SPACE, RateMap())
    planner_that_is_done = Mock(spec=usual, confirming=False, **{"is_settled.return_value": True})
    race = Race(planner=planner_that_is_done, rules=(), old=often, results=tuple(here), belief=belief)
    assert not race.is_settled()
    proposal = race.propose(())
    assert (proposal.parameters, proposal.why) == (PRESENT, "repeat of the leader")
    assert race.propose((PRESENT, PRESENT)) is planner_that_is_done.propose.return_value
    assert replace(race, results=tuple(here * RUNS_HERE)).is_settled()


def test_an_interrupted_trial_changes_nothing(raced: list[tuple[str, TrialResult]]) -> None:
    results = [r for _, r in raced[:4]]
    cut = replace(results[1], outcome=Outcome.INTERRUPTED, reached=None)
    assert planner().propose([*results, cut]) == planner().propose(results)


def test_it_is_a_pure_function_of_the_trials(raced: list[tuple[str, TrialResult]]) -> None:
    results = [r for _, r in raced[:5]]
    assert planner().propose(results) == planner().propose(results)


def test_rates_that_act_otherwise_at_other_batch_sizes_are_found_out() -> None:
    retune = planner(ADAM_LIKE)
    results = [r for _, r in follow(retune, trials=5, workload=ADAM_LIKE)]
    assert retune._rates(tuple(results)).exponent == pytest.approx(0.5, abs=0.25)
    assert planner()._rates(tuple(run_ for _, run_ in follow(planner(), trials=4))).exponent == 0.0


def test_from_settings_alone_they_are_run_first() -> None:
    retune = planner(start=WarmStart(rules=planner().start.rules))
    first = retune.propose([])
    assert (first.parameters, first.cap, first.why) == (PRESENT, None, "rule: keep")
    results = [r for _, r in follow(retune, trials=8)]
    assert results[0].reached
    assert retune.recommend(results) is not None


def test_old_curves_of_another_workload_are_forgotten_after_the_first_hit(raced: list[tuple[str, TrialResult]]) -> None:
    results = [r for _, r in raced]
    poisoned = tuple(
        replace(
            r,
            measurements=tuple(replace(m, metrics={k: 100 * v for k, v in m.metrics.items()}) for m in r.measurements),
        )
        for r in old_runs()
    )
    rules = planner().start.rules
    forgetting = planner(start=WarmStart(rules=rules, old=poisoned, forgets_old=True))
    without = planner(start=WarmStart(rules=rules, old=(), forgets_old=True))
    assert forgetting.propose(results) == without.propose(results)


def test_an_old_configuration_that_would_be_cheaper_is_not_recommended_unless_it_was_run() -> None:
    retune = planner(step_seconds=float)  # each example costs the same, so that the old batch size is best
    [hit] = [run(EASY, constant(0.3, global_batch_size=64), max_examples=MAX_EXAMPLES, seed=9)]
    assert hit.reached
    assert retune.expected_cost(PRESENT, [hit]) < retune.expected_cost(hit.parameters, [hit])
    assert retune.recommend([hit]) == hit.parameters
    again = run(EASY, PRESENT, max_examples=MAX_EXAMPLES, seed=10)
    assert retune.recommend([hit, again]) == PRESENT
