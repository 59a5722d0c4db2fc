"""A data set of labelled images, and the checks that what was read is one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scalesearch.errors import DataError
from scalesearch.workloads.workload import Data, Split

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Images:
    """A data set of labelled images as its publisher splits it: training and test."""

    train: Split
    test: Split

    def hold_out(self, validation: int) -> Data:
        """The splits of a workload: the last `validation` training examples are the validation split."""
        first = len(self.train) - validation
        inputs, labels = self.train.inputs, self.train.labels
        return Data(
            train=Split(inputs=inputs[:first], labels=labels[:first]),
            validation=Split(inputs=inputs[first:], labels=labels[first:]),
            test=self.test,
        )


def labelled(images: Array, labels: Array, *, shape: tuple[int, ...], classes: int, origin: Path | str) -> Split:
    """Checked images and labels as a split; grey images get a channel axis.

    Args:
        images: uint8, of `shape` (examples, height, width[, channels]).
        labels: uint8, (examples,) or (examples, 1), each below `classes`.
        origin: what the message of a DataError names.
    """
    for array, expected in ((images, shape), (labels.reshape(-1), shape[:1])):
        if array.shape != expected or array.dtype != np.uint8:
            raise DataError(
                f"{origin}: expected uint8 of shape {expected}, but found {array.dtype} of shape {array.shape}."
            )
    if labels.max() >= classes:
        position = int(np.argmax(labels >= classes))
        raise DataError(
            f"{origin}: labels must be between 0 and {classes - 1}, but the one at position {position} is "
            f"{labels.flat[position]}."
        )
    with_channels = images if images.ndim == 4 else images[..., np.newaxis]
    return Split(inputs=with_channels, labels=labels.reshape(-1).astype(np.int32))
