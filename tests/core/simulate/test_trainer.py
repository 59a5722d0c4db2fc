from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from scalesearch.core.evaluation import EvaluationPlan
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Measurement, Outcome
from scalesearch.core.schedule import Constant, Piecewise
from scalesearch.core.simulate import SimulatedTrainer, SimulatedWorkload
from scalesearch.core.simulate.trajectory import Trajectory
from scalesearch.core.simulate.workload import GradientNoise, RunNoise, SaturatingMetric, StepTime
from scalesearch.core.stopping import verdict
from scalesearch.errors import SnapshotError
from tests.core.simulate.workloads import QUIET, SMALL

BATCH = 16
PARAMETERS = Parameters(
    global_batch_size=BATCH,
    schedule=Piecewise(learning_rate=0.5, decay_factor=0.1, boundaries=(100 * BATCH,)),
)
NOISY = replace(SMALL, run_noise=RunNoise())


def plan(workload: SimulatedWorkload, parameters: Parameters, *, end_step: int = 300) -> EvaluationPlan:
    return EvaluationPlan(
        objective=workload.objective("steps"),
        boundaries=parameters.schedule.boundaries,
        first_examples=4 * BATCH,
        max_interval_examples=20 * BATCH,
        end_examples=end_step * BATCH,
    )


def train(
    workload: SimulatedWorkload, parameters: Parameters = PARAMETERS, *, seed: int = 0, end_step: int = 300
) -> list[Measurement]:
    trial = SimulatedTrainer(workload).train(parameters, seed=seed, plan=plan(workload, parameters, end_step=end_step))
    return list(trial)


def outcome(workload: SimulatedWorkload, parameters: Parameters, *, end_step: int = 3000) -> Outcome | None:
    measured = []
    for measurement in SimulatedTrainer(workload).train(
        parameters, seed=0, plan=plan(workload, parameters, end_step=end_step)
    ):
        measured.append(measurement)
        if ended := verdict(measured, workload.objective("steps")):
            return ended[0]
    return None


def test_measures_at_step_0_and_then_where_the_plan_says() -> None:
    measured = train(SMALL)
    assert measured[0].step == measured[0].examples == measured[0].train_seconds == 0
    assert math.isnan(measured[0].train_loss)
    assert measured[0].metrics["val/loss"] == pytest.approx(SMALL.initial_loss)
    for i in range(1, len(measured)):
        assert measured[i].step == plan(SMALL, PARAMETERS).next_step(measured[:i], global_batch_size=BATCH)
    assert measured[-1].step == 300


def test_without_noise_a_measurement_is_the_expected_loss() -> None:
    expected = Trajectory(SMALL, PARAMETERS, end_step=300, speed=1.0)
    for m in train(SMALL):
        assert m.metrics["val/loss"] == pytest.approx(expected.loss(m.step))


def test_seconds_are_those_of_the_steps() -> None:
    slow = replace(SMALL, step_time=StepTime(base_seconds=2.0, saturation_batch=8.0, sync_seconds=0.5))
    last = train(slow)[-1]
    assert last.train_seconds == last.elapsed_seconds == pytest.approx(300 * (2.0 * BATCH / 8.0 + 0.5))


@pytest.mark.parametrize("momentum", [None, 0.9])
def test_a_seed_gives_the_same_run_and_another_seed_another(momentum: float | None) -> None:
    parameters = Parameters(global_batch_size=BATCH, schedule=Constant(learning_rate=0.05), momentum=momentum)
    # NaN, the training loss at step 0, equals nothing.
    first, again, other = (train(NOISY, parameters, seed=s)[1:] for s in (1, 1, 2))
    assert first == again
    assert first != other


def test_what_has_been_seen_does_not_depend_on_when_the_run_was_to_end() -> None:
    assert train(NOISY, end_step=150)[1:-1] == train(NOISY, end_step=300)[1 : len(train(NOISY, end_step=150)) - 1]


def test_the_level_of_runs_and_evaluations_varies_as_told() -> None:
    workload = replace(SMALL, run_noise=RunNoise(speed=0.0, level=0.03, evaluation=0.04))
    logs = np.log([[m.metrics["val/loss"] for m in train(workload, seed=s)[1:3]] for s in range(400)])
    # The standard deviation of a variance is √(2/399) = 7 % of it; four of them.
    assert np.var(logs[:, 0]) == pytest.approx(0.03**2 + 0.04**2, rel=0.28)
    assert np.var(logs[:, 0] - logs[:, 1]) == pytest.approx(2 * 0.04**2, rel=0.28)


