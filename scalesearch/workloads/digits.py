"""scikit-learn's bundled digits: 1,797 images of 8×8 in 10 classes, part of the package, no download."""

from __future__ import annotations

from functools import partial

import numpy as np

from scalesearch.workloads import models
from scalesearch.workloads.classification import METRICS, cross_entropy
from scalesearch.workloads.workload import Data, Split, Tensor, Workload

TRAIN, VALIDATION, TEST = 1_257, 270, 270
_LARGEST_PIXEL = 16


def mlp(*, hidden_units: int = 128, hidden_layers: int = 1) -> Workload:
    """`digits/mlp`: an MLP on the 64 pixels."""
    models.check_mlp_options(hidden_units=hidden_units, hidden_layers=hidden_layers)
    return Workload(
        name="digits/mlp",
        load_data=load_data,
        build_model=partial(models.mlp, (8, 8, 1), hidden_units=hidden_units, hidden_layers=hidden_layers),
        loss=cross_entropy,
        metrics=METRICS,
        prepare=prepare,
    )


def load_data() -> Data:
    """The splits: consecutive parts of one fixed permutation, always the same."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    inputs = digits.images.astype(np.uint8)[..., np.newaxis]
    labels = digits.target.astype(np.int32)
    # RandomState and not default_rng: its stream is frozen, so every NumPy version gives the same splits.
    order = np.random.RandomState(0).permutation(TRAIN + VALIDATION + TEST)
    train, validation, test = np.split(order, [TRAIN, TRAIN + VALIDATION])
    return Data(
        train=Split(inputs=inputs[train], labels=labels[train]),
        validation=Split(inputs=inputs[validation], labels=labels[validation]),
        test=Split(inputs=inputs[test], labels=labels[test]),
    )


def prepare(inputs: Tensor) -> Tensor:
    """Pixels 0…16 to float32 0…1."""
    import tensorflow as tf

    return tf.cast(inputs, tf.float32) / _LARGEST_PIXEL
