"""CIFAR-10: 60,000 colour photographs of 32×32 in 10 classes (Krizhevsky 2009).

45,000 training and 5,000 validation images, which are the last 5,000 of the 50,000; 10,000 test images.
Files of your own: `data_batch_1.bin` … `data_batch_5.bin` and `test_batch.bin` of the binary version, or the same
names without .bin of the Python version, in `$SCALESEARCH_DATA/cifar10/`.
"""

from __future__ import annotations

from functools import partial

from scalesearch.workloads import densenet
from scalesearch.workloads.cifar10_files import CLASSES, read_cifar10
from scalesearch.workloads.classification import METRICS, cross_entropy
from scalesearch.workloads.images import Images, labelled
from scalesearch.workloads.sources import (
    DATA_FOLDER_VARIABLE,
    KerasArrays,
    Source,
    download,
    keras_cache,
    read_first,
    user_folder,
)
from scalesearch.workloads.workload import Augmentation, Data, Tensor, Workload

TRAIN, VALIDATION, TEST = 45_000, 5_000, 10_000
INPUT_SHAPE = (32, 32, 3)
PADDING = 4

# Per channel, of the pixels of the 50,000 images: the constants that the ResNet and DenseNet papers' code uses.
CHANNEL_MEAN = (125.3, 123.0, 113.9)
CHANNEL_DEVIATION = (63.0, 62.1, 66.7)


def densenet_bc(
    *,
    depth: int = 100,
    growth_rate: int = 12,
    weight_decay: float = 1e-4,
    synchronized_batch_norm: bool = False,
) -> Workload:
    """`cifar10/densenet_bc`: DenseNet-BC with the augmentation that is standard for CIFAR-10."""
    densenet.check_densenet_bc_options(depth=depth, growth_rate=growth_rate, weight_decay=weight_decay)
    return Workload(
        name="cifar10/densenet_bc",
        load_data=load_data,
        build_model=partial(
            densenet.densenet_bc,
            INPUT_SHAPE,
            classes=CLASSES,
            depth=depth,
            growth_rate=growth_rate,
            weight_decay=weight_decay,
            synchronized_batch_norm=synchronized_batch_norm,
        ),
        loss=cross_entropy,
        metrics=METRICS,
        prepare=prepare,
        augmentation=Augmentation(random_numbers=3, apply=crop_and_flip),
    )


def load_data() -> Data:
    """The splits, from the first source that has the files."""
    new_cache = keras_cache() / "cifar-10-batches-py-target" / "cifar-10-batches-py"
    old_cache = keras_cache() / "cifar-10-batches-py"
    sources = [
        Source(name=DATA_FOLDER_VARIABLE, read=lambda: read_cifar10(user_folder("cifar10"))),
        Source(name="Keras's cache", read=lambda: read_cifar10(new_cache)),
        Source(name="Keras's cache of older versions", read=lambda: read_cifar10(old_cache)),
        Source(name="Keras's download", read=lambda: _from_keras(download("cifar10"))),
    ]
    files = (
        "data_batch_1.bin … data_batch_5.bin and test_batch.bin of its binary version (or, without .bin, of its "
        "Python version)"
    )
    return read_first("cifar10", sources, files=files).hold_out(VALIDATION)


def prepare(inputs: Tensor) -> Tensor:
    """Pixels 0…255 to float32 with mean 0 and standard deviation 1 per channel over the data set."""
    import tensorflow as tf

    return (tf.cast(inputs, tf.float32) - CHANNEL_MEAN) / CHANNEL_DEVIATION


def crop_and_flip(inputs: Tensor, uniforms: Tensor) -> Tensor:
    """Pad 4 zeros on every side, crop 32×32 somewhere, mirror half of the images.

    `uniforms` (n, 3) are the row of the crop, its column, and the flip, which happens from 0.5 on. Rows and columns
    are 0…8, each with the same chance; 4 is the middle.
    """
    import tensorflow as tf

    size = INPUT_SHAPE[0]
    padded = tf.pad(inputs, [[0, 0], [PADDING, PADDING], [PADDING, PADDING], [0, 0]])
    corner = tf.cast(uniforms[:, :2] * (2 * PADDING + 1), tf.int32)
    offsets = tf.range(size)
    flipped = uniforms[:, 2:] >= 0.5
    rows = corner[:, :1] + offsets
    columns = corner[:, 1:] + tf.where(flipped, size - 1 - offsets, offsets)
    return tf.gather(tf.gather(padded, rows, batch_dims=1), columns, axis=2, batch_dims=1)


def _from_keras(arrays: KerasArrays) -> Images:
    (x_train, y_train), (x_test, y_test) = arrays
    checked = partial(labelled, classes=CLASSES, origin="Keras's cifar10")
    return Images(
        train=checked(x_train, y_train, shape=(TRAIN + VALIDATION, *INPUT_SHAPE)),
        test=checked(x_test, y_test, shape=(TEST, *INPUT_SHAPE)),
    )
