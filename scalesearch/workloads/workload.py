"""What a workload is: data × model × loss and metrics. The optimizer is named by the study definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Tensor = Any  # a tf.Tensor; TensorFlow is imported only where models are built
PerExample = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Split:
    """Examples in random access: `inputs` (n, …) in their raw type (uint8 stays uint8), `labels` (n, …).

    Both may be np.memmap; data that do not fit on the devices are streamed.
    """

    inputs: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True, kw_only=True)
class Data:
    """The splits of a data set. `test` is never used for choosing anything."""

    train: Split
    validation: Split
    test: Split | None = None


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """A random change of training inputs, pure in its random numbers.

    `apply(inputs, uniforms)` takes prepared inputs (n, …) and uniforms (n, random_numbers) in [0, 1), and
    returns inputs of the same shape. The engine draws the uniforms from (seed, position in the data
    stream), so that the same example is changed in the same way for any number of replicas.
    """

    random_numbers: int
    apply: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A data set, a model, a loss and metrics.

    Args:
        name: `data set/model`, as in a study definition.
        load_data: returns the splits; called once in each worker.
        build_model: returns an unbuilt or built `keras.Model` that maps prepared inputs to outputs; called
            after the seeds of Python and NumPy are set, which Keras's initializers follow; once under the strategy's
            scope and again for the initial weights of each new seed.
        loss: (labels, outputs) -> one value per example, shape (n,).
        metrics: name -> (labels, outputs) -> one value per example, whose mean over a split is the metric.
            A metric `classification_error` is known to studies as `val/classification_error`.
        maximize: names of the metrics of which more is better.
        prepare: raw inputs -> model inputs, on the device, in training and evaluation alike (a cast,
            a scale).
        augmentation: applied to prepared training inputs only.
        gradient_clip_norm: clip the gradient of the global batch to this norm.
        build_optimizer: (learning_rate, momentum) -> `keras.optimizers.Optimizer`, for
            `optimizer = "workload"`. `learning_rate` is a `LearningRateSchedule` to pass on as it is.
    """

    name: str
    load_data: Callable[[], Data]
    build_model: Callable[[], Any]
    loss: PerExample
    metrics: Mapping[str, PerExample]
    prepare: Callable[[Tensor], Tensor]
    maximize: frozenset[str] = field(default_factory=frozenset)
    augmentation: Augmentation | None = None
    gradient_clip_norm: float | None = None
    build_optimizer: Callable[[Any, float | None], Any] | None = None
