from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scalesearch.core.evaluation import EvaluationPlan
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import crossing
from scalesearch.core.schedule import Constant
from scalesearch.core.simulate import (
    Decays,
    SimulatedTrainer,
    SimulatedWorkload,
    true_cost,
    true_curve,
    true_optimum,
)
from scalesearch.core.simulate.trajectory import Pieces, first_crossing
from scalesearch.core.simulate.workload import LearningRateMap, Sharpening, StepTime
from scalesearch.errors import WorkloadError
from tests.core.simulate.workloads import SMALL

BATCH_SIZES = (1, 2, 4, 8, 32, 64, 128, 2048, 4096)


@pytest.mark.parametrize("momentum", [None, 0.9])
@pytest.mark.parametrize("batch", [4, 256])
def test_no_random_point_is_better(batch: int, momentum: float | None) -> None:
    (optimum,) = true_curve(SMALL, (batch,), momentum=momentum)
    random, runs = np.random.default_rng(0), 2000
    rates = optimum.parameters.learning_rate * 4.0 ** random.uniform(-1, 1, size=runs)
    first = 1 + np.round(optimum.steps * random.uniform(0.1, 1.2, size=runs)).astype(int)
    second = 1 + np.round(optimum.steps * random.uniform(0.0, 1.0, size=runs)).astype(int)
    random_points = Pieces(np.stack([rates, 0.1 * rates, 0.01 * rates]), np.stack([first, second, 4 * first]))
    steps, _ = first_crossing(SMALL, random_points, batch=batch, momentum=momentum or 0.0, loss=SMALL.target)
    assert 0.8 * steps.min() < optimum.steps < 1.001 * steps.min()


@pytest.mark.parametrize(
    ("workload", "batch_sizes"),
    [(SMALL, BATCH_SIZES), (replace(SMALL, sharpening=Sharpening(factor=1.5, time=50.0)), (1, 2, 2048, 4096))],
    ids=["plain", "sharpening"],
)
def test_steps_scale_perfectly_and_then_not_at_all(workload: SimulatedWorkload, batch_sizes: tuple[int, ...]) -> None:
    steps = np.array([o.steps for o in true_curve(workload, batch_sizes)])
    # A larger batch never needs more steps nor, but for whole numbers of steps, fewer examples.
    assert np.all(np.diff(steps) < 1e-3 * steps[1:])
    assert np.all(np.diff(steps * batch_sizes) > -0.02 * steps[1:] * batch_sizes[1:])
    assert steps[0] / steps[1] == pytest.approx(2.0, abs=0.05)
    assert steps[-2] / steps[-1] == pytest.approx(1.0, abs=0.05)


def test_a_map_of_the_learning_rate_changes_the_best_rate_but_not_the_cost() -> None:
    mapped = replace(SMALL, learning_rate=LearningRateMap(scale=0.1, exponent=0.5, batch_exponent=0.5))
    plain, other = (true_curve(w, (4, 64)) for w in (SMALL, mapped))
    for a, b in zip(plain, other, strict=True):
        assert b.steps == pytest.approx(a.steps, rel=1e-6)
        acting = mapped.learning_rate(b.parameters.learning_rate, b.parameters.global_batch_size)
        assert acting == pytest.approx(a.parameters.learning_rate, rel=1e-6)


def test_decays_pay() -> None:
    (none,), (one,), (two,) = (true_curve(SMALL, (4,), decays=Decays(number=n)) for n in (0, 1, 2))
    assert isinstance(none.parameters.schedule, Constant)
    assert two.steps <= 1.001 * one.steps < 0.8 * none.steps


def test_the_true_cost_is_what_a_run_without_noise_measures() -> None:
    (optimum,) = true_curve(SMALL, (64,))
    plan = EvaluationPlan(
        objective=SMALL.objective("seconds"),
        boundaries=optimum.parameters.schedule.boundaries,
        first_examples=64,
        max_interval_examples=64,
        end_examples=int(2 * optimum.examples),
    )
    run = tuple(SimulatedTrainer(SMALL).train(optimum.parameters, seed=0, plan=plan))
    reached = crossing(run, plan.objective)
    assert reached is not None
    # Interpolated between neighbouring steps: linearly by the one, in the logarithm by the other.
    assert reached.seconds == pytest.approx(true_cost(SMALL, optimum.parameters, "seconds"), rel=1e-3)
    assert reached.steps == pytest.approx(optimum.steps, rel=1e-3)


def test_the_optimum_is_the_cheapest_batch_size_for_the_goal() -> None:
    workload = replace(SMALL, step_time=StepTime(saturation_batch=64.0, sync_seconds=0.0))
    curve = true_curve(workload, BATCH_SIZES)
    for goal in ("seconds", "steps", "examples"):
        best = true_optimum(workload, BATCH_SIZES, goal=goal)
        assert best.cost(goal) == min(o.cost(goal) for o in curve)
    # Free up to saturation and in proportion beyond, so the kink is the best place.
    assert true_optimum(workload, BATCH_SIZES, goal="seconds").parameters.global_batch_size == 64


def test_a_miss_costs_infinitely_much() -> None:
    parameters = Parameters(global_batch_size=1, schedule=Constant(learning_rate=1.9))
    assert true_cost(SMALL, parameters, "examples") == np.inf


def test_a_target_out_of_reach_is_refused() -> None:
    with pytest.raises(WorkloadError, match="the target 1e-12 is not reached within"):
        true_curve(replace(SMALL, target=1e-12), (1,))
