from __future__ import annotations

import math

import numpy as np
import pytest

from scalesearch.errors import WorkloadError
from scalesearch.workloads import BUILT_IN, load_workload, models

INPUT_SHAPES = {"digits": (8, 8, 1), "mnist": (28, 28, 1), "fashion_mnist": (28, 28, 1)}
NAMES = [name for name in BUILT_IN if name.split("/")[0] in INPUT_SHAPES]


@pytest.mark.parametrize("name", NAMES)
def test_model_maps_prepared_inputs_to_logits_and_has_the_listed_parameters(name: str) -> None:
    workload = load_workload(name)
    model = workload.build_model()
    raw = np.random.default_rng(0).integers(0, 17, (6, *INPUT_SHAPES[name.split("/")[0]])).astype(np.uint8)
    prepared = workload.prepare(raw)
    assert prepared.dtype == np.float32
    logits = model(prepared).numpy()
    assert logits.shape == (6, 10)
    assert logits.min() < 0  # no softmax
    trainable = sum(math.prod(weight.shape) for weight in model.trainable_variables)
    assert trainable == BUILT_IN[name].trainable_parameters


def test_simple_cnn_has_the_papers_parameters() -> None:
    assert models.simple_cnn((28, 28, 1), dropout=0.0).count_params() == 3_274_634


def test_mlp_options() -> None:
    softmax_regression = models.mlp((8, 8, 1), hidden_units=7, hidden_layers=0)
    assert softmax_regression.count_params() == 64 * 10 + 10
    deep = models.mlp((8, 8, 1), hidden_units=7, hidden_layers=2)
    assert deep.count_params() == (64 * 7 + 7) + (7 * 7 + 7) + (7 * 10 + 10)


def test_dropout_acts_in_training_only() -> None:
    model = models.simple_cnn((8, 8, 1), dropout=0.9)
    inputs = np.ones((2, 8, 8, 1), np.float32)
    evaluated = model(inputs, training=False).numpy()
    np.testing.assert_array_equal(evaluated, model(inputs, training=False).numpy())
    assert np.abs(evaluated - model(inputs, training=True).numpy()).max() > 1e-3


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 2])
def test_dropout_out_of_range(dropout: float) -> None:
    with pytest.raises(WorkloadError, match=f"`0 <= dropout < 1` must hold, but got {dropout}"):
        load_workload("mnist/simple_cnn", {"dropout": dropout})
