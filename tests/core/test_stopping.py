from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from scalesearch.core.results import Measurement, Outcome
from scalesearch.core.stopping import awaits_confirmation, verdict

from .trials import METRIC, OBJECTIVE, SMOOTHED, measurement

INITIAL_LOSS = 2.3


def run(train_losses: Sequence[float], *, val_losses: Sequence[float] | None = None) -> list[Measurement]:
    """A run that never reaches the target, by the training losses after step 0."""
    after = val_losses or [INITIAL_LOSS] * len(train_losses)
    return [
        measurement(0, 0.9, val_loss=INITIAL_LOSS),
        *(
            measurement(10 * i, 0.5, loss=train, val_loss=val)
            for i, (train, val) in enumerate(zip(train_losses, after, strict=True), start=1)
        ),
    ]


def first_verdict(measured: list[Measurement]) -> tuple[int, Outcome, str] | None:
    """The first verdict on a run as it unfolds, with the index of its measurement."""
    for i in range(len(measured)):
        if ended := verdict(measured[: i + 1], OBJECTIVE):
            return (i, *ended)
    return None


def test_reached_is_strictly_better_than_the_target() -> None:
    assert verdict([measurement(0, 0.9), measurement(10, 0.1)], OBJECTIVE) is None
    ended = verdict([measurement(0, 0.9), measurement(10, 0.0999)], OBJECTIVE)
    assert ended == (Outcome.REACHED, "val/classification_error 0.0999 is better than 0.1")


def test_reached_from_below() -> None:
    objective = replace(OBJECTIVE, direction="maximize", target=0.9)
    assert verdict([measurement(0, 0.1), measurement(10, 0.9)], objective) is None
    ended = verdict([measurement(0, 0.1), measurement(10, 0.91)], objective)
    assert ended is not None
    assert ended[0] is Outcome.REACHED


def test_reached_once_the_median_of_three_evaluations_is() -> None:
    run = [measurement(10 * i, v) for i, v in enumerate([0.9, 0.08, 0.3, 0.095, 0.2])]
    assert [verdict(run[:i], SMOOTHED) for i in (1, 2, 3)] == [None] * 3
    assert verdict(run[:4], SMOOTHED) == (
        Outcome.REACHED,
        "val/classification_error 0.095, the median of three evaluations, is better than 0.1",
    )


def test_an_evaluation_that_meets_the_target_is_to_be_confirmed() -> None:
    run = [measurement(10 * i, v) for i, v in enumerate([0.9, 0.08, 0.3, 0.1])]
    assert [awaits_confirmation(run[: i + 1], SMOOTHED) for i in range(4)] == [False, True, False, False]
    assert not awaits_confirmation(run[:2], OBJECTIVE)
    assert not awaits_confirmation(run[:2], replace(SMOOTHED, target=None))


def test_without_a_target_a_healthy_run_goes_on() -> None:
    assert verdict([measurement(0, 0.9), measurement(10, 0.0)], replace(OBJECTIVE, target=None)) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_training_loss_that_is_not_finite_is_divergence_at_once(bad: float) -> None:
    ended = first_verdict(run([1.0, bad, 1.0]))
    assert ended == (2, Outcome.DIVERGED, f"training loss is {bad} after 20 steps (1,280 examples)")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("at", [0, 2])
def test_any_metric_that_is_not_finite_is_divergence_at_once(bad: float, at: int) -> None:
    measured = run([1.0, 1.0, 1.0])
    measured[at] = replace(measured[at], metrics={METRIC: 0.05, "val/loss": bad})
    ended = first_verdict(measured)
    assert ended is not None
    assert ended[:2] == (at, Outcome.DIVERGED)
    assert f"val/loss is {bad}" in ended[2]


def test_the_unknown_training_loss_before_training_is_not_divergence() -> None:
    assert verdict(run([])[:1], OBJECTIVE) is None


