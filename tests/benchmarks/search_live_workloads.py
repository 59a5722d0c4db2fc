"""Workloads of the benchmark's own, in the public interface."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from scalesearch.workloads import Data, Split, Workload
from scalesearch.workloads.classification import METRICS, cross_entropy
from scalesearch.workloads.fashion_mnist import load_data
from scalesearch.workloads.mnist import prepare


def small_cnn() -> Workload:
    """Two convolutions with batch normalisation, on Fashion-MNIST averaged to 14×14."""
    return Workload(
        name="fashion_mnist/small_cnn",
        load_data=_pooled,
        build_model=_build_small_cnn,
        loss=cross_entropy,
        metrics=METRICS,
        prepare=prepare,
    )


def _pooled() -> Data:
    data = load_data()
    return Data(train=_half_size(data.train), validation=_half_size(data.validation))


def _half_size(split: Split) -> Split:
    n, height, width, channels = split.inputs.shape
    blocks = split.inputs.reshape(n, height // 2, 2, width // 2, 2, channels)
    return replace(split, inputs=blocks.mean(axis=(2, 4)).astype(np.uint8))


def _build_small_cnn() -> Any:
    import keras
    from keras import layers

    def block(filters: int) -> list[Any]:
        return [
            layers.Conv2D(filters, 3, strides=2, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
        ]

    head = [layers.GlobalAveragePooling2D(), layers.Dense(10)]
    return keras.Sequential([keras.Input((14, 14, 1)), *block(12), *block(24), *head])
