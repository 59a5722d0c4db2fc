"""How rules fared, from made-up trials."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalesearch.core.parameters import Parameters
from scalesearch.core.range_trials import RANGE
from scalesearch.core.results import Outcome, TrialResult
from scalesearch.core.rule_outcomes import NOT_RUN, RuleOutcome, rule_outcomes
from scalesearch.core.scaling_rules import scaling_rules
from scalesearch.core.schedule import Constant

from .trials import OBJECTIVE, trial

PRESENT = Parameters(global_batch_size=64, schedule=Constant(learning_rate=0.1))
RULES = scaling_rules(PRESENT, growth=4.0, divisor=4)
KEEP, LINEAR, SQRT = (r.parameters for r in RULES)
OWN = Parameters(global_batch_size=256, schedule=Constant(learning_rate=0.3))


def ran(parameters: Parameters, outcome: Outcome = Outcome.REACHED, *, steps: int = 20) -> TrialResult:
    values = [0.9] * (steps // 10) + ([0.05] if outcome is Outcome.REACHED else [0.5])
    return replace(trial(0, values, outcome), parameters=parameters)


def outcomes(*results: TrialResult, recommended: Parameters | None, seconds: bool = False) -> dict[str, RuleOutcome]:
    found = rule_outcomes(
        RULES,
        [None, 77.0, None],
        results,
        replace(OBJECTIVE, minimize="seconds") if seconds else OBJECTIVE,
        recommended=recommended,
        step_seconds=(lambda size: size / 64) if seconds else None,
    )
    return {o.rule: o for o in found}


def test_costs_are_relative_to_the_recommendation() -> None:
    found = outcomes(ran(KEEP, steps=60), ran(SQRT, steps=40), ran(OWN, steps=20), recommended=OWN)
    assert found["model"].is_recommended
    assert found["model"].relative_cost == 1.0
    assert found["keep"].outcome is Outcome.REACHED
    assert found["keep"].relative_cost == pytest.approx(found["keep"].cost / found["model"].cost)
    assert 2.5 < found["keep"].relative_cost < 3.5
    assert found["sqrt"].relative_cost < found["keep"].relative_cost


def test_seconds_are_those_of_the_profile() -> None:
    found = outcomes(ran(KEEP, steps=60), ran(OWN, steps=20), recommended=KEEP, seconds=True)
    # A step of the four times larger batch takes four times as long.
    assert found["model"].relative_cost == pytest.approx(20 * 4 / 60, rel=0.2)
    assert found["keep"].seconds_to_target == pytest.approx(found["keep"].cost)


def test_the_median_of_several_runs_counts() -> None:
    found = outcomes(*(ran(KEEP, steps=s) for s in (20, 40, 90)), recommended=KEEP)
    assert found["keep"].runs == 3
    assert 30 < found["keep"].cost <= 40


def test_a_rule_that_misses_and_one_that_was_not_run() -> None:
    found = outcomes(ran(SQRT, Outcome.DIVERGED, steps=20), ran(KEEP), recommended=KEEP)
    assert found["sqrt"].outcome is Outcome.DIVERGED
    assert (found["sqrt"].cost, found["sqrt"].spent, found["sqrt"].relative_cost) == (None, 20.0, None)
    assert (found["linear"].outcome, found["linear"].expected_cost, found["linear"].runs) == (NOT_RUN, 77.0, 0)
    assert (found["model"].outcome, found["model"].parameters) == (NOT_RUN, None)


def test_the_model_may_have_missed() -> None:
    found = outcomes(ran(OWN, Outcome.CAPPED), recommended=None)
    assert found["model"].outcome is Outcome.CAPPED
    assert found["model"].parameters == OWN


def test_interrupted_and_crashed_trials_are_no_outcome() -> None:
    found = outcomes(ran(KEEP, Outcome.INTERRUPTED), ran(SQRT, Outcome.CRASHED), recommended=None)
    assert found["keep"].outcome == found["sqrt"].outcome == NOT_RUN
    assert found["keep"].spent == pytest.approx(ran(KEEP, Outcome.INTERRUPTED).measurements[-1].step), "it was begun"
    assert found["linear"].spent is None


def test_a_range_trial_at_the_parameters_of_a_rule_is_no_run_of_it() -> None:
    short = replace(ran(LINEAR, Outcome.CAPPED, steps=10), why=RANGE)
    found = outcomes(short, ran(KEEP), recommended=KEEP)
    assert (found["linear"].outcome, found["linear"].runs, found["linear"].expected_cost) == (NOT_RUN, 0, 77.0)
    assert found["linear"].spent is None
    assert (found["model"].outcome, found["model"].parameters) == (NOT_RUN, None)


def test_of_a_model_without_a_hit_the_longest_trial_is_told_with_its_own_runs() -> None:
    longer = replace(OWN, schedule=Constant(learning_rate=0.25))
    capped = [ran(OWN, Outcome.CAPPED, steps=20), *[ran(longer, Outcome.CAPPED, steps=s) for s in (30, 50)]]
    found = outcomes(*capped, recommended=None)
    assert (found["model"].parameters, found["model"].runs, found["model"].spent) == (longer, 2, 50.0)