def test_an_explosion_is_divergence_even_if_it_stays_finite() -> None:
    ended = first_verdict(run([1.0, 23.5]))
    assert ended is not None
    assert ended[:2] == (2, Outcome.DIVERGED)
    assert "training loss 23.5 is over 10 times that at initialisation" in ended[2]


def test_the_first_steps_may_explode_already() -> None:
    assert first_verdict(run([22.9])) is None
    ended = first_verdict(run([23.1]))
    assert ended is not None
    assert ended[:2] == (1, Outcome.DIVERGED)


@pytest.mark.parametrize("initial", [0.0, -5.0])
def test_without_a_positive_loss_at_first_only_what_is_not_finite_is_divergence(initial: float) -> None:
    """A loss that may be negative, such as a log density, has no scale to judge by."""
    measured = [measurement(0, 0.9, val_loss=initial), measurement(10, 0.5, loss=3.0), measurement(20, 0.5, loss=9.0)]
    assert first_verdict(measured) is None
    measured.append(measurement(30, 0.5, loss=math.nan))
    assert first_verdict(measured) is not None


def test_a_climb_that_lasts_as_long_as_the_run_before_it_is_divergence() -> None:
    up = [1.0, 0.4, 0.9, 1.36, 1.5, 1.9, 2.0, 1.36]  # half of the way back from 0.4 to 2.3 is 1.35, passed at step 40
    ended = first_verdict(run(up))
    assert ended == (8, Outcome.DIVERGED, "training loss climbed from 0.4 to 1.36 after 80 steps (5,120 examples)")
    assert first_verdict(run([*up[:6], 1.34, 2.0])) is None


def test_a_late_climb_is_divergence_after_a_hundred_steps() -> None:
    ended = first_verdict(run([0.4] * 500 + [2.0] * 30))
    assert ended is not None
    assert ended[0] == 511  # it began with measurement 501; ten steps each


def test_a_climb_at_the_largest_stable_learning_rate_is_not_divergence() -> None:
    """Measured: an MLP on digits, batch 1024, learning rate 1, momentum 0.9; it reached its target at step 37."""
    losses = [2.39, 2.12, 1.76, 1.32, 0.91, 0.74, 0.69, 0.6, 2.37, 3.56, 3.25, 2.24, 1.35, 1.31, 1.09, 0.85, 0.58, 0.43]
    start = measurement(0, 0.9, val_loss=2.375)
    assert first_verdict([start, *(measurement(i + 1, 0.5, loss=loss) for i, loss in enumerate(losses))]) is None


def test_one_spike_is_not_divergence() -> None:
    assert first_verdict(run([1.0, 0.4, 2.2, 0.4, 2.2, 0.4])) is None


def test_an_early_transient_that_recovers_is_not_divergence() -> None:
    assert first_verdict(run([2.2, 9.0, 20.0, 15.0, 6.0, 2.2, 1.8, 1.2, 0.9])) is None


def test_a_climb_before_there_was_progress_is_not_divergence() -> None:
    assert first_verdict(run([2.0, 1.4, 2.2, 2.25, 2.0, 1.6, 1.1])) is None


def test_a_healthy_noisy_run_is_not_divergence() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        healthy = 0.2 + 2.1 / (1.0 + 0.3 * np.arange(1, 81))
        noisy = healthy * np.exp(0.25 * random.standard_normal(80))
        assert first_verdict(run(noisy.tolist())) is None


def test_overfitting_is_not_divergence() -> None:
    """The training loss falls, the validation loss climbs above all that it ever was."""
    train = [1.0, 0.5, 0.1, 0.01, 0.001, 0.0001]
    assert first_verdict(run(train, val_losses=[1.0, 0.6, 1.0, 3.0, 10.0, 60.0])) is None


def test_a_diverged_run_does_not_reach_its_target() -> None:
    ended = verdict([measurement(0, 0.9), measurement(10, 0.05, loss=math.nan)], OBJECTIVE)
    assert ended is not None
    assert ended[0] is Outcome.DIVERGED
