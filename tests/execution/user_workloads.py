"""Workloads as users write them: one that works, and the ways in which theirs fail.

They are named `execution.user_workloads:…`, since tests/ is on the path of the tests and of their workers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from scalesearch.errors import DataError
from scalesearch.workloads.classification import METRICS, cross_entropy
from scalesearch.workloads.workload import Augmentation, Data, PerExample, Split, Workload

TRAIN, VALIDATION, TEST = 48, 16, 8
FEATURES, CLASSES = 4, 3


def split(examples: int, *, seed: int) -> Split:
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(examples, FEATURES)).astype(np.float32)
    return Split(inputs=inputs, labels=inputs[:, :CLASSES].argmax(axis=1).astype(np.int32))


def load_data() -> Data:
    return Data(train=split(TRAIN, seed=1), validation=split(VALIDATION, seed=2), test=split(TEST, seed=3))


def build_model() -> Any:
    import keras

    return keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])


def as_is(inputs: Any) -> Any:
    return inputs


def workload(
    *,
    load_data: Callable[[], Data] = load_data,
    build_model: Callable[[], Any] = build_model,
    loss: PerExample = cross_entropy,
    augmentation: Augmentation | None = None,
) -> Workload:
    return Workload(
        name="tests/softmax",
        load_data=load_data,
        build_model=build_model,
        loss=loss,
        metrics=METRICS,
        prepare=as_is,
        augmentation=augmentation,
    )


def obedient(*, orders: str) -> Workload:
    """Does what the file `orders` says.

    `build …` when a model is built, `trace …` when the loss is compiled, `step …` in every training step.
    """

    def build() -> Any:
        obey("build", orders)
        return build_model()

    def apply(inputs: Any, uniforms: Any) -> Any:
        import tensorflow as tf

        def step(examples: Any) -> Any:
            obey("step", orders, examples=int(examples))
            return np.float32(0.0)

        return inputs + tf.ensure_shape(tf.numpy_function(step, [tf.shape(inputs)[0]], tf.float32), [])

    def loss(labels: Any, outputs: Any) -> Any:
        obey("trace", orders)
        return cross_entropy(labels, outputs)

    return workload(build_model=build, loss=loss, augmentation=Augmentation(random_numbers=1, apply=apply))


def obey(place: str, orders: str, *, examples: int = 0) -> None:
    here, _, order = Path(orders).read_text().partition(" ")
    if here != place:
        return
    verb, _, argument = order.partition(" ")
    if verb == "raise":
        raise ValueError(argument)
    if verb == "print":
        print(argument)  # noqa: T201
        print(argument, file=sys.stderr)  # noqa: T201
    elif verb == "exit":
        sys.exit(int(argument))
    elif verb == "hang":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(argument).write_text(str(child.pid))
        time.sleep(600)
    elif verb == "need" and examples > int(argument):
        raise MemoryError(f"{examples} examples do not fit")  # a ResourceExhaustedError by the time it leaves the step


def broken_model() -> Any:
    return {}["no such layer"]


def raises_in_build_model() -> Workload:
    return workload(build_model=broken_model)


def exits_in_build_model() -> Workload:
    return workload(build_model=lambda: os._exit(5))


def missing() -> Data:
    raise DataError("the files of tests/softmax are missing: put them into /data")


def lacks_its_data() -> Workload:
    return workload(load_data=missing)


class UsersOwnError(DataError):
    """A kind of error that only the user's package knows."""


def damaged() -> Data:
    raise UsersOwnError("the file labels.npy is damaged")


def has_damaged_data() -> Workload:
    return workload(load_data=damaged)


def unreadable() -> Data:
    return Data(train=Split(inputs=np.load("no such file.npy"), labels=np.zeros(1)), validation=split(1, seed=0))


def cannot_read_its_data() -> Workload:
    return workload(load_data=unreadable)
