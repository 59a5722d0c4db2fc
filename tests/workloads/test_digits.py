from __future__ import annotations

import numpy as np
import pytest

from scalesearch.workloads import Data, digits


@pytest.fixture(scope="module")
def data() -> Data:
    return digits.load_data()


def test_splits_hold_every_image_once(data: Data) -> None:
    from sklearn.datasets import load_digits

    assert data.test is not None
    splits = (data.train, data.validation, data.test)
    assert [len(split) for split in splits] == [1_257, 270, 270]
    found = [
        (*image.ravel(), label) for split in splits for image, label in zip(split.inputs, split.labels, strict=True)
    ]
    bundled = load_digits()
    expected = [(*image, label) for image, label in zip(bundled.data, bundled.target, strict=True)]
    assert sorted(found) == sorted(expected)


def test_every_class_is_in_every_split(data: Data) -> None:
    assert data.test is not None
    for split in (data.train, data.validation, data.test):
        shares = np.bincount(split.labels, minlength=10) / len(split)
        assert shares.min() > 0.06
        assert shares.max() < 0.14


def test_the_splits_are_the_same_for_ever(data: Data) -> None:
    # If this fails, results on digits can no longer be compared with earlier ones: undo the change.
    assert data.train.labels[:12].tolist() == [2, 8, 2, 6, 6, 7, 1, 9, 8, 5, 2, 8]


def test_types(data: Data) -> None:
    assert data.train.inputs.dtype == np.uint8
    assert data.train.inputs.shape == (1_257, 8, 8, 1)
    assert data.train.labels.dtype == np.int32
