"""A training run is a generator of measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from time import perf_counter, sleep
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from scalesearch.core.parameters import Parameters
from scalesearch.core.schedule import Constant, Linear, Piecewise, Schedule, rate
from scalesearch.errors import OutOfMemory, StudyError
from scalesearch.training.engine import MirroredTrainer
from scalesearch.workloads.workload import Augmentation

from .tiny import (
    CONV,
    DENSE,
    DROPOUT,
    IMAGES,
    REPLICAS,
    difference,
    linear,
    momentum_trainer,
    ones,
    plan,
    run,
    trained,
    trainer,
    weights,
)


def parameters(batch: int = 32, *, accumulation: int = 1, momentum: float | None = 0.8) -> Parameters:
    schedule = Constant(learning_rate=0.5)
    return Parameters(global_batch_size=batch, schedule=schedule, momentum=momentum, accumulation=accumulation)


def test_measurements_follow_the_plan() -> None:
    measured = run(momentum_trainer("dense", 2), steps=7, every=3, momentum=0.8)
    assert [m.step for m in measured] == [0, 3, 6, 7]
    assert [m.examples for m in measured] == [0, 96, 192, 224]
    assert set(measured[0].metrics) == {"val/loss", "val/classification_error", "val/cross_entropy_error"}
    assert np.isnan(measured[0].train_loss)
    assert measured[0].train_seconds == 0.0
    assert all(a.train_seconds < b.train_seconds for a, b in pairwise(measured))
    assert all(m.train_seconds < m.elapsed_seconds for m in measured)


@pytest.mark.parametrize("replicas", REPLICAS)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_evaluating_changes_nothing(replicas: int, accumulation: int) -> None:
    for name in ("dense", "ghost", "dropout"):
        used = momentum_trainer(name, replicas)
        run(used, every=1, momentum=0.8, accumulation=accumulation)
        assert difference(weights(used), trained(name, replicas=replicas, accumulation=accumulation)) < 1e-6


@pytest.fixture(scope="module", params=REPLICAS)
def falling(request: pytest.FixtureRequest) -> MirroredTrainer:
    """The gradient is 1, so the weight, which is also the loss, falls by the learning rate."""
    return trainer(linear(1), replicas=request.param, data=ones())


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize(
    "schedule",
    [
        Constant(learning_rate=0.25),
        Piecewise(learning_rate=0.5, decay_factor=0.1, boundaries=(31, 64, 65, 150)),
        Linear(learning_rate=0.5, decay_examples=100, end_factor=0.01),
    ],
    ids=["constant", "piecewise", "linear"],
)
def test_each_step_uses_the_rate_at_its_start(falling: MirroredTrainer, accumulation: int, schedule: Schedule) -> None:
    batch = 16
    measured = run(falling, batch=batch, steps=14, every=1, accumulation=accumulation, schedule=schedule)
    losses = [m.metrics["val/loss"] for m in measured]
    assert [a - b for a, b in pairwise(losses)] == pytest.approx(
        [rate(schedule, step * batch) for step in range(14)], abs=1e-6
    )
    # The loss of a step is taken before its update.
    assert [m.train_loss for m in measured[1:]] == pytest.approx(losses[:-1], abs=1e-6)


def test_the_train_loss_is_the_mean_over_the_steps_since_the_last_measurement(falling: MirroredTrainer) -> None:
    measured = run(falling, steps=5, every=4, schedule=1.0)  # the losses are 0, −1, −2, −3 and −4
    assert [m.train_loss for m in measured[1:]] == pytest.approx([-1.5, -4.0])


@pytest.mark.parametrize("replicas", REPLICAS)
def test_the_seed_decides(replicas: int) -> None:
    used = momentum_trainer("dropout", replicas)
    outcomes = []
    for seed in (5, 6, 5):
        run(used, seed=seed, momentum=0.8)
        outcomes.append(weights(used))
    assert difference(outcomes[0], outcomes[2]) < 1e-6
    assert difference(outcomes[0], outcomes[1]) > 1e-2


def test_models_with_dropout_learn() -> None:
    learnable = replace(IMAGES, train=IMAGES.validation)
    used = trainer(DROPOUT, replicas=2, data=learnable, optimizer="momentum")
    before, after = run(used, steps=150, schedule=0.1, momentum=0.9)
    assert after.metrics["val/loss"] < 0.5 * before.metrics["val/loss"]


@pytest.mark.parametrize("replicas", REPLICAS)
def test_a_closed_run_leaves_the_trainer_usable(replicas: int) -> None:
    used = momentum_trainer("dense", replicas)
    started = used.train(parameters(64), seed=1, plan=plan(batch=64, steps=100, every=2))
    assert [next(started).step for _ in range(3)] == [0, 2, 4]
    started.close()  # type: ignore[attr-defined]
    run(used, momentum=0.8)
    assert difference(weights(used), trained("dense", replicas=replicas)) < 1e-6


def test_a_run_ends_when_another_one_starts() -> None:
    used = momentum_trainer("dense", 1)
    first = used.train(parameters(), seed=1, plan=plan(batch=32, steps=10, every=1))
    next(first)
    run(used, momentum=0.8)
    with pytest.raises(RuntimeError, match="another run"):
        next(first)


def test_only_steps_count_as_training_and_waiting_counts_nowhere() -> None:
    used = trainer(CONV, replicas=2)
    started = used.train(parameters(momentum=None), seed=1, plan=plan(batch=32, steps=3, every=1))
    inside = 0.0
    measured = []
    while True:
        begin = perf_counter()
        measurement = next(started, None)
        inside += perf_counter() - begin
        if measurement is None:
            break
        measured.append(measurement)
        sleep(0.1)
    # Tracing took far longer than three tiny steps; the sleeps would exceed what was spent inside.
    assert measured[-1].train_seconds < 0.5 * measured[0].elapsed_seconds
    assert measured[-1].train_seconds < measured[-1].elapsed_seconds <= inside


@pytest.mark.parametrize("replicas", REPLICAS)
def test_a_loss_that_is_not_finite_shows_in_the_next_measurement(replicas: int) -> None:
    _, first, second = run(momentum_trainer("conv", replicas), schedule=1e30, steps=4, every=2, momentum=0.8)
    assert not np.isfinite(first.metrics["val/loss"]) or not np.isfinite(first.train_loss)
    assert not np.isfinite(second.train_loss)


def fails_above(examples: int, *, fail: Callable[[Any], Any]) -> Augmentation:
    """An augmentation that changes nothing, but fails when a replica gets more than `examples` at a time."""

    def apply(inputs: Any, uniforms: Any) -> Any:
        return inputs + 0.0 * fail(tf.shape(inputs)[0] > examples)

    return Augmentation(random_numbers=0, apply=apply)


def memory_error(too_many: Any) -> Any:
    def numpy_function(too_many: Any) -> Any:
        if too_many:
            raise MemoryError("no room")  # TensorFlow makes a ResourceExhaustedError of it
        return np.float32(0)

    return tf.reshape(tf.numpy_function(numpy_function, [too_many], tf.float32), [])


def oversized_tensor(too_many: Any) -> Any:
    elements = tf.where(too_many, tf.constant(2**42, tf.int64), 1)  # 16 TiB
    return tf.reduce_max(tf.fill([elements], tf.cast(elements, tf.float32)))


@pytest.mark.parametrize(
    ("replicas", "accumulation", "fail"),
    [
        (1, 1, memory_error),
        (2, 2, memory_error),
        (4, 1, memory_error),
        (1, 1, oversized_tensor),  # only once: TensorFlow waits 10 s for memory before it gives up
    ],
)
def test_out_of_memory_leaves_the_trainer_usable(replicas: int, accumulation: int, fail: Any) -> None:
    augmentation = fails_above(32 // replicas // accumulation, fail=fail)
    used = trainer(replace(DENSE, augmentation=augmentation), replicas=replicas, optimizer="momentum")
    run(used, accumulation=accumulation, momentum=0.8)
    with pytest.raises(OutOfMemory, match=r"global batch of 64 .* does not fit"):
        run(used, batch=64, accumulation=accumulation, momentum=0.8)
    run(used, accumulation=accumulation, momentum=0.8)
    assert difference(weights(used), trained("dense", replicas=1)) < 1e-5


def test_out_of_memory_while_tracing_leaves_the_trainer_usable() -> None:
    failures = [tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")]

    def loss(labels: Any, outputs: Any) -> Any:
        if failures:
            raise failures.pop()
        return DENSE.loss(labels, outputs)

    used = trainer(replace(DENSE, loss=loss), replicas=2, optimizer="momentum")
    with pytest.raises(OutOfMemory):
        run(used, momentum=0.8)
    run(used, momentum=0.8)
    assert difference(weights(used), trained("dense", replicas=1)) < 1e-5


@pytest.mark.parametrize(
    ("batch", "replicas", "accumulation", "nearest"),
    [(30, 4, 1, "28 or 32"), (2, 4, 1, "nearest: 4$"), (12, 2, 4, "8 or 16")],
)
def test_a_batch_that_cannot_be_divided_is_refused(batch: int, replicas: int, accumulation: int, nearest: str) -> None:
    with pytest.raises(StudyError, match=f"but got {batch} with {replicas} replicas × {accumulation}.*{nearest}"):
        run(momentum_trainer("dense", replicas), batch=batch, accumulation=accumulation, momentum=0.8)


def test_one_golden_step() -> None:
    start, end = run(momentum_trainer("conv", 1), steps=1, schedule=0.5, momentum=0.9)
    found = {
        "val/loss at step 0": start.metrics["val/loss"],
        "train_loss": end.train_loss,
        "val/loss at step 1": end.metrics["val/loss"],
        "val/classification_error": end.metrics["val/classification_error"],
    }
    golden = {
        "val/loss at step 0": 1.3163961,
        "train_loss": 1.4597853,
        "val/loss at step 1": 1.6240141,
        "val/classification_error": 27 / 37,
    }
    assert found == pytest.approx(golden, rel=1e-5), (
        "What one seeded step gives has changed. If you only refactored, this is a bug: an engine that gives other "
        "weights for the same seed breaks the continuation of studies. If you meant it (initial weights, data order, "
        "optimizer), say so in the changelog and put the new values into `golden`."
    )
