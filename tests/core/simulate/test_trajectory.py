from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scalesearch.core.parameters import Parameters
from scalesearch.core.schedule import Constant, Linear, Piecewise, Schedule, rates
from scalesearch.core.simulate.quadratic import dynamics
from scalesearch.core.simulate.trajectory import Pieces, Trajectory, first_crossing, pieces_of
from scalesearch.core.simulate.workload import LearningRateMap, Sharpening, SimulatedWorkload
from tests.core.simulate.workloads import SMALL

BATCH = 16
STEPS = 600
SCHEDULES = [
    Constant(learning_rate=0.5),
    Piecewise(learning_rate=1.0, decay_factor=0.1, boundaries=(200 * BATCH + 1, 300 * BATCH)),
    Linear(learning_rate=1.0, decay_examples=250 * BATCH - 3, end_factor=0.01),
]


def losses_step_by_step(workload: SimulatedWorkload, schedule: Schedule, momentum: float, steps: int) -> list[float]:
    """The expected loss after 0, 1, 2, … steps, each with its own learning rate."""
    modes = workload.modes
    acting = workload.learning_rate(schedule.learning_rate, BATCH) / schedule.learning_rate
    moments, tau, losses = modes.initial_moments(heavy_ball=bool(momentum)), 0.0, [workload.initial_loss]
    for rate in acting * rates(schedule, np.arange(steps) * BATCH):
        tau += rate / (1 - momentum)
        sharper = float(workload.sharpening.at(np.array(tau)))
        one_step = dynamics(modes, np.array(rate * sharper), batch=BATCH, momentum=momentum)
        moments = one_step.advance(moments, np.array(1))
        losses.append(float(modes.loss(moments)))
    return losses


def losses(workload: SimulatedWorkload, schedule: Schedule, momentum: float, at: list[int]) -> list[float]:
    parameters = Parameters(global_batch_size=BATCH, schedule=schedule, momentum=momentum or None)
    trajectory = Trajectory(workload, parameters, end_step=STEPS, speed=1.0)
    return [trajectory.loss(step) for step in at]


def crossing(workload: SimulatedWorkload, schedule: Schedule, momentum: float, level: float) -> float:
    pieces = pieces_of(workload, schedule, batch=BATCH, momentum=momentum, end_step=STEPS)
    one_run = Pieces(pieces.rates[:, None], pieces.steps[:, None])
    return float(first_crossing(workload, one_run, batch=BATCH, momentum=momentum, loss=level)[0][0])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.kind)
def test_the_loss_is_that_of_the_recursion(schedule: Schedule, momentum: float) -> None:
    schedule = replace(schedule, learning_rate=schedule.learning_rate * (1 - momentum))
    at = [0, 1, 30, 200, 201, 202, 250, 299, 300, 301, 450, STEPS]
    expected = np.array(losses_step_by_step(SMALL, schedule, momentum, STEPS))[at]
    # Constant pieces are exact; PIECES says how exact a linear decay is.
    tolerance = 0.01 if schedule.kind == "linear" else 1e-9
    np.testing.assert_allclose(losses(SMALL, schedule, momentum, at), expected, rtol=tolerance)


def test_a_short_linear_decay_is_exact() -> None:
    schedule = Linear(learning_rate=1.0, decay_examples=50 * BATCH, end_factor=0.01)
    expected = np.array(losses_step_by_step(SMALL, schedule, 0.0, 100))[[20, 50, 100]]
    np.testing.assert_allclose(losses(SMALL, schedule, 0.0, [20, 50, 100]), expected, rtol=1e-9)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.kind)
def test_sharpening_is_within_two_percent_of_the_recursion(schedule: Schedule) -> None:
    sharpens = replace(SMALL, sharpening=Sharpening(factor=1.9, time=30.0))
    at = [10, 100, 200, 250, 300, STEPS]
    expected = np.array(losses_step_by_step(sharpens, schedule, 0.0, STEPS))[at]
    np.testing.assert_allclose(losses(sharpens, schedule, 0.0, at), expected, rtol=0.02)
    plain = np.array(losses(SMALL, schedule, 0.0, at))
    assert np.abs(np.log(expected / plain)).max() > 0.05


def test_a_learning_rate_map_changes_the_peak_and_keeps_the_decays() -> None:
    mapped = replace(SMALL, learning_rate=LearningRateMap(scale=0.5, exponent=0.5, batch_exponent=0.5))
    schedule = Piecewise(learning_rate=0.25, decay_factor=0.1, boundaries=(100 * BATCH,))
    acting = Piecewise(learning_rate=0.5 * 0.5 * 0.5, decay_factor=0.1, boundaries=(100 * BATCH,))
    assert losses(mapped, schedule, 0.0, [50, 300]) == pytest.approx(losses(SMALL, acting, 0.0, [50, 300]))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("level", [3.0, 1.0, 0.5, 0.18])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.kind)
def test_the_first_crossing_is_that_of_the_recursion(schedule: Schedule, level: float, momentum: float) -> None:
    schedule = replace(schedule, learning_rate=schedule.learning_rate * (1 - momentum))
    by_step = losses_step_by_step(SMALL, schedule, momentum, STEPS)
    below = [i for i, loss in enumerate(by_step) if loss < level]
    found = crossing(SMALL, schedule, momentum, level)
    if not below:
        assert found == np.inf
    elif schedule.kind == "linear":
        assert found == pytest.approx(below[0] - 0.5, rel=0.02, abs=0.5)
    else:
        assert max(below[0] - 1, 0) <= found <= below[0]


def test_each_of_many_runs_crosses_as_it_does_alone() -> None:
    pieces = [pieces_of(SMALL, s, batch=BATCH, momentum=0.0, end_step=STEPS) for s in SCHEDULES[1:2] * 3]
    scale = np.array([1.0, 0.3, 9.0])
    together = Pieces(
        np.stack([p.rates * s for p, s in zip(pieces, scale, strict=True)], axis=1),
        np.stack([p.steps for p in pieces], axis=1),
    )
    found, _ = first_crossing(SMALL, together, batch=BATCH, momentum=0.0, loss=0.4)
    alone = [
        crossing(SMALL, replace(SCHEDULES[1], learning_rate=SCHEDULES[1].learning_rate * s), 0.0, 0.4) for s in scale
    ]
    assert found.tolist() == pytest.approx(alone)
    assert np.isfinite(found).tolist() == [True, True, False]


def test_a_run_that_explodes_does_not_cross_even_if_a_decay_would_save_it() -> None:
    wild = Piecewise(learning_rate=6.0, decay_factor=0.1, boundaries=(20 * BATCH,))
    assert losses_step_by_step(SMALL, wild, 0.0, STEPS)[-1] < 1.0
    assert crossing(SMALL, wild, 0.0, 1.0) == np.inf


def test_speed_stretches_learning_but_not_the_schedule() -> None:
    parameters = Parameters(global_batch_size=BATCH, schedule=SCHEDULES[1])
    twice = Trajectory(SMALL, parameters, end_step=STEPS, speed=2.0)
    later = replace(SCHEDULES[1], boundaries=(402 * BATCH, 600 * BATCH))
    normal = losses_step_by_step(SMALL, later, 0.0, 1000)
    assert [twice.loss(100), twice.loss(201), twice.loss(400)] == pytest.approx([normal[200], normal[402], normal[800]])
