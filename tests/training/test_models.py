"""Initial weights are a function of the seed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import keras
import pytest
import tensorflow as tf

from scalesearch.errors import WorkloadError
from scalesearch.training.models import build_model, initial_values

from .tiny import DENSE, DROPOUT, IMAGES, REPLICAS, difference, run, trained, trainer, weights


@pytest.mark.parametrize("workload", [DENSE, DROPOUT], ids=["dense", "dropout"])
def test_initial_values_are_a_function_of_the_seed(workload: Any) -> None:
    values = [initial_values(workload, IMAGES.train, seed=seed) for seed in (1, 2, 1)]
    assert difference(values[0], values[2]) == 0.0
    assert difference(values[0], values[1]) > 0.0
    built = build_model(workload, IMAGES.train, seed=1)
    assert difference(values[0], [variable.numpy() for variable in built.variables]) == 0.0


def test_a_new_seed_leaves_compiled_functions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def set_seed(seed: int) -> None:
        pytest.fail("tf.random.set_seed clears TensorFlow's caches: the next steps compile again")

    monkeypatch.setattr(tf.random, "set_seed", set_seed)
    initial_values(DENSE, IMAGES.train, seed=1)


@pytest.mark.parametrize("replicas", REPLICAS)
def test_a_model_that_is_not_built_yet(replicas: int) -> None:
    class Late(keras.Model):  # type: ignore[misc]  # Keras has no types
        def __init__(self) -> None:
            super().__init__()
            self.flatten = keras.layers.Flatten()
            self.hidden = keras.layers.Dense(8, activation="tanh")
            self.logits = keras.layers.Dense(3)

        def call(self, inputs: Any) -> Any:
            return self.logits(self.hidden(self.flatten(inputs)))

    used = trainer(replace(DENSE, build_model=Late), replicas=replicas, optimizer="momentum")
    run(used, momentum=0.8)
    assert difference(weights(used), trained("dense", replicas=1)) < 1e-5


def test_a_model_that_cannot_be_built_is_named() -> None:
    def build_model() -> Any:
        raise KeyError("width")

    with pytest.raises(WorkloadError, match=r"tiny/dense.*build_model raised KeyError: 'width'"):
        trainer(replace(DENSE, build_model=build_model))
    with pytest.raises(WorkloadError, match=r"tiny/dense.*must return a keras\.Model, but returned 3"):
        trainer(replace(DENSE, build_model=lambda: 3))
