from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from scalesearch.core.results import Measurement, Outcome
from scalesearch.core.stopping import verdict

from .trials import METRIC, OBJECTIVE, measurement

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


def test_a_slow_climb_is_divergence_with_its_second_measurement_in_a_row() -> None:
    ended = first_verdict(run([1.0, 0.5, 0.4, 0.9, 1.36, 1.5, 1.9]))  # half of the way back from 0.4 to 2.3 is 1.35
    assert ended is not None
    assert ended[:2] == (6, Outcome.DIVERGED)
    assert "training loss climbed from 0.4 to 1.5" in ended[2]


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
