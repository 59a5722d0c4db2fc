"""Workloads and runs that take milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from scalesearch.core.evaluation import EvaluationPlan
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Measurement, Objective
from scalesearch.core.schedule import Constant, Schedule
from scalesearch.training.engine import MirroredTrainer
from scalesearch.workloads.classification import METRICS, cross_entropy
from scalesearch.workloads.workload import Data, Split, Workload

EXAMPLES = 53  # prime: no batch divides an epoch
CLASSES = 3
DEVICES = tuple(f"/device:CPU:{i}" for i in range(4))
REPLICAS = (1, 2, 4)
ACCUMULATIONS = (1, 2, 8)


def images(count: int, *, seed: int) -> Split:
    """Random images of 6 × 6 pixels and 2 channels."""
    random = np.random.default_rng(seed)
    inputs = random.integers(0, 256, (count, 6, 6, 2), dtype=np.uint8)
    return Split(inputs=inputs, labels=random.integers(0, CLASSES, count, dtype=np.int32))


IMAGES = Data(train=images(EXAMPLES, seed=1), validation=images(37, seed=2), test=images(11, seed=3))


def float16_dense() -> Any:
    """The model of DENSE in float16, whose loss the optimizer scales."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return DENSE.build_model()
    finally:
        keras.config.set_dtype_policy(policy)


def one_hot(count: int = EXAMPLES) -> Data:
    """Example i is the i-th unit vector, so the gradient of a linear output counts how often i was seen."""
    split = Split(inputs=np.eye(count, dtype=np.float32), labels=np.zeros(count, np.int32))
    return Data(train=split, validation=split)


def ones(count: int = EXAMPLES, features: int = 1) -> Data:
    """All inputs are one."""
    split = Split(inputs=np.ones((count, features), np.float32), labels=np.zeros(count, np.int32))
    return Data(train=split, validation=split)


def classifier(name: str, *body: Callable[[], Any], **options: Any) -> Workload:
    """Softmax regression on the features that `body` makes of IMAGES; layers are made anew for each model."""

    def build_model() -> Any:
        layers = [make() for make in body]
        return keras.Sequential(
            [keras.Input((6, 6, 2)), *layers, keras.layers.Flatten(), keras.layers.Dense(CLASSES)], name=name
        )

    defaults: Mapping[str, Any] = {
        "loss": cross_entropy,
        "metrics": METRICS,
        "prepare": lambda inputs: tf.cast(inputs, tf.float32) / 255.0,
    }
    return Workload(name=f"tiny/{name}", load_data=lambda: IMAGES, build_model=build_model, **{**defaults, **options})


def linear(features: int, *, initial: str = "zeros", regularizer: Any = None, **options: Any) -> Workload:
    """One linear output without bias, which is its own loss: the gradient is the mean input, whatever the weights."""

    def build_model() -> Any:
        dense = keras.layers.Dense(1, use_bias=False, kernel_initializer=initial, kernel_regularizer=regularizer)
        return keras.Sequential([keras.Input((features,)), dense])

    defaults: Mapping[str, Any] = {
        "build_model": build_model,
        "loss": lambda labels, outputs: outputs[:, 0],
        "metrics": {},
        "prepare": lambda inputs: inputs,
    }
    return Workload(name="tiny/linear", load_data=lambda: ones(features=features), **{**defaults, **options})


def conv() -> Any:
    """A small convolution."""
    return keras.layers.Conv2D(4, 3)


DENSE = classifier("dense", keras.layers.Flatten, lambda: keras.layers.Dense(8, activation="tanh"))
CONV = classifier("conv", conv, lambda: keras.layers.Activation("relu"))
SYNCHRONIZED = classifier(
    "synchronized", conv, lambda: keras.layers.BatchNormalization(synchronized=True), keras.layers.ReLU
)
GHOST = classifier("ghost", conv, keras.layers.BatchNormalization, keras.layers.ReLU)
DROPOUT = classifier("dropout", conv, lambda: keras.layers.Dropout(0.5), keras.layers.ReLU)
WORKLOADS = {w.name.removeprefix("tiny/"): w for w in (DENSE, CONV, SYNCHRONIZED, GHOST, DROPOUT)}


def plan(*, batch: int, steps: int, every: int | None = None) -> EvaluationPlan:
    """Evaluate every `every` steps (default: only at the end)."""
    interval = batch * (every or steps)
    return EvaluationPlan(
        objective=Objective(metric="val/loss", direction="minimize", target=None, minimize="metric"),
        boundaries=(),
        first_examples=interval,
        max_interval_examples=interval,
        end_examples=batch * steps,
        ratio=1e9,
    )


def trainer(workload: Workload, *, replicas: int = 1, data: Data = IMAGES, **options: Any) -> MirroredTrainer:
    """A trainer on the first `replicas` CPU devices, with plain SGD unless `optimizer` says otherwise."""
    return MirroredTrainer(workload, data, **{"optimizer": "sgd", "devices": DEVICES[:replicas], **options})


def run(
    trainer: MirroredTrainer,
    *,
    batch: int = 32,
    steps: int = 4,
    every: int | None = None,
    accumulation: int = 1,
    schedule: Schedule | float = 0.5,
    momentum: float | None = None,
    seed: int = 5,
) -> list[Measurement]:
    """Train and return the measurements."""
    if isinstance(schedule, float):
        schedule = Constant(learning_rate=schedule)
    parameters = Parameters(global_batch_size=batch, schedule=schedule, momentum=momentum, accumulation=accumulation)
    return list(trainer.train(parameters, seed=seed, plan=plan(batch=batch, steps=steps, every=every)))


def weights(trainer: MirroredTrainer) -> list[Any]:
    """Weights and moving statistics, by replica of the first device."""
    return [variable.numpy() for variable in trainer.model.weights]


@cache
def momentum_trainer(name: str, replicas: int) -> MirroredTrainer:
    """The trainer of a workload of WORKLOADS; built once, as in a worker."""
    return trainer(WORKLOADS[name], replicas=replicas, optimizer="momentum")


@cache
def trained(name: str, *, replicas: int, accumulation: int = 1) -> list[Any]:
    """Weights after 4 steps of 32 examples (2.4 epochs) with momentum."""
    used = momentum_trainer(name, replicas)
    run(used, accumulation=accumulation, momentum=0.8)
    return weights(used)


def difference(some: list[Any], others: list[Any]) -> float:
    """The largest absolute difference between two lists of arrays."""
    return max(float(np.abs(a - b).max()) for a, b in zip(some, others, strict=True))
