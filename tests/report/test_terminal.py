from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from scalesearch.core.budget import Budget, Spent
from scalesearch.core.recommend import Findings, findings
from scalesearch.core.results import OUTCOME_MEANING, Goal, Objective, Outcome
from scalesearch.report.keras_code import keras_code
from scalesearch.report.terminal import (
    batch_size_rows,
    outcome_counts,
    print_findings,
    recommendation_lines,
    spending,
)
from scalesearch.report.words import duration

from .trials import AT_THE_END, METRIC, OBJECTIVE, TRAIN_EXAMPLES, along_a_curve, found, of_curve, trial

BASELINE_LINE = "your baseline (global batch 16, learning rate 0.25)"


def lines(findings: Findings, *, replicas: int = 2) -> list[str]:
    return list(recommendation_lines(findings, replicas=replicas, train_examples=TRAIN_EXAMPLES))


def printed(findings: Findings, *, terminal: bool = False, width: int = 80) -> str:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=width, color_system=None)
    print_findings(console, findings, replicas=2, train_examples=TRAIN_EXAMPLES, optimizer="momentum")
    return text.getvalue()


def test_a_recommendation_says_what_to_set_and_what_it_buys() -> None:
    first, second, *_ = lines(found(trial(3), trial(4, batch=128, values=(0.9, 0.9, 0.5, 0.0))))
    assert first == (
        "global batch 64 (32 per replica), learning rate 0.28, momentum 0.9, "
        "× 0.1 after 2.4 epochs (132,000 examples, step 2,063)"
    )
    assert second == "reaches val/classification_error < 0.1 in 1.9 s, 19 steps, 1,209 examples (1 run)"


@pytest.mark.parametrize(
    ("goal", "compared"),
    [
        ("seconds", "3.0 s. That is 3.0 × faster for 2.7 × the examples"),
        ("steps", "30 steps. That is 3.0 × fewer steps for 2.7 × the examples"),
    ],
)
def test_it_is_compared_with_the_baseline(goal: Goal, compared: str) -> None:
    objective = Objective(metric=METRIC, direction="minimize", target=0.1, minimize=goal)
    baseline = trial(0, batch=16, values=(0.9, 0.9, 0.9, 0.1, 0.0), is_baseline=True)
    best = trial(1, batch=128, values=(0.9, 0.1, 0.0))
    assert lines(found(baseline, best, objective=objective))[2] == f"{BASELINE_LINE}: {compared}"


def test_fewer_examples_are_not_paid_for_in_examples() -> None:
    objective = Objective(metric=METRIC, direction="minimize", target=0.1, minimize="examples")
    baseline = trial(0, batch=16, values=(0.9, 0.9, 0.9, 0.1, 0.0), is_baseline=True)
    text = lines(found(baseline, trial(1, batch=8, values=(0.9, 0.1, 0.0)), objective=objective))
    assert text[2] == f"{BASELINE_LINE}: 480 examples. That is 6.0 × fewer examples"


def test_the_baseline_may_be_the_best() -> None:
    assert lines(found(trial(0, batch=16, is_baseline=True), trial(1, Outcome.CAPPED)))[2] == (
        f"that is {BASELINE_LINE}: nothing better was found"
    )


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.REACHED])
def test_a_baseline_that_did_not_reach_the_target_says_why(outcome: Outcome) -> None:
    baseline = trial(0, outcome, batch=16, is_baseline=True)
    assert lines(found(baseline, trial(1)))[2] == f"{BASELINE_LINE}: {OUTCOME_MEANING[outcome]}"


def test_test_metrics_are_shown_with_and_without_a_baseline() -> None:
    best = trial(1, test_metrics={"test/loss": 3.0, "test/classification_error": 0.0612})
    assert "test/classification_error 0.0612" in lines(found(best))
    baseline = trial(
        0, values=(0.9, 0.9, 0.5, 0.0), is_baseline=True, batch=16, test_metrics={"test/classification_error": 0.07}
    )
    text = lines(found(baseline, best))
    assert "test/classification_error 0.0612 against 0.07" in text
    assert not any("test/loss" in line for line in text)


def test_edges_of_the_space_are_said() -> None:
    edge = "the optimum lies at `search.learning_rate.high = 1`: the space is too small"
    assert f"edge of the space: {edge}" in lines(replace(found(trial(0)), edges=(edge,)))


def test_what_is_not_established_is_said() -> None:
    assert (
        "not established: the recommendation was run once: a single best run is partly luck, so expect somewhat more"
    ) in lines(found(trial(0)))


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.REACHED])
def test_nothing_reached_recommends_nothing_and_shows_the_closest(outcome: Outcome) -> None:
    findings = found(trial(0, outcome), trial(1, Outcome.CRASHED, []))
    assert lines(findings) == [
        "none: no trial reached val/classification_error < 0.1",
        f"the closest was trial 0 (global batch 64, learning rate 0.25): {METRIC} 0.12; {OUTCOME_MEANING[outcome]}",
        "give it more budget, a longer `trial.max_examples`, or an easier target",
    ]
    text = printed(findings)
    assert "To paste" not in text
    assert "MirroredStrategy" not in text


