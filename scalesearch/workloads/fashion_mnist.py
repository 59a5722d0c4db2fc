"""Fashion-MNIST: 70,000 pictures of clothes of 28×28 in 10 classes (Xiao et al. 2017).

55,000 training and 5,000 validation images, which are the last 5,000 of the 60,000; 10,000 test images.
Files of your own: the four IDX files, plain or as .gz, in `$SCALESEARCH_DATA/fashion_mnist/`. Debian and
Ubuntu have them as the package `dataset-fashion-mnist`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from scalesearch.workloads import models
from scalesearch.workloads.mnist import (
    IDX_FILES_IN_WORDS,
    INPUT_SHAPE,
    VALIDATION,
    from_keras,
    grey_images_workload,
    read_idx_files,
)
from scalesearch.workloads.sources import (
    DATA_FOLDER_VARIABLE,
    Source,
    download,
    keras_cache,
    read_first,
    user_folder,
)
from scalesearch.workloads.workload import Data, Workload

DISTRIBUTION_FOLDER = Path("/usr/share/datasets/fashion-mnist")


def mlp(*, hidden_units: int = 128, hidden_layers: int = 1) -> Workload:
    """`fashion_mnist/mlp`: an MLP on the 784 pixels."""
    models.check_mlp_options(hidden_units=hidden_units, hidden_layers=hidden_layers)
    build_model = partial(models.mlp, INPUT_SHAPE, hidden_units=hidden_units, hidden_layers=hidden_layers)
    return grey_images_workload("fashion_mnist/mlp", load_data=load_data, build_model=build_model)


def simple_cnn(*, dropout: float = 0.0) -> Workload:
    """`fashion_mnist/simple_cnn`: two convolutions and a dense layer of 1024 units."""
    models.check_simple_cnn_options(dropout=dropout)
    build_model = partial(models.simple_cnn, INPUT_SHAPE, dropout=dropout)
    return grey_images_workload("fashion_mnist/simple_cnn", load_data=load_data, build_model=build_model)


def load_data() -> Data:
    """The splits, from the first source that has the files."""
    sources = [
        Source(name=DATA_FOLDER_VARIABLE, read=lambda: read_idx_files(user_folder("fashion_mnist"))),
        Source(name="Keras's cache", read=lambda: read_idx_files(keras_cache() / "fashion-mnist")),
        Source(name="package dataset-fashion-mnist", read=lambda: read_idx_files(DISTRIBUTION_FOLDER)),
        Source(
            name="Keras's download",
            read=lambda: from_keras(download("fashion_mnist"), origin="Keras's fashion_mnist"),
        ),
    ]
    return read_first("fashion_mnist", sources, files=IDX_FILES_IN_WORDS).hold_out(VALIDATION)
