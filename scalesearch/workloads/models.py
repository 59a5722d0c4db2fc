"""The small models that several data sets share. Both output one logit per class."""

from __future__ import annotations

from typing import Any

from scalesearch.errors import WorkloadError

CLASSES = 10


def mlp(input_shape: tuple[int, ...], *, hidden_units: int, hidden_layers: int) -> Any:
    """A multilayer perceptron of `hidden_layers` equal ReLU layers; none is softmax regression."""
    import keras

    return keras.Sequential(
        [
            keras.Input(input_shape),
            keras.layers.Flatten(),
            *(keras.layers.Dense(hidden_units, activation="relu") for _ in range(hidden_layers)),
            keras.layers.Dense(CLASSES),
        ]
    )


def simple_cnn(input_shape: tuple[int, ...], *, dropout: float) -> Any:
    """The Simple CNN of Shallue et al. 2018; `dropout` acts on the dense layer's outputs."""
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Conv2D(32, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(64, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(1024, activation="relu"),
            *([layers.Dropout(dropout)] if dropout else []),
            layers.Dense(CLASSES),
        ]
    )


def check_mlp_options(*, hidden_units: int, hidden_layers: int) -> None:
    """Raise WorkloadError for an MLP that cannot be built."""
    if hidden_units < 1:
        raise WorkloadError(f"`hidden_units >= 1` must hold, but got {hidden_units}")
    if hidden_layers < 0:
        raise WorkloadError(f"`hidden_layers >= 0` must hold, but got {hidden_layers}")


def check_simple_cnn_options(*, dropout: float) -> None:
    """Raise WorkloadError for a Simple CNN that cannot be built."""
    if not 0 <= dropout < 1:
        raise WorkloadError(f"`0 <= dropout < 1` must hold, but got {dropout}")
