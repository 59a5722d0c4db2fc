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
    """Digits with a small network.

    Each step adds the number of its examples to the file `meter` in `folder`, takes `step_seconds` longer, and does what
    the file `orders` says: `nan` makes its loss NaN; `take` takes 128 MiB, once; `need N` asks for more memory than there is
    with more than N examples.
    """
    taken = []
    meter, orders = Path(folder) / "meter", Path(folder) / "orders"

    def step(examples: Any) -> Any:
        with meter.open("ab") as file:
            file.write(np.array([os.getpid(), int(examples)], "<u4").tobytes())
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

    digits = load_workload("digits/mlp", {"hidden_units": 16})
    augmentation = Augmentation(random_numbers=1, apply=apply)
    return replace(digits, name="tests/metered", loss=loss, augmentation=augmentation)


def metered_examples(folder: Path) -> int:
    """How many examples were really trained, by all workers that ever ran.

    The first step of each size in a worker is for its compilation, of which nothing is kept.
    """
    path = folder / "meter"
    steps = np.fromfile(path, "<u4").reshape(-1, 2)
    return int(steps[:, 1].sum() - np.unique(steps, axis=0)[:, 1].sum())
