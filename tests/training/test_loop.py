"""The laws of the compiled loop: how a step is cut over replicas and micro-batches changes nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from scalesearch.core.schedule import Piecewise
from scalesearch.errors import WorkloadError
from scalesearch.training.data import stream_indices, stream_uniforms
from scalesearch.training.engine import MirroredTrainer
from scalesearch.workloads.workload import Augmentation

from .tiny import (
    ACCUMULATIONS,
    DENSE,
    EXAMPLES,
    IMAGES,
    REPLICAS,
    WORKLOADS,
    classifier,
    difference,
    float16_dense,
    linear,
    momentum_trainer,
    one_hot,
    ones,
    run,
    trained,
    trainer,
    weights,
)

TOLERANCE = 1e-5
CUTS = [*product(REPLICAS, ACCUMULATIONS)]


def plain_keras(name: str, *, batch: int = 32, steps: int = 4, seed: int = 5) -> list[Any]:
    """What `trained` does, written as an eager loop on one device."""
    workload = WORKLOADS[name]
    keras.utils.set_random_seed(seed)
    model = workload.build_model()
    optimizer = keras.optimizers.SGD(0.5, momentum=0.8)
    for step in range(steps):
        indices = stream_indices(seed, step * batch, batch, EXAMPLES)
        with tf.GradientTape() as tape:
            outputs = model(workload.prepare(IMAGES.train.inputs[indices]), training=True)
            loss = tf.reduce_mean(workload.loss(tf.constant(IMAGES.train.labels[indices]), outputs))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
    return [variable.numpy() for variable in model.weights]


@pytest.mark.parametrize("name", ["dense", "conv", "synchronized", "ghost"])
def test_one_replica_is_plain_keras(name: str) -> None:
    assert difference(trained(name, replicas=1), plain_keras(name)) < TOLERANCE


@pytest.mark.parametrize("name", ["dense", "conv"])
@pytest.mark.parametrize(("replicas", "accumulation"), CUTS)
def test_weights_do_not_depend_on_replicas_and_accumulation(name: str, replicas: int, accumulation: int) -> None:
    cut = trained(name, replicas=replicas, accumulation=accumulation)
    assert difference(cut, trained(name, replicas=1)) < TOLERANCE


@pytest.mark.parametrize(("replicas", "accumulation"), CUTS)
def test_synchronized_batch_norm_does_not_depend_on_replicas(replicas: int, accumulation: int) -> None:
    # Its statistics are those of a micro-batch over all replicas, so accumulation does matter.
    cut = trained("synchronized", replicas=replicas, accumulation=accumulation)
    assert difference(cut, trained("synchronized", replicas=1, accumulation=accumulation)) < TOLERANCE


@pytest.mark.parametrize("name", ["ghost", "dropout"])
@pytest.mark.parametrize(("replicas", "accumulation"), CUTS)
def test_a_replica_is_a_micro_batch(name: str, replicas: int, accumulation: int) -> None:
    shares = replicas * accumulation
    cut = trained(name, replicas=replicas, accumulation=accumulation)
    assert difference(cut, trained(name, replicas=1, accumulation=shares)) < TOLERANCE
    if shares > 1:
        assert difference(cut, trained(name, replicas=1)) > 1e-3


@pytest.mark.parametrize("replicas", REPLICAS)
def test_all_replicas_hold_the_same_moving_statistics(replicas: int) -> None:
    trained("ghost", replicas=replicas)
    for variable in momentum_trainer("ghost", replicas).model.weights:
        copies = [copy.numpy() for copy in getattr(variable.value, "values", [variable.value])]
        assert len(copies) == replicas
        assert all(np.array_equal(copy, copies[0]) for copy in copies)


@pytest.fixture(scope="module", params=REPLICAS)
def counting(request: pytest.FixtureRequest) -> MirroredTrainer:
    """The gradient for weight i is (how often example i is in the batch) / batch."""
    return trainer(linear(EXAMPLES), replicas=request.param, data=one_hot())


@pytest.mark.parametrize(("batch", "accumulation"), [(16, 1), (16, 2), (8 * EXAMPLES, 1), (8 * EXAMPLES, 2)])
def test_examples_counted_are_examples_seen(counting: MirroredTrainer, batch: int, accumulation: int) -> None:
    steps = 3 if batch > EXAMPLES else 10
    measured = run(counting, batch=batch, steps=steps, accumulation=accumulation, schedule=float(batch), seed=2)
    seen = -weights(counting)[0][:, 0]
    assert np.array_equal(np.rint(seen), np.bincount(stream_indices(2, 0, batch * steps, EXAMPLES)))
    assert measured[-1].examples == round(seen.sum()) == batch * steps


@pytest.fixture(scope="module", params=REPLICAS)
def regularized(request: pytest.FixtureRequest) -> MirroredTrainer:
    """The objective is 0.5 w + 0.5 w², from w = 1."""
    l2 = keras.regularizers.L2(0.5)
    workload = linear(1, initial="ones", regularizer=l2, loss=lambda _, outputs: 0.5 * outputs[:, 0])
    return trainer(workload, replicas=request.param, data=ones())


@pytest.mark.parametrize("accumulation", ACCUMULATIONS)
def test_regularizers_count_once(regularized: MirroredTrainer, accumulation: int) -> None:
    run(regularized, steps=1, accumulation=accumulation, schedule=0.1)
    assert weights(regularized)[0].item() == pytest.approx(1 - 0.1 * 1.5)


@pytest.fixture(scope="module", params=REPLICAS)
def clipping(request: pytest.FixtureRequest) -> MirroredTrainer:
    """As `counting`, with the gradient clipped to a norm of 0.05."""
    return trainer(linear(EXAMPLES, gradient_clip_norm=0.05), replicas=request.param, data=one_hot())


@pytest.mark.parametrize("accumulation", ACCUMULATIONS)
def test_clipping_acts_on_the_global_gradient(clipping: MirroredTrainer, accumulation: int) -> None:
    run(clipping, steps=1, accumulation=accumulation, schedule=1.0, seed=2)
    gradient = np.bincount(stream_indices(2, 0, 32, EXAMPLES), minlength=EXAMPLES) / 32
    assert np.linalg.norm(gradient) > 0.05
    assert weights(clipping)[0][:, 0] == pytest.approx(-gradient * 0.05 / np.linalg.norm(gradient), rel=1e-5)


@pytest.fixture(scope="module", params=REPLICAS)
def augmenting(request: pytest.FixtureRequest) -> MirroredTrainer:
    """The mean gradient is 1 + the mean of the uniforms."""
    add = Augmentation(random_numbers=3, apply=lambda inputs, uniforms: inputs + uniforms)
    return trainer(linear(3, augmentation=add), replicas=request.param, data=ones(features=3))


@pytest.mark.parametrize("accumulation", ACCUMULATIONS)
def test_augmentation_is_a_function_of_the_position(augmenting: MirroredTrainer, accumulation: int) -> None:
    run(augmenting, steps=3, accumulation=accumulation, schedule=1.0, seed=2)
    expected = -3 * (1 + stream_uniforms(2, 0, 96, 3).mean(axis=0))
    assert weights(augmenting)[0][:, 0] == pytest.approx(expected, rel=1e-5)


def test_replicas_drop_different_units() -> None:
    def build_model() -> Any:
        dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        return keras.Sequential([keras.Input((64,)), keras.layers.Dropout(0.5), dense])

    used = trainer(linear(64, build_model=build_model), replicas=2, data=ones(features=64))
    run(used, batch=2, steps=1, schedule=1.0)
    # One example per replica: a unit is kept by none, by one or by both.
    assert set(-weights(used)[0][:, 0]) == {0.0, 1.0, 2.0}


def test_nothing_is_traced_again() -> None:
    traces = []

    def loss(labels: Any, outputs: Any) -> Any:
        traces.append(outputs.shape)
        return DENSE.loss(labels, outputs)

    used = trainer(classifier("counted", keras.layers.Flatten, loss=loss), replicas=2, optimizer="nesterov")
    run(used, momentum=0.9)
    run(used, momentum=0.9, accumulation=2)
    after_two = len(traces)
    pieces = Piecewise(learning_rate=0.2, decay_factor=0.1, boundaries=(50, 70, 90))
    run(used, momentum=0.5, schedule=pieces, batch=40, steps=7, every=2, seed=1)
    run(used, momentum=0.6, schedule=0.3, batch=64, steps=2, accumulation=8)
    assert len(traces) == after_two


def test_a_loss_that_is_not_per_example_is_refused() -> None:
    used = trainer(linear(1, loss=lambda _, outputs: tf.reduce_mean(outputs)), data=ones())
    with pytest.raises(WorkloadError, match=r"tiny/linear.*loss must return one value per example.*shape is \(\)"):
        run(used)


@pytest.mark.parametrize("replicas", [1, 2])
def test_mixed_precision_scales_the_loss(replicas: int) -> None:
    # Gradients of a millionth of the loss vanish in float16 unless they are scaled.
    small = replace(DENSE, build_model=float16_dense, loss=lambda labels, outputs: DENSE.loss(labels, outputs) * 1e-6)
    used = trainer(small, replicas=replicas, optimizer="momentum")
    run(used, schedule=0.5e6, momentum=0.8)
    assert difference(weights(used), trained("dense", replicas=1)) < 0.01
