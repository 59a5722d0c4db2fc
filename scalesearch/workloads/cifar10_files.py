"""The two formats in which CIFAR-10 is published: `cifar-10-batches-bin` and `cifar-10-batches-py`.

Either is five training files and one test file of 10,000 images. A binary record is the label and then the red,
green and blue planes of 32×32 bytes; a Python file is a pickled dict of labels and an array of such planes.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np

from scalesearch.errors import DataError
from scalesearch.workloads.images import Array, Images, labelled
from scalesearch.workloads.sources import UnavailableError
from scalesearch.workloads.workload import Split

FILES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
CLASSES = 10
EXAMPLES_PER_FILE = 10_000
_PLANES = (3, 32, 32)
_BYTES_PER_IMAGE = 3 * 32 * 32

# All that a pickled array refers to. NumPy 2 renamed its internal module.
_PICKLE_NAMES = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}


def read_cifar10(folder: Path) -> Images:
    """CIFAR-10 from the binary files in `folder`, or else from the Python files there.

    Raises:
        UnavailableError: neither set of files is complete.
        DataError: a file is damaged or holds something else.
    """
    for ending, read in ((".bin", read_binary), ("", read_pickle)):
        paths = [folder / f"{name}{ending}" for name in FILES]
        if all(path.is_file() for path in paths):
            *train, test = map(read, paths)
            inputs = np.concatenate([split.inputs for split in train])
            labels = np.concatenate([split.labels for split in train])
            return Images(train=Split(inputs=inputs, labels=labels), test=test)
    raise UnavailableError(f"{folder} does not hold data_batch_1…5 and test_batch, all with .bin or all without")


def read_binary(path: Path) -> Split:
    """One file of `cifar-10-batches-bin`."""
    content = _read_bytes(path)
    record_bytes = 1 + _BYTES_PER_IMAGE
    if len(content) != EXAMPLES_PER_FILE * record_bytes:
        raise DataError(
            f"{path}: expected {EXAMPLES_PER_FILE} records of {record_bytes} bytes, in all "
            f"{EXAMPLES_PER_FILE * record_bytes} bytes, but found {len(content)} bytes."
        )
    records = np.frombuffer(content, np.uint8).reshape(EXAMPLES_PER_FILE, record_bytes)
    return _split(records[:, 1:], records[:, 0], path=path)


def read_pickle(path: Path) -> Split:
    """One file of `cifar-10-batches-py`; nothing in it can run code."""
    content = _read_bytes(path)
    try:
        batch = _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
        images, labels = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"], np.uint8)
    except Exception as error:  # a damaged pickle raises whatever its bytes happen to mean
        raise DataError(
            f"{path}: expected a pickled dict with data and labels, but loading it failed with "
            f"{type(error).__name__}: {error}."
        ) from error
    if images.shape != (EXAMPLES_PER_FILE, _BYTES_PER_IMAGE):
        raise DataError(
            f"{path}: expected data of shape {(EXAMPLES_PER_FILE, _BYTES_PER_IMAGE)}, but found {images.shape}."
        )
    return _split(images, labels, path=path)


class _ArrayUnpickler(pickle.Unpickler):
    """Loads arrays and builtin containers; refuses all else that a pickle can make Python do."""

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in _PICKLE_NAMES:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong in a file of images")
        return super().find_class(module, name)


def _split(images: Array, labels: Array, *, path: Path) -> Split:
    channels_last = images.reshape(-1, *_PLANES).transpose(0, 2, 3, 1)
    shape = (EXAMPLES_PER_FILE, 32, 32, 3)
    return labelled(np.ascontiguousarray(channels_last), labels, shape=shape, classes=CLASSES, origin=path)


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: the file cannot be read: {error.strerror}.") from error
