"""MNIST: 70,000 handwritten digits of 28×28 in 10 classes (LeCun et al. 1998).

55,000 training and 5,000 validation images, which are the last 5,000 of the 60,000; 10,000 test images.
Files of your own: the four IDX files, plain or as .gz, in `$SCALESEARCH_DATA/mnist/`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from scalesearch.errors import DataError
from scalesearch.workloads import models
from scalesearch.workloads.classification import METRICS, cross_entropy
from scalesearch.workloads.idx import find_idx, read_idx
from scalesearch.workloads.images import Images, labelled
from scalesearch.workloads.sources import (
    DATA_FOLDER_VARIABLE,
    KerasArrays,
    Source,
    UnavailableError,
    download,
    keras_cache,
    read_first,
    user_folder,
)
from scalesearch.workloads.workload import Data, Split, Tensor, Workload

TRAIN, VALIDATION, TEST = 55_000, 5_000, 10_000
TRAIN_SHAPE = (TRAIN + VALIDATION, 28, 28)
TEST_SHAPE = (TEST, 28, 28)
INPUT_SHAPE = (28, 28, 1)
IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
IDX_FILES_IN_WORDS = f"{', '.join(IDX_FILES)} (plain, or compressed as .gz)"


def mlp(*, hidden_units: int = 128, hidden_layers: int = 1) -> Workload:
    """`mnist/mlp`: an MLP on the 784 pixels."""
    models.check_mlp_options(hidden_units=hidden_units, hidden_layers=hidden_layers)
    build_model = partial(models.mlp, INPUT_SHAPE, hidden_units=hidden_units, hidden_layers=hidden_layers)
    return grey_images_workload("mnist/mlp", load_data=load_data, build_model=build_model)


def simple_cnn(*, dropout: float = 0.0) -> Workload:
    """`mnist/simple_cnn`: two convolutions and a dense layer of 1024 units."""
    models.check_simple_cnn_options(dropout=dropout)
    build_model = partial(models.simple_cnn, INPUT_SHAPE, dropout=dropout)
    return grey_images_workload("mnist/simple_cnn", load_data=load_data, build_model=build_model)


def load_data() -> Data:
    """The splits, from the first source that has the files."""
    sources = [
        Source(name=DATA_FOLDER_VARIABLE, read=lambda: read_idx_files(user_folder("mnist"))),
        Source(name="Keras's cache", read=lambda: read_npz(keras_cache() / "mnist.npz")),
        Source(name="Keras's download", read=lambda: from_keras(download("mnist"), origin="Keras's mnist")),
    ]
    return read_first("mnist", sources, files=IDX_FILES_IN_WORDS).hold_out(VALIDATION)


def grey_images_workload(name: str, *, load_data: Callable[[], Data], build_model: Callable[[], Any]) -> Workload:
    """A workload on grey images of 28×28 in 10 classes."""
    return Workload(
        name=name,
        load_data=load_data,
        build_model=build_model,
        loss=cross_entropy,
        metrics=METRICS,
        prepare=prepare,
    )


def prepare(inputs: Tensor) -> Tensor:
    """Pixels 0…255 to float32 0…1."""
    import tensorflow as tf

    return tf.cast(inputs, tf.float32) / 255


def read_idx_files(folder: Path) -> Images:
    """MNIST or Fashion-MNIST from the four IDX files in `folder`.

    Raises:
        UnavailableError: a file is missing.
        DataError: a file is damaged or holds something else.
    """
    train_images, train_labels, test_images, test_labels = (find_idx(folder, name) for name in IDX_FILES)

    def split(images: Path, labels: Path, shape: tuple[int, int, int]) -> Split:
        return labelled(
            read_idx(images, shape=shape),
            read_idx(labels, shape=shape[:1]),
            shape=shape,
            classes=models.CLASSES,
            origin=labels,
        )

    return Images(
        train=split(train_images, train_labels, TRAIN_SHAPE), test=split(test_images, test_labels, TEST_SHAPE)
    )


def read_npz(path: Path) -> Images:
    """MNIST from the file that Keras keeps of it.

    Raises:
        UnavailableError: there is no such file.
        DataError: the file is damaged or holds something else.
    """
    if not path.is_file():
        raise UnavailableError(f"{path} does not exist")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            x_train, y_train, x_test, y_test = (arrays[f"{x}_{s}"] for s in ("train", "test") for x in "xy")
    except (OSError, EOFError, ValueError, KeyError, TypeError, BadZipFile) as error:
        raise DataError(
            f"{path}: expected an npz file with x_train, y_train, x_test and y_test, but: {error}."
        ) from error
    return from_keras(((x_train, y_train), (x_test, y_test)), origin=path)


def from_keras(arrays: KerasArrays, *, origin: Path | str) -> Images:
    """MNIST or Fashion-MNIST from arrays as Keras returns them, checked."""
    (x_train, y_train), (x_test, y_test) = arrays
    of_split = partial(labelled, classes=models.CLASSES, origin=origin)
    return Images(
        train=of_split(x_train, y_train, shape=TRAIN_SHAPE),
        test=of_split(x_test, y_test, shape=TEST_SHAPE),
    )
