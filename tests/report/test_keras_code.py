"""The printed code is run with the real Keras: what is pasted must be what was measured."""

from __future__ import annotations

from typing import Any

import pytest

from scalesearch.core.parameters import Parameters
from scalesearch.core.schedule import Constant, Linear, Piecewise, Schedule, first_step_from, rate
from scalesearch.report.keras_code import keras_code

BATCH = 64
SCHEDULES: dict[str, Schedule] = {
    "constant": Constant(learning_rate=0.0123456789),
    "constant, a whole number": Constant(learning_rate=1.0),
    "a boundary between steps": Piecewise(learning_rate=0.3, decay_factor=0.1, boundaries=(1000,)),
    "a boundary on a step": Piecewise(learning_rate=0.3, decay_factor=0.1, boundaries=(640,)),
    "a boundary in the first step": Piecewise(learning_rate=0.3, decay_factor=0.1, boundaries=(5,)),
    "a boundary after the first step": Piecewise(learning_rate=1.0, decay_factor=0.1, boundaries=(64,)),
    "three boundaries": Piecewise(learning_rate=1.0, decay_factor=0.3333333, boundaries=(640, 1000, 6401)),
    "two boundaries in one step": Piecewise(learning_rate=0.3, decay_factor=0.5, boundaries=(1000, 1010, 2000)),
    "no boundary": Piecewise(learning_rate=0.3, decay_factor=0.5, boundaries=()),
    "whole numbers only": Piecewise(learning_rate=4.0, decay_factor=0.5, boundaries=(640, 1280)),
    "linear, of whole steps": Linear(learning_rate=0.3, decay_examples=64 * 50, end_factor=0.01),
    "linear, a fraction of a step": Linear(learning_rate=1.0, decay_examples=64 * 10 + 1, end_factor=0.01),
    "linear, within the first step": Linear(learning_rate=0.3, decay_examples=10, end_factor=0.1),
    "linear, to nothing": Linear(learning_rate=2.0, decay_examples=999, end_factor=0.0),
    "linear, from a whole number": Linear(learning_rate=8.0, decay_examples=1000, end_factor=0.5),
}


@pytest.fixture(scope="module")
def namespace() -> dict[str, Any]:
    """The imports that the code expects."""
    import keras
    import tensorflow as tf

    return {"keras": keras, "tf": tf}


def run(namespace: dict[str, Any], schedule: Schedule, *, optimizer: str = "sgd", **options: Any) -> dict[str, Any]:
    parameters = Parameters(global_batch_size=BATCH, schedule=schedule, **options)
    variables = dict(namespace)
    exec(keras_code(parameters, optimizer=optimizer, replicas=1), variables)
    return variables


def steps_around(schedule: Schedule) -> list[int]:
    """Every step near a boundary, and some elsewhere."""
    near = {
        first_step_from(b, global_batch_size=BATCH) + offset for b in schedule.boundaries for offset in range(-3, 4)
    }
    return sorted(step for step in near | set(range(12)) | {20, 200, 10_000} if step >= 0)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_learning_rate_at_every_step_is_the_schedules(namespace: dict[str, Any], name: str) -> None:
    schedule = SCHEDULES[name]
    learning_rate = run(namespace, schedule)["learning_rate"]
    for step in steps_around(schedule):
        keras_rate = float(learning_rate(step)) if callable(learning_rate) else learning_rate
        # As exact as float32: 6e-8 of the initial rate for each operation.
        tolerance = 5e-7 * schedule.learning_rate
        assert keras_rate == pytest.approx(rate(schedule, step * BATCH), rel=1e-6, abs=tolerance), step


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_optimizer_starts_with_the_schedules_rate(namespace: dict[str, Any], name: str) -> None:
    optimizer = run(namespace, SCHEDULES[name])["optimizer"]
    learning_rate = float(namespace["tf"].convert_to_tensor(optimizer.learning_rate))
    assert learning_rate == pytest.approx(SCHEDULES[name].learning_rate, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "kind", "attributes"),
    [
        ("sgd", "SGD", {"momentum": 0.0, "nesterov": False}),
        ("momentum", "SGD", {"momentum": 0.875, "nesterov": False}),
        ("nesterov", "SGD", {"momentum": 0.875, "nesterov": True}),
        ("adam", "Adam", {"beta_1": 0.875}),
        ("adamw", "AdamW", {"beta_1": 0.875}),
    ],
)
def test_the_optimizer_is_the_one_measured(
    namespace: dict[str, Any], name: str, kind: str, attributes: dict[str, Any]
) -> None:
    momentum = None if name == "sgd" else 0.875
    optimizer = run(namespace, Constant(learning_rate=1.0), optimizer=name, momentum=momentum)["optimizer"]
    assert type(optimizer).__name__ == kind
    assert {key: getattr(optimizer, key) for key in attributes} == attributes


def test_momentum_zero_is_a_momentum(namespace: dict[str, Any]) -> None:
    variables = run(namespace, Constant(learning_rate=0.1), optimizer="momentum", momentum=0.0)
    assert variables["optimizer"].momentum == 0.0


def test_a_workloads_own_optimizer_is_left_to_the_user(namespace: dict[str, Any]) -> None:
    assert run(namespace, Constant(learning_rate=0.1), optimizer="workload")["optimizer"] is ...


def test_the_code_reads_well() -> None:
    schedule = Piecewise(learning_rate=0.21, decay_factor=0.1, boundaries=(1000, 6400))
    parameters = Parameters(global_batch_size=64, schedule=schedule, momentum=0.9, accumulation=2)
    assert keras_code(parameters, optimizer="nesterov", replicas=4) == (
        "strategy = tf.distribute.MirroredStrategy()  # 4 replicas\n"
        "global_batch_size = 64  # 8 per replica; this is the batch size that Dataset.batch and fit take\n"
        "# measured with 2 micro-batches per replica and step\n"
        "learning_rate = keras.optimizers.schedules.PiecewiseConstantDecay(\n"
        "    boundaries=[15, 99], values=[0.21, 0.021, 0.0021]\n"
        ")\n"
        "with strategy.scope():\n"
        "    optimizer = keras.optimizers.SGD(learning_rate, momentum=0.9, nesterov=True)"
    )


def test_linear_decay_keeps_whole_steps_whole() -> None:
    whole = Parameters(global_batch_size=64, schedule=SCHEDULES["linear, of whole steps"])
    assert "0.3, decay_steps=50, end_learning_rate=0.003" in keras_code(whole, optimizer="sgd", replicas=1)
