from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scalesearch.workloads import fashion_mnist

pytestmark = pytest.mark.skipif(
    not fashion_mnist.DISTRIBUTION_FOLDER.is_dir(), reason="the package dataset-fashion-mnist is not installed"
)


def test_real_images_load_from_the_distributions_folder(data_folder: Path) -> None:
    data = fashion_mnist.load_data()
    assert data.test is not None
    assert data.train.inputs.shape == (55_000, 28, 28, 1)
    assert data.validation.inputs.shape == (5_000, 28, 28, 1)
    assert data.test.inputs.shape == (10_000, 28, 28, 1)
    published = np.full(10, 6_000)  # images per class
    both = np.concatenate([data.train.labels, data.validation.labels])
    np.testing.assert_array_equal(np.bincount(both), published)
    np.testing.assert_array_equal(np.bincount(data.test.labels), published // 6)
    assert data.train.inputs.mean() / 255 == pytest.approx(0.286, abs=0.001)  # the published mean
