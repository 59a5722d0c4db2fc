from __future__ import annotations

import dataclasses
import math

import pytest
from matplotlib.figure import Figure

from scalesearch.core.curve import CurvePoint, ScalingCurve
from scalesearch.core.parameters import Parameters
from scalesearch.core.recommend import findings
from scalesearch.core.results import Cost, Measurement, Objective, Outcome, Reached, TrialResult
from scalesearch.core.schedule import Constant
from scalesearch.report.figures import (
    budget_use,
    figures,
    learning_curves,
    steps_to_target,
    trials_by_batch_and_rate,
)
from scalesearch.report.words import duration

OBJECTIVE = Objective(metric="val/classification_error", direction="minimize", target=0.1, minimize="seconds")


def trial(
    number: int,
    batch: int,
    *,
    steps: float | None = None,
    outcome: Outcome = Outcome.CAPPED,
    rate: float = 0.1,
    errors: tuple[float, ...] = (0.9, 0.5, 0.2),
    is_baseline: bool = False,
) -> TrialResult:
    reached = None
    if steps is not None:
        outcome = Outcome.REACHED
        reached = Reached(
            steps=steps, examples=batch * steps, seconds=steps / 50, evaluation_step=1, evaluation_examples=1
        )
    return TrialResult(
        number=number,
        parameters=Parameters(global_batch_size=batch, schedule=Constant(learning_rate=rate)),
        seed=0,
        outcome=outcome,
        reason="",
        cost=Cost(examples=1000, device_seconds=10.0),
        reached=reached,
        measurements=tuple(
            Measurement(
                step=i, examples=i * batch, train_seconds=i, elapsed_seconds=i, train_loss=1.0,
                metrics={"val/classification_error": error},
            )
            for i, error in enumerate(errors)
        ),
        is_baseline=is_baseline,
    )  # fmt: skip


TRIALS = [
    trial(0, 64, steps=800, is_baseline=True),
    trial(1, 64, steps=400, rate=0.2),
    trial(2, 256, steps=200, rate=0.8),
    trial(3, 512, outcome=Outcome.DIVERGED, rate=5.0, errors=(0.9, math.nan)),
]


def drawn_lines(figure: Figure) -> dict[str, tuple[list[float], list[float]]]:
    return {str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata())) for line in figure.axes[0].lines}


def texts(figure: Figure) -> list[str]:
    legend = figure.axes[0].get_legend()
    labels = [text.get_text() for text in legend.get_texts()] if legend else []
    return labels + [text.get_text() for text in figure.axes[0].texts]


def test_steps_to_target_shows_all_trials_the_best_and_perfect_scaling() -> None:
    lines = drawn_lines(steps_to_target(TRIALS))
    assert lines["a trial"] == ([64, 64, 256], [800, 400, 200])
    assert lines["best of its batch size"] == ([64, 256], [400, 200])
    assert lines["perfect scaling: twice the batch, half the steps"] == ([64, 256], [400, 100])


def test_the_fitted_curve_and_its_critical_batch_size_are_drawn() -> None:
    lines = drawn_lines(steps_to_target(TRIALS, curve=ScalingCurve(s_min=100, b_crit=128, residual=0.0)))
    batches, steps = lines["fitted curve"]
    assert (batches[0], steps[0]) == (64, pytest.approx(300))
    assert lines["critical batch size: 128"][0] == [128, 128]


def test_outcomes_costs_baseline_best_and_rules_are_told_apart() -> None:
    figure = trials_by_batch_and_rate(TRIALS, OBJECTIVE, best=TRIALS[2])
    said = texts(figure)
    for text in ("reached the target (3)", "diverged (1)", "baseline", "best", duration(4.0)):
        assert text in said
    lines = drawn_lines(figure)
    for label, power in (("linear scaling rule", 1.0), ("square root rule", 0.5)):
        (low, high), (low_rate, high_rate) = lines[label]
        assert high_rate / low_rate == pytest.approx((high / low) ** power)
        assert low_rate == pytest.approx(0.1 * (low / 64) ** power)


def test_outcomes_differ_in_more_than_colour() -> None:
    results = [trial(i, 64, outcome=outcome) for i, outcome in enumerate(Outcome)]
    figure = trials_by_batch_and_rate(results, OBJECTIVE)
    shapes = {points.get_paths()[0].vertices.tobytes() for points in figure.axes[0].collections}
    assert len(shapes) == len(Outcome)


def test_learning_curves_leave_out_what_a_logarithmic_axis_cannot_show() -> None:
    figure = learning_curves(TRIALS, OBJECTIVE, best=TRIALS[2])
    lines = drawn_lines(figure)
    assert lines["best trial"] == ([256, 512], [0.5, 0.2])
    assert list(lines["target 0.1"][1]) == [0.1, 0.1]
    assert figure.axes[0].get_ylabel() == "classification error (validation)"


def test_one_exploded_trial_does_not_squash_the_others() -> None:
    usual = [trial(i, 64) for i in range(30)]
    figure = learning_curves([*usual, trial(30, 64, errors=(0.9, 1e9))], OBJECTIVE)
    assert figure.axes[0].get_ylim()[1] < 1.0


def test_the_budget_bars_sum_to_what_was_spent() -> None:
    figure = budget_use(TRIALS)
    assert sorted(bar.get_width() for bar in figure.axes[0].patches) == [10.0, 30.0]
    assert "  75%, 3 trials" in texts(figure)
    assert "40 in all" in figure.axes[0].get_xlabel()


def test_only_what_the_results_suffice_for_is_drawn() -> None:
    assert figures([], OBJECTIVE) == {}
    crashed = dataclasses.replace(
        trial(0, 64, outcome=Outcome.CRASHED, errors=()), cost=Cost(examples=0, device_seconds=0.0)
    )
    assert set(figures([crashed], OBJECTIVE)) == {"trials_by_batch_and_rate"}
    assert set(figures(TRIALS, OBJECTIVE)) == {
        "steps_to_target",
        "trials_by_batch_and_rate",
        "learning_curves",
        "budget_use",
    }


@pytest.mark.parametrize("minimize", ["seconds", "steps", "examples", "metric"])
@pytest.mark.parametrize("number_of_trials", [1, 4])
def test_every_figure_can_be_rendered(minimize: str, number_of_trials: int) -> None:
    objective = dataclasses.replace(OBJECTIVE, minimize=minimize, target=None if minimize == "metric" else 0.1)
    for figure in figures(TRIALS[:number_of_trials], objective, best=TRIALS[0]).values():
        figure.canvas.draw()


def test_of_a_curve_the_leaders_are_drawn_with_their_intervals_and_the_rest_as_bounds() -> None:
    points = {
        batch: CurvePoint(parameters=result.parameters, steps=steps, interval=(0.9 * steps, 1.1 * steps))
        for batch, result, steps in ((64, TRIALS[1], 420.0), (256, TRIALS[2], 210.0))
    }
    found = findings(TRIALS, OBJECTIVE, curve_sizes=(64, 256, 512, 1024), points=points)
    figure = steps_to_target(TRIALS, batch_sizes=found.batch_sizes)
    [bars] = figure.axes[0].containers
    line, caps, _ = bars.lines
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([64, 256], [420.0, 210.0])
    assert [list(c.get_ydata()) for c in caps] == [[378.0, 189.0], [pytest.approx(462.0), pytest.approx(231.0)]]
    drawn = drawn_lines(figure)
    assert drawn["not reached within so many steps"] == ([512], [1000 / 512])
    assert drawn["perfect scaling: twice the batch, half the steps"][1] == [420.0, 105.0]
    assert "best of its batch size" not in drawn
