"""DenseNet-BC for 32×32 images (Huang et al. 2017, "Densely Connected Convolutional Networks")."""

from __future__ import annotations

from typing import Any

from scalesearch.errors import WorkloadError

BLOCKS = 3
BOTTLENECK = 4  # a bottleneck layer has 4 × growth rate filters
COMPRESSION = 0.5


def check_densenet_bc_options(*, depth: int, growth_rate: int, weight_decay: float) -> None:
    """Raise WorkloadError for a DenseNet-BC that cannot be built."""
    if depth < 10 or (depth - 4) % (2 * BLOCKS):
        raise WorkloadError(
            f"`depth` must be 4 more than a multiple of {2 * BLOCKS} (10, 16, …, 40, …, 100), but got {depth}"
        )
    if growth_rate < 1:
        raise WorkloadError(f"`growth_rate >= 1` must hold, but got {growth_rate}")
    if not weight_decay >= 0:  # catches NaN too
        raise WorkloadError(f"`weight_decay >= 0` must hold, but got {weight_decay}")


def densenet_bc(
    input_shape: tuple[int, int, int],
    *,
    classes: int,
    depth: int,
    growth_rate: int,
    weight_decay: float,
    synchronized_batch_norm: bool,
) -> Any:
    """A DenseNet with bottleneck layers and compression, which outputs logits.

    Args:
        depth: layers with weights: 1 convolution, 3 blocks of (depth − 4) / 6 bottleneck layers of two
            convolutions each, 2 transitions, 1 dense layer.
        growth_rate: channels that each bottleneck layer adds (k in the paper).
        weight_decay: adds weight_decay/2 · ‖w‖² over the convolution and dense kernels to the loss, whose
            gradient is the paper's weight_decay · w.
        synchronized_batch_norm: normalise over the examples of all replicas instead of each replica's own.
    """
    import keras
    from keras import layers

    def convolution(x: Any, filters: int, kernel_size: int) -> Any:
        return layers.Conv2D(
            filters,
            kernel_size,
            padding="same",
            use_bias=False,
            kernel_initializer="he_normal",
            kernel_regularizer=keras.regularizers.L2(weight_decay / 2),
        )(x)

    def normalized_relu(x: Any) -> Any:
        # Momentum and ε of the paper's implementation; Keras's default momentum of 0.99 needs many steps.
        normalized = layers.BatchNormalization(momentum=0.9, epsilon=1e-5, synchronized=synchronized_batch_norm)(x)
        return layers.ReLU()(normalized)

    def bottleneck_layer(x: Any) -> Any:
        new = convolution(normalized_relu(x), BOTTLENECK * growth_rate, 1)
        new = convolution(normalized_relu(new), growth_rate, 3)
        return layers.Concatenate()([x, new])

    def transition(x: Any) -> Any:
        return layers.AveragePooling2D(2)(convolution(normalized_relu(x), int(x.shape[-1] * COMPRESSION), 1))

    inputs = keras.Input(input_shape)
    x = convolution(inputs, 2 * growth_rate, 3)
    for block in range(BLOCKS):
        if block:
            x = transition(x)
        for _ in range((depth - 4) // (2 * BLOCKS)):
            x = bottleneck_layer(x)
    x = layers.GlobalAveragePooling2D()(normalized_relu(x))
    logits = layers.Dense(classes, kernel_regularizer=keras.regularizers.L2(weight_decay / 2))(x)
    return keras.Model(inputs, logits)
