"""The optimizers are Keras's, with learning rate and momentum as variables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from scalesearch.errors import DefinitionError, WorkloadError
from scalesearch.training.data import stream_indices

from .tiny import DENSE, EXAMPLES, IMAGES, difference, linear, one_hot, run, trainer, weights


def keras_weights(optimizer: Any, *, seed: int = 5) -> list[Any]:
    """Four steps of 32 examples of DENSE, written as an eager loop on one device."""
    keras.utils.set_random_seed(seed)
    model = DENSE.build_model()
    for step in range(4):
        indices = stream_indices(seed, step * 32, 32, EXAMPLES)
        with tf.GradientTape() as tape:
            outputs = model(DENSE.prepare(IMAGES.train.inputs[indices]), training=True)
            loss = tf.reduce_mean(DENSE.loss(tf.constant(IMAGES.train.labels[indices]), outputs))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return [variable.numpy() for variable in model.weights]


OPTIMIZERS: dict[str, tuple[float | None, float, Callable[[float], Any]]] = {
    "sgd": (None, 0.5, lambda rate: keras.optimizers.SGD(rate)),
    "momentum": (0.8, 0.5, lambda rate: keras.optimizers.SGD(rate, momentum=0.8)),
    "nesterov": (0.8, 0.5, lambda rate: keras.optimizers.SGD(rate, momentum=0.8, nesterov=True)),
    "adam": (0.8, 0.01, lambda rate: keras.optimizers.Adam(rate, beta_1=0.8)),
    "adamw": (None, 0.01, lambda rate: keras.optimizers.AdamW(rate)),
}


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_keras(name: str, replicas: int) -> None:
    momentum, rate, reference = OPTIMIZERS[name]
    used = trainer(DENSE, replicas=replicas, optimizer=name)
    run(used, momentum=0.3 if momentum else None, schedule=0.1)  # must leave nothing behind
    run(used, momentum=momentum, schedule=rate)
    # Adam divides by the square root of a squared gradient, which enlarges rounding where the gradient is tiny.
    assert difference(weights(used), keras_weights(reference(rate))) < 2e-5


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_optimizer_of_a_workload_gets_each_momentum(replicas: int) -> None:
    def build_optimizer(learning_rate: Any, momentum: float | None) -> Any:
        assert isinstance(momentum, float)
        return keras.optimizers.SGD(learning_rate, momentum=momentum)

    used = trainer(replace(DENSE, build_optimizer=build_optimizer), replicas=replicas, optimizer="workload")
    for momentum in (0.8, 0.5):
        run(used, momentum=momentum)
        assert difference(weights(used), keras_weights(keras.optimizers.SGD(0.5, momentum=momentum))) < 1e-5


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_optimizer_that_clips_sees_the_global_gradient(replicas: int) -> None:
    def build_optimizer(learning_rate: Any, momentum: float | None) -> Any:
        return keras.optimizers.SGD(learning_rate, global_clipnorm=0.05)

    used = trainer(
        linear(EXAMPLES, build_optimizer=build_optimizer), replicas=replicas, data=one_hot(), optimizer="workload"
    )
    run(used, steps=1, schedule=1.0, seed=2)
    gradient = np.bincount(stream_indices(2, 0, 32, EXAMPLES), minlength=EXAMPLES) / 32
    assert weights(used)[0][:, 0] == pytest.approx(-gradient * 0.05 / np.linalg.norm(gradient), rel=1e-5)


def test_unknown_or_missing_optimizers() -> None:
    with pytest.raises(DefinitionError, match=r"must be one of sgd, momentum, .*, but got 'lion'"):
        run(trainer(DENSE, optimizer="lion"))
    with pytest.raises(DefinitionError, match=r"tiny/dense.*has no `build_optimizer`"):
        run(trainer(DENSE, optimizer="workload"))


def test_a_momentum_must_fit_the_optimizer() -> None:
    with pytest.raises(DefinitionError, match='"momentum"` needs a momentum'):
        run(trainer(DENSE, optimizer="momentum"), momentum=None)
    with pytest.raises(DefinitionError, match=r'"sgd"` has no momentum, but got 0\.9'):
        run(trainer(DENSE, optimizer="sgd"), momentum=0.9)


@pytest.mark.parametrize(
    ("build_optimizer", "clip", "message"),
    [
        (lambda rate, _: keras.optimizers.SGD(rate, clipnorm=1.0), 1.0, "clips gradients twice"),
        (
            lambda rate, _: keras.optimizers.SGD(rate, gradient_accumulation_steps=2),
            None,
            "gradient_accumulation_steps",
        ),
        (lambda rate, _: "sgd", None, "must return a Keras optimizer, but got 'sgd'"),
    ],
)
def test_optimizers_that_change_what_a_step_is_are_refused(build_optimizer: Any, clip: float, message: str) -> None:
    workload = replace(DENSE, build_optimizer=build_optimizer, gradient_clip_norm=clip)
    with pytest.raises(WorkloadError, match=message):
        run(trainer(workload, optimizer="workload"))
