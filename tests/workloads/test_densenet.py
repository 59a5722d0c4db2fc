from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from scalesearch.errors import WorkloadError
from scalesearch.workloads import BUILT_IN, load_workload
from scalesearch.workloads.densenet import densenet_bc


@pytest.fixture(scope="session")
def full_model() -> Any:
    return load_workload("cifar10/densenet_bc").build_model()


def small_model(*, weight_decay: float = 0.0, synchronized_batch_norm: bool = False) -> Any:
    return densenet_bc(
        (32, 32, 3),
        classes=10,
        depth=10,
        growth_rate=4,
        weight_decay=weight_decay,
        synchronized_batch_norm=synchronized_batch_norm,
    )


def closed_form(*, depth: int, growth_rate: int) -> int:
    """Trainable parameters, summed from the description in the paper: a normalisation has 2 per channel."""
    k, layers = growth_rate, (depth - 4) // 6
    channels, parameters = 2 * k, 3 * 3 * 3 * 2 * k
    for block in range(3):
        # Layer i of a block sees channels + i·k: normalised, 1×1 to 4k, normalised, 3×3 to k.
        seen = sum(channels + i * k for i in range(layers))
        parameters += (2 + 4 * k) * seen + layers * (2 * 4 * k + 3 * 3 * 4 * k * k)
        channels += layers * k
        if block < 2:
            parameters += 2 * channels + channels * (channels // 2)
            channels //= 2
    return parameters + 2 * channels + 10 * channels + 10


def trainable(model: Any) -> int:
    return sum(math.prod(weight.shape) for weight in model.trainable_variables)


def test_full_model_has_the_published_parameters(full_model: Any) -> None:
    assert round(trainable(full_model) / 1e6, 1) == 0.8  # Huang et al. 2017, table 2
    assert trainable(full_model) == closed_form(depth=100, growth_rate=12) == 769_162
    assert trainable(full_model) == BUILT_IN["cifar10/densenet_bc"].trainable_parameters


def test_other_sizes_follow_the_closed_form() -> None:
    assert trainable(small_model()) == closed_form(depth=10, growth_rate=4)


def test_full_model_has_a_hundred_layers_with_kernels_and_decays_all_of_them(full_model: Any) -> None:
    kernels = [weight for weight in full_model.trainable_variables if weight.name == "kernel"]
    assert len(kernels) == len(full_model.losses) == 100


def test_outputs_are_logits(full_model: Any) -> None:
    images = np.random.default_rng(0).normal(size=(3, 32, 32, 3)).astype(np.float32)
    logits = full_model(images, training=False).numpy()
    assert logits.shape == (3, 10)
    assert np.abs(logits.sum(axis=1) - 1).min() > 1e-3


def test_gradient_of_the_penalty_is_weight_decay_times_the_kernel() -> None:
    import tensorflow as tf

    model = small_model(weight_decay=0.5)
    kernels = [weight for weight in model.trainable_variables if weight.name == "kernel"]
    with tf.GradientTape() as tape:
        penalty = tf.add_n(model.losses)
    for kernel, gradient in zip(kernels, tape.gradient(penalty, kernels), strict=True):
        np.testing.assert_allclose(gradient, 0.5 * kernel.numpy(), rtol=1e-6)


@pytest.mark.parametrize("synchronized", [False, True])
def test_batch_norm_is_synchronized_only_if_asked_for(synchronized: bool) -> None:
    import keras

    model = small_model(synchronized_batch_norm=synchronized)
    norms = [layer for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)]
    assert {norm.synchronized for norm in norms} == {synchronized}


@pytest.mark.parametrize(
    ("option", "value"),
    [("depth", 101), ("depth", 4), ("growth_rate", 0), ("weight_decay", -1e-4), ("weight_decay", float("nan"))],
)
def test_options_out_of_range(option: str, value: float) -> None:
    with pytest.raises(WorkloadError, match=rf"`{option}.*but got {value}"):
        load_workload("cifar10/densenet_bc", {option: value})