def test_the_closest_may_have_met_the_target_once() -> None:
    once = trial(0, Outcome.EXHAUSTED, (0.9, 0.5, 0.05, 0.5))
    assert (
        f"{METRIC} 0.05, which no median of three evaluations was; {OUTCOME_MEANING[Outcome.EXHAUSTED]}"
        in lines(found(once))[1]
    )


def test_no_trials_at_all() -> None:
    assert lines(found()) == ["none: no trial reached val/classification_error < 0.1"]
    assert "Best per global batch size" not in printed(found())


def test_a_target_that_is_not_known_yet() -> None:
    objective = Objective(metric=METRIC, direction="minimize", target=None, minimize="seconds")
    text = lines(found(trial(0, Outcome.INTERRUPTED, is_baseline=True), objective=objective))
    assert text[0] == "none: no trial has run its full length yet, so nothing can be compared"
    assert "easier target" not in "\n".join(text)


def test_a_study_of_the_metric_shows_it() -> None:
    findings = found(
        trial(0, Outcome.EXHAUSTED, (0.9, 0.3), batch=16, is_baseline=True),
        trial(1, Outcome.EXHAUSTED, (0.9, 0.2)),
        trial(2, Outcome.DIVERGED, (0.9, 0.1), batch=128),
        objective=AT_THE_END,
    )
    assert lines(findings)[1:3] == [
        "holds val/classification_error 0.2 at its full length (1 run)",
        f"{BASELINE_LINE}: 0.3",
    ]
    assert not any("regimes" in line for line in lines(findings))
    assert list(batch_size_rows(findings)) == [
        ("global batch", "learning rate", METRIC, "trials"),
        ("16", "0.25", "0.3", "1"),
        ("64", "0.26", "0.2", "1"),
        ("128", "–", "–", "1"),
    ]


def test_the_best_of_each_batch_size() -> None:
    findings = found(trial(0, batch=2048), trial(1, batch=2048, values=(0.9, 0.0)), trial(2, Outcome.CAPPED, batch=16))
    assert list(batch_size_rows(findings)) == [
        ("global batch", "learning rate", "steps", "examples", "seconds", "reached / trials"),
        ("16", "–", "–", "–", "–", "0 / 1"),
        ("2,048", "0.26", "9", "18.2k", "0.89 s", "2 / 2"),
    ]


def test_a_curve_shows_every_batch_size_with_its_leader() -> None:
    findings = of_curve()
    assert list(batch_size_rows(findings)) == [
        ("global batch", "learning rate", "decays after", "steps", "90 %", "examples", "seconds", "runs"),
        ("16", "0.29", "–", "19", "16–22", "304", "1.9 s", "once"),
        ("64", "0.25", "–", "20", "18–23", "1,280", "2.0 s", "3, 1 missed"),
        ("128", "–", "–", "not reached", "within 20", "–", "–", "1"),
        ("256", "–", "–", "out of memory", "–", "–", "–", "1"),
        ("512", "–", "–", "not tried", "–", "–", "–", "0"),
    ]
    assert "Steps to target at every global batch size" in printed(findings)


def regimes(s_min: float, b_crit: float, batches: Sequence[int]) -> list[str]:
    """The lines about regimes for trials along a curve."""
    text = lines(found(*along_a_curve(s_min, b_crit, batches)))
    return [t for t in text if "batch sizes, " in t or "critical" in t]


def test_regimes_within_the_batch_sizes_measured() -> None:
    assert regimes(1000, 128, [2**k for k in range(2, 13)]) == [
        "perfect scaling up to about 14, diminishing returns to about 1,152, almost nothing gained beyond "
        "(from 11 batch sizes, 4 to 4,096)",
        "critical batch size 128: steps to target ≈ 1,000 · (1 + 128 / batch), to 0%",
    ]


def test_an_end_of_diminishing_returns_beyond_the_batch_sizes_is_not_claimed() -> None:
    first, second = regimes(1000, 128, [4, 16, 64, 256])
    assert first == (
        "perfect scaling up to about 14, diminishing returns beyond, whose end was not seen up to 256 "
        "(from 4 batch sizes, 4 to 256)"
    )
    assert second.startswith("critical batch size 128: ")


def test_a_critical_batch_size_beyond_the_batch_sizes_is_not_claimed() -> None:
    assert regimes(100, 1000, [8, 16, 32, 128, 512]) == [
        "perfect scaling up to about 111, diminishing returns beyond, whose end was not seen up to 512 "
        "(from 5 batch sizes, 8 to 512)"
    ]


def test_perfect_scaling_throughout_has_no_end() -> None:
    assert regimes(1, 100_000, [8, 16, 32, 64]) == [
        "perfect scaling throughout: its end was not seen up to batch 64 (from 4 batch sizes, 8 to 64)"
    ]


def test_no_scaling_at_all() -> None:
    assert regimes(5000, 1, [64, 128, 256, 512]) == [
        "nothing gained by larger batches: no scaling was seen from batch 64 on (from 4 batch sizes, 64 to 512)"
    ]