def test_a_fast_run_learns_as_much_in_fewer_steps() -> None:
    workload = replace(SMALL, run_noise=RunNoise(speed=0.5, level=0.0, evaluation=0.0))
    constant = Parameters(global_batch_size=BATCH, schedule=Constant(learning_rate=0.02))
    normal = {m.step: m.metrics["val/loss"] for m in train(SMALL, constant)}
    ratios = []
    for seed in range(40):
        last = train(workload, constant, seed=seed, end_step=60)[-1]
        at = np.interp(-last.metrics["val/loss"], [-v for v in normal.values()], list(normal))
        ratios.append(math.log(at / 60))
    # Forty draws: the standard error of the spread is 11 % of it.
    assert np.std(ratios) == pytest.approx(0.5, rel=0.35)


def test_a_metric_of_its_own_saturates() -> None:
    workload = replace(SMALL, metric=SaturatingMetric(name="val/mistakes"), target=0.3)
    first = train(workload)[0]
    assert set(first.metrics) == {"val/loss", "val/mistakes"}
    assert first.metrics["val/mistakes"] == pytest.approx(SaturatingMetric().of_loss(SMALL.initial_loss))
    assert workload.loss_at(workload.target) == pytest.approx(SaturatingMetric().loss_at(0.3))


@pytest.mark.parametrize("metric", [None, SaturatingMetric()])
@pytest.mark.parametrize(("momentum", "rate"), [(None, 2.5), (0.9, 4.5)])
def test_divergence_is_seen(metric: SaturatingMetric | None, momentum: float | None, rate: float) -> None:
    workload = replace(SMALL, metric=metric, target=0.1)
    parameters = Parameters(global_batch_size=BATCH, schedule=Constant(learning_rate=rate), momentum=momentum)
    assert outcome(workload, parameters) is Outcome.DIVERGED


def test_multiplicative_noise_lets_a_small_batch_diverge_slowly() -> None:
    workload = replace(SMALL, target=1e-6, gradient_noise=GradientNoise(variance=1.0, multiplicative=40.0))
    limit = 2.0 / (1.0 + 40.0 / BATCH)
    slow = Parameters(global_batch_size=BATCH, schedule=Constant(learning_rate=1.02 * limit))
    measured = train(workload, slow, end_step=1000)
    losses = [m.metrics["val/loss"] for m in measured]
    assert losses[5] < workload.initial_loss < losses[-1] < math.inf
    assert outcome(workload, slow) is Outcome.DIVERGED
    larger = replace(slow, global_batch_size=4 * BATCH)
    assert outcome(workload, larger, end_step=1000) is None


def test_quiet_runs_do_not_depend_on_the_seed() -> None:
    assert SMALL.run_noise == QUIET
    assert train(SMALL, seed=1)[1:] == train(SMALL, seed=2)[1:]


def piecewise(*at: int, momentum: float | None = None) -> Parameters:
    schedule = Piecewise(learning_rate=0.1, decay_factor=0.1, boundaries=tuple(b * BATCH for b in at))
    return Parameters(global_batch_size=BATCH, schedule=schedule, momentum=momentum)


def curve(measured: Sequence[Measurement]) -> list[str]:
    return [repr(m) for m in measured]  # NaN equals nothing


@pytest.mark.parametrize("momentum", [None, 0.9])
def test_a_run_that_goes_on_from_another_ones_snapshot_is_the_same(momentum: float | None) -> None:
    trunk, branch, twig = (piecewise(*at, momentum=momentum) for at in ((100, 200), (70, 200), (70, 150)))
    trainer = SimulatedTrainer(NOISY)
    whole = {p: train(NOISY, p, seed=3) for p in (trunk, branch, twig)}
    start = None
    for before, parameters, until in ((trunk, trunk, 60), (trunk, branch, 130), (branch, twig, 300)):
        first = start.measurement.step if start else -1
        new = []
        for measurement in trainer.train(parameters, seed=3, plan=plan(NOISY, parameters), start=start):
            new.append(measurement)
            if measurement.step >= until:
                break
            start = trainer.snapshot()
        shared = [m for m in whole[before] if m.step <= first]
        assert curve([*shared, *new]) == curve(whole[parameters][: len(shared) + len(new)])
    assert new[-1].step == 300


@pytest.mark.parametrize(("other", "seed"), [(piecewise(100), 4), (piecewise(10), 3), (PARAMETERS, 3)])
def test_a_run_that_does_not_pass_through_a_snapshot_cannot_go_on_from_it(other: Parameters, seed: int) -> None:
    trainer = SimulatedTrainer(NOISY)
    for measurement in trainer.train(piecewise(100), seed=3, plan=plan(NOISY, piecewise(100))):
        if measurement.step > 10:
            break
    with pytest.raises(SnapshotError, match="does not pass through the snapshot after"):
        next(trainer.train(other, seed=seed, plan=plan(NOISY, other), start=trainer.snapshot()))
