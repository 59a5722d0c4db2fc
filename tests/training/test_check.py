"""What each part of a workload does to one and to two replicas, and that neutralising it makes them agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from scalesearch.core.equivalence import Difference, Part, difference, same_start
from scalesearch.core.parameters import Parameters
from scalesearch.core.schedule import Constant
from scalesearch.training import check
from scalesearch.workloads.classification import cross_entropy
from scalesearch.workloads.workload import Augmentation, Workload

from . import tiny

PARAMETERS = Parameters(global_batch_size=32, schedule=Constant(learning_rate=0.1), momentum=0.9)


class BatchMean(keras.layers.Layer):  # type: ignore[misc]
    """The user's own: subtracts the mean over the batch that it is given."""

    def call(self, inputs: Any) -> Any:
        return inputs - 0.5 * tf.reduce_mean(inputs, axis=0, keepdims=True)


class Clipping(keras.layers.Layer):  # type: ignore[misc]
    """The user's own: clips the gradient of the share that it is given."""

    def call(self, inputs: Any) -> Any:
        @tf.custom_gradient
        def clipped(x: Any) -> tuple[Any, Callable[[Any], Any]]:
            return tf.identity(x), lambda upstream: tf.clip_by_norm(upstream, 1e-3)

        return clipped(inputs)


def weighted(labels: Any, outputs: Any) -> Any:
    """Classes weighted by how often the batch has them, as a loss that averages over what a replica sees."""
    counts = tf.reduce_sum(tf.one_hot(labels, tiny.CLASSES), axis=0) + 1.0
    weights = tf.gather(1.0 / counts, labels)
    mean = tf.reduce_sum(weights * cross_entropy(labels, outputs)) / tf.reduce_sum(weights)
    return tf.fill(tf.shape(labels), mean)


def shift(inputs: Any, uniforms: Any) -> Any:
    del uniforms
    return inputs - tf.reduce_mean(inputs, axis=0, keepdims=True)


class Halving(keras.optimizers.SGD):  # type: ignore[misc]
    """Divides the gradient by the number of replicas once more."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        super().update_step(gradient / replicas, variable, learning_rate)


def dense() -> Any:
    return keras.layers.Dense(8, activation="tanh")


CASES: dict[Part, Workload] = {
    Part.STATISTICS: tiny.GHOST,
    Part.RANDOM: tiny.DROPOUT,
    Part.LOSS: tiny.classifier("weighted", keras.layers.Flatten, dense, loss=weighted),
    Part.AUGMENTATION: tiny.classifier(
        "shifted", keras.layers.Flatten, dense, augmentation=Augmentation(random_numbers=1, apply=shift)
    ),
    Part.OPTIMIZER: tiny.classifier(
        "halving", keras.layers.Flatten, dense, build_optimizer=lambda rate, momentum: Halving(rate)
    ),
}


def apart(workload: Workload, neutralised: frozenset[Part] = frozenset(), *, optimizer: str = "momentum") -> Difference:
    runs = []
    for replicas in (1, 2):
        trainer = tiny.trainer(workload, replicas=replicas, optimizer=optimizer)
        runs.append(check.run(trainer, PARAMETERS, seed=3, steps=3, neutralised=neutralised))
    assert same_start(*runs)
    assert runs[0].data_digest == runs[1].data_digest
    return difference(*runs)


@pytest.mark.parametrize("workload", [tiny.DENSE, tiny.CONV, tiny.SYNCHRONIZED], ids=lambda w: w.name)
def test_replicas_agree_to_rounding(workload: Workload) -> None:
    found = apart(workload)
    assert found.agrees
    assert found.weights < 1e-4


@pytest.mark.parametrize("part", CASES, ids=str)
def test_a_part_that_depends_on_the_share_makes_replicas_differ_and_neutralised_does_not(part: Part) -> None:
    optimizer = "workload" if part is Part.OPTIMIZER else "momentum"
    assert apart(CASES[part], optimizer=optimizer).weights > 3e-3
    assert apart(CASES[part], frozenset({part}), optimizer=optimizer).agrees


@pytest.mark.parametrize("layer", [BatchMean, Clipping])
def test_own_layers_are_given_one_example_at_a_time(layer: Any) -> None:
    workload = tiny.classifier("own", keras.layers.Flatten, dense, layer)
    assert apart(workload).weights > 3e-3
    assert apart(workload, frozenset({Part.OWN_LAYERS})).agrees


def test_the_parts_that_a_workload_has_are_named() -> None:
    augmentation = Augmentation(random_numbers=1, apply=shift)
    workload = tiny.classifier(
        "all",
        tiny.conv,
        lambda: keras.layers.BatchNormalization(name="norm"),
        lambda: keras.layers.Dropout(0.5, name="drop"),
        lambda: BatchMean(name="mean"),
        augmentation=augmentation,
        gradient_clip_norm=0.5,
    )
    found = check.run(tiny.trainer(workload, optimizer="momentum"), PARAMETERS, seed=0, steps=1)
    assert found.parts == {
        Part.LOSS: "the loss",
        Part.STATISTICS: "norm",
        Part.RANDOM: "drop",
        Part.OWN_LAYERS: "mean",
        Part.AUGMENTATION: "the augmentation",
        Part.CLIPPING: "gradient_clip_norm = 0.5",
    }
    assert len(found.losses) == 1


def test_the_clipping_of_an_optimizer_is_named_and_removed() -> None:
    workload = tiny.classifier(
        "clipped",
        keras.layers.Flatten,
        build_optimizer=lambda rate, momentum: keras.optimizers.SGD(rate, global_clipnorm=1e-6),
    )
    trainer = tiny.trainer(workload, optimizer="workload")
    plain, free = (
        check.run(trainer, PARAMETERS, seed=0, steps=1, neutralised=neutralised)
        for neutralised in (frozenset[Part](), frozenset({Part.CLIPPING}))
    )
    assert plain.parts[Part.CLIPPING] == "the clipping of SGD"
    moved = [max(abs(a - b).max() for a, b in zip(r.final, r.initial, strict=True)) for r in (plain, free)]
    assert moved[0] < 1e-5 < moved[1]