def test_perfect_scaling_below_the_batch_sizes_is_not_claimed() -> None:
    first, _ = regimes(1000, 128, [32, 64, 512, 4096])
    assert first.startswith("no perfect scaling seen from batch 32 on, diminishing returns to about 1,152, ")


def test_too_few_batch_sizes_have_no_regimes() -> None:
    text = lines(found(*along_a_curve(100, 50, [8, 16, 32]), trial(9, Outcome.CAPPED)))
    assert "regimes unknown: they need 4 batch sizes that reached the target, there are 3" in text


FULL = found(
    *along_a_curve(123_456, 3210, [2**k for k in range(17)]),
    trial(30, Outcome.CAPPED, batch=131_072),
    trial(31, batch=16, values=(0.9, 0.0), steps_between=10_000_000, is_baseline=True),
)


def test_nothing_is_wrapped_or_cut_where_there_is_no_terminal() -> None:
    text = printed(FULL)
    for line in lines(FULL):
        assert f"  {line}\n" in text
    assert "…" not in text
    assert FULL.recommendation is not None
    code = keras_code(FULL.recommendation.parameters, optimizer="momentum", replicas=2)
    assert f"To paste:\n{code}\n" in text
    table = text[text.index("Best per") : text.index("To paste")].splitlines()
    assert len([row for row in table if "/" in row]) == 1 + len(FULL.batch_sizes)


def test_the_table_of_a_usual_study_fits_80_columns() -> None:
    usual = found(*along_a_curve(1234, 567, [2**k for k in range(3, 15)]), trial(20, Outcome.CAPPED, batch=32_768))
    text = printed(usual)
    table = text[text.index("Best per") : text.index("To paste")].splitlines()
    assert all(len(row.rstrip()) <= 80 for row in table)


@pytest.mark.parametrize("width", [80, 120])
def test_on_a_terminal_lines_fit_it_but_code_is_never_wrapped(width: int) -> None:
    text = printed(FULL, terminal=True, width=width)
    before, code = text.split("To paste:\n")
    assert all(len(line.rstrip()) <= width for line in before.splitlines())
    assert FULL.recommendation is not None
    expected = keras_code(FULL.recommendation.parameters, optimizer="momentum", replicas=2).splitlines()
    assert [line.rstrip() for line in code.splitlines()[: len(expected)]] == expected


def test_the_recommended_batch_size_stands_out() -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=100, color_system="standard")
    findings = found(trial(0, batch=32), trial(1, batch=512, values=(0.9, 0.0)))
    print_findings(console, findings, replicas=2, train_examples=TRAIN_EXAMPLES, optimizer="momentum")
    rows = {row.split()[-1]: row for row in text.getvalue().splitlines() if "1 / 1" in row}
    bold = [row for row in rows.values() if "\x1b[1m" in row]
    assert len(bold) == 1
    assert "512" in bold[0]


def test_markup_in_names_is_shown_as_it_is() -> None:
    objective = Objective(metric="val/[bold]", direction="minimize", target=0.1, minimize="seconds")
    assert "no trial reached val/[bold] < 0.1" in printed(found(objective=objective))


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_can_be_printed(outcome: Outcome) -> None:
    for result in (found(trial(0, outcome)), found(trial(0, outcome, is_baseline=True), trial(1))):
        assert "Recommendation for 2 replicas" in printed(result)


def test_outcome_counts_are_in_the_order_of_outcomes() -> None:
    counts = {Outcome.CRASHED: 1, Outcome.OUT_OF_MEMORY: 2, Outcome.REACHED: 9, Outcome.CAPPED: 0}
    assert outcome_counts(counts) == "9 reached, 2 out of memory, 1 crashed"
    assert outcome_counts({}) == ""


def test_spending_names_limits_first() -> None:
    spent = Spent(examples=131_920, epochs=2.5, device_seconds=600, wall_clock_seconds=301, trials=7)
    assert spending(Budget(wall_clock_seconds=600, epochs=40), spent) == (
        "2.5 of 40 epochs; 5m 01s of 10m 00s wall clock; 132k examples; 10m 00s device time; 7 trials"
    )
    assert spending(Budget(), spent) == "132k examples; 10m 00s device time; 5m 01s wall clock; 7 trials"


def test_profiled_times_are_told_with_what_the_run_took() -> None:
    profiled = findings([trial(3)], OBJECTIVE, step_seconds=lambda batch: 0.001)
    lines = list(recommendation_lines(profiled, replicas=2, train_examples=TRAIN_EXAMPLES))
    reached = profiled.results[0].reached
    assert reached is not None
    took = 0.1 * reached.evaluation_step
    assert (
        f"times are steps × the profiled 1 ms of a step, as compared; trial 3 itself trained {duration(took)}" in lines
    )
    measured = findings([trial(3)], OBJECTIVE)
    assert not any(
        "profiled" in line for line in recommendation_lines(measured, replicas=2, train_examples=TRAIN_EXAMPLES)
    )
