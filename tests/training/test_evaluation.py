"""Evaluation is exact over every example of a split."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from .tiny import CONV, IMAGES, REPLICAS, classifier, images, trainer

SOFTMAX = classifier("softmax")


def in_numpy(model_weights: list[Any], split: Any) -> dict[str, float]:
    """Loss and error of softmax regression, in float64."""
    kernel, bias = (w.astype(np.float64) for w in model_weights)
    logits = (split.inputs.reshape(len(split), -1) / 255.0) @ kernel + bias
    of_label = np.take_along_axis(logits, split.labels[:, None], axis=1)[:, 0]
    loss = np.log(np.exp(logits).sum(axis=1)) - of_label
    return {"loss": float(loss.mean()), "classification_error": float((logits.argmax(axis=1) != split.labels).mean())}


@pytest.mark.parametrize("limit", [2**30, 2000], ids=["resident", "in blocks"])
@pytest.mark.parametrize("replicas", REPLICAS)
@pytest.mark.parametrize("examples", [3, 4, 37, 512, 513, 2049, 3001])
def test_every_example_counts_once(replicas: int, examples: int, limit: int) -> None:
    data = replace(IMAGES, validation=images(examples, seed=4))
    used = trainer(SOFTMAX, replicas=replicas, data=data, resident_bytes_limit=limit)
    found = used.evaluate("validation")
    expected = in_numpy([v.numpy() for v in used.model.weights], data.validation)
    assert found["val/loss"] == pytest.approx(expected["loss"], rel=1e-6)
    assert found["val/classification_error"] == expected["classification_error"]


def test_the_test_split_has_its_own_names() -> None:
    used = trainer(SOFTMAX)
    expected = in_numpy([v.numpy() for v in used.model.weights], IMAGES.test)
    found = used.evaluate("test")
    assert set(found) == {"test/loss", "test/classification_error", "test/cross_entropy_error"}
    assert found["test/classification_error"] == expected["classification_error"]


def test_without_a_test_split_there_are_no_test_metrics() -> None:
    assert trainer(SOFTMAX, data=replace(IMAGES, test=None)).evaluate("test") == {}


def test_fewer_examples_than_replicas() -> None:
    data = replace(IMAGES, validation=images(2, seed=4))
    assert trainer(CONV, replicas=4, data=data).evaluate("validation") == pytest.approx(
        trainer(CONV, replicas=1, data=data).evaluate("validation")
    )
