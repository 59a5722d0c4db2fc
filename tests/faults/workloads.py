"""A workload that counts what is trained, by the step and on disk, and that fails when it is told to."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from scalesearch.workloads import load_workload
from scalesearch.workloads.workload import Augmentation, Workload

FAR_TOO_MUCH = 2**45


def metered(*, folder: str, step_seconds: float) -> Workload:
    """Digits with a small network; for the optimizer of the workload.

    Each step adds the number of its examples to the file `meter` in `folder`, takes `step_seconds` longer, and does what
    the file `orders` says: `nan` makes its loss NaN; `take` takes 128 MiB, once; `need N` asks for more memory than there is
    with more than N examples.
    """
    taken = []
    sizes = [0]
    meter, orders = Path(folder) / "meter", Path(folder) / "orders"

    def count() -> Any:
        with meter.open("ab") as file:
            file.write(np.array([os.getpid(), sizes[-1]], "<u4").tobytes())
        return np.float32(0.0)

    def step(examples: Any) -> Any:
        sizes[-1] = int(examples)
        time.sleep(step_seconds)
        verb, _, argument = order().partition(" ")
        if verb == "take" and not taken:
            taken.append(np.ones(2**24))
        if verb == "need" and examples > int(argument):
            resource.setrlimit(resource.RLIMIT_AS, (FAR_TOO_MUCH // 2, resource.RLIM_INFINITY))
            np.empty(FAR_TOO_MUCH, np.uint8)  # a MemoryError
        return np.float32(0.0)

    def order() -> str:
        return orders.read_text() if orders.exists() else ""

    def loss(labels: Any, outputs: Any) -> Any:
        import tensorflow as tf

        added = tf.numpy_function(lambda: np.float32(np.nan if order() == "nan" else 0.0), [], tf.float32)
        return digits.loss(labels, outputs) + tf.ensure_shape(added, [])

    def apply(inputs: Any, uniforms: Any) -> Any:
        import tensorflow as tf

        return inputs + tf.ensure_shape(tf.numpy_function(step, [tf.shape(inputs)[0]], tf.float32), [])

    def build_optimizer(rate: Any, momentum: float | None) -> Any:
        import keras
        import tensorflow as tf

        class Counting(keras.optimizers.SGD):  # type: ignore[misc]  # Keras has no types
            """Counts the examples whose gradient is applied: samples of its noise train nothing."""

            def apply(self, gradients: Any, variables: Any = None) -> Any:
                tf.numpy_function(count, [], tf.float32)
                return super().apply(gradients, variables)

        return Counting(rate, momentum=momentum or 0.0)

    digits = load_workload("digits/mlp", {"hidden_units": 16})
    augmentation = Augmentation(random_numbers=1, apply=apply)
    return replace(digits, name="tests/metered", loss=loss, augmentation=augmentation, build_optimizer=build_optimizer)


def metered_examples(folder: Path) -> int:
    """How many examples were really trained, by all workers that ever ran.

    The first step of each size in a worker is for its compilation, of which nothing is kept.
    """
    path = folder / "meter"
    steps = np.fromfile(path, "<u4").reshape(-1, 2)
    return int(steps[:, 1].sum() - np.unique(steps, axis=0)[:, 1].sum())
