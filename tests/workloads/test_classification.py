from __future__ import annotations

import numpy as np
import pytest

from scalesearch.workloads.classification import METRICS, classification_error, cross_entropy

LOGITS = np.array([[2.0, 1.0, -1.0], [0.0, 3.0, 0.5], [0.1, 0.2, 0.3], [50.0, -50.0, 0.0]], np.float32)
LABELS = np.array([0, 2, 2, 1], np.int32)


@pytest.mark.parametrize("precision", [np.float32, np.float16])
def test_cross_entropy_per_example(precision: type) -> None:
    logits = LOGITS.astype(precision)
    wide = logits.astype(np.float64)
    expected = np.log(np.exp(wide).sum(axis=1)) - wide[np.arange(4), LABELS]
    losses = cross_entropy(LABELS, logits).numpy()
    assert losses.dtype == np.float32
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_classification_error_per_example() -> None:
    import tensorflow as tf

    errors = classification_error(tf.constant(LABELS), tf.constant(LOGITS)).numpy()
    assert errors.dtype == np.float32
    np.testing.assert_array_equal(errors, [0, 1, 0, 1])


def test_metrics_have_the_papers_names() -> None:
    assert set(METRICS) == {"classification_error", "cross_entropy_error"}
