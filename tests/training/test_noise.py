"""Gradient noise is sampled beside the steps: it changes nothing, costs little, and is the same for any replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

import keras
import numpy as np
import pytest
import tensorflow as tf

from scalesearch.core.noise_scale import GradientNoise
from scalesearch.core.results import Measurement
from scalesearch.training.engine import GIB
from scalesearch.training.loop import TrainingLoop
from scalesearch.training.noise import NoiseSampler
from scalesearch.training.optimizers import DeviceOptimizer
from scalesearch.training.streams import open_stream
from scalesearch.workloads.workload import Data, Split

from .tiny import DENSE, classifier, float16_dense, linear, run, trainer

AT_ONCE = 1e6  # as a share of the time: every measurement has all the samples it can have
STEPS = 60
BOTH = classifier(
    "both", lambda: keras.layers.Dropout(0.5), keras.layers.BatchNormalization, lambda: keras.layers.Dropout(0.2)
)


def noises(measured: Sequence[Measurement]) -> list[GradientNoise]:
    return [m.noise for m in measured if m.noise is not None]


def random_inputs(count: int = 4001, features: int = 5) -> Data:
    """Gradients of `linear` are the inputs, so G is their mean and Σ their covariance."""
    random = np.random.default_rng(1)
    inputs = (2.0 + random.normal(size=(count, features)) * np.arange(1, features + 1)).astype(np.float32)
    split = Split(inputs=inputs, labels=np.zeros(count, np.int32))
    return Data(train=split, validation=replace(split, inputs=inputs[:8], labels=split.labels[:8]))


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_estimate_is_that_of_the_data_for_any_replicas(replicas: int) -> None:
    data = random_inputs()
    used = trainer(linear(5), replicas=replicas, data=data, noise_share=AT_ONCE)
    found = noises(run(used, batch=32, steps=STEPS, every=1, schedule=0.01))
    assert [n.samples for n in found] == [4] * STEPS
    trace = float(data.train.inputs.var(axis=0).sum())
    squared_norm = float(np.sum(data.train.inputs.mean(axis=0) ** 2))
    for name, known in (("trace", trace), ("squared_norm", squared_norm)):
        values = [getattr(n, name) for n in found]
        error = np.std(values) / np.sqrt(STEPS)
        assert error < (0.1 if name == "trace" else 0.5) * known
        assert np.mean(values) == pytest.approx(known, abs=4 * error)


def test_a_streamed_split_has_the_samples_of_a_resident_one() -> None:
    data, found = random_inputs(), []
    for limit in (0, GIB):
        used = trainer(linear(5), data=data, noise_share=AT_ONCE, resident_bytes_limit=limit)
        [sample] = noises(run(used, steps=1, schedule=0.01))
        found.append((sample.trace, sample.squared_norm))
    assert found[0] == pytest.approx(found[1], rel=1e-5)


@pytest.mark.parametrize(("replicas", "accumulation"), [(1, 2), (2, 1)])
def test_the_run_is_bit_for_bit_the_same_with_and_without(replicas: int, accumulation: int) -> None:
    ends = []
    for share in (0.0, AT_ONCE):
        used = trainer(BOTH, replicas=replicas, optimizer="momentum", noise_share=share)
        measured = run(used, every=2, momentum=0.8, accumulation=accumulation)
        assert len(noises(measured)) == (2 if share else 0)
        state = [np.asarray(value).tobytes() for value in used.snapshot().values]
        ends.append((state, [(m.train_loss, dict(m.metrics)) for m in measured[1:]]))
    assert ends[0] == ends[1]


def test_a_scaled_loss_has_the_same_norms() -> None:
    traces = []
    for build_model in (DENSE.build_model, float16_dense):
        used = trainer(replace(DENSE, build_model=build_model), noise_share=AT_ONCE)
        [sample] = noises(run(used, steps=1, schedule=1e-6))
        traces.append(sample.trace)
    assert traces[0] == pytest.approx(traces[1], rel=0.02)


@pytest.fixture
def sampled() -> tuple[TrainingLoop, NoiseSampler]:
    """One replica's loop, and its sampler, which has a tenth of the time."""
    strategy = tf.distribute.OneDeviceStrategy("/device:CPU:0")
    data = random_inputs()
    workload = linear(5)
    stream = open_stream(strategy, data.train, random_numbers=0, resident_bytes_limit=GIB)
    with strategy.scope():
        model = workload.build_model()
        optimizer = DeviceOptimizer("sgd", model, workload, momentum=None)
    loop = TrainingLoop(strategy, model, optimizer, workload, stream)
    return loop, NoiseSampler(loop, stream, replicas=1, share_of_time=0.1)


def test_it_takes_no_more_than_its_share_of_the_time(sampled: tuple[TrainingLoop, NoiseSampler]) -> None:
    loop, sampler = sampled

    def sample(step: int, step_seconds: float) -> int:
        found = sampler.sample(seed=1, step=step, position=8 * step, share=8, step_seconds=step_seconds)
        return found.samples if found is not None else 0

    loop.warm_up(share=8, micro_batches=1)
    assert loop.compile_seconds > 0.0
    assert sample(0, 0.9 * loop.compile_seconds) == 0  # a moment of training does not pay for the graph
    assert sample(0, 1e4) == 4  # compiles, and does not save up
    samples, calls = 0, []
    for step in range(20):
        begin = perf_counter()
        samples += sample(step, 0.5)
        calls.append(perf_counter() - begin)
    assert samples > 0
    assert sum(calls) - 2 * max(calls) < 0.1 * 0.5 * 20


def test_samples_that_took_far_too_long_are_earned_before_the_next(
    sampled: tuple[TrainingLoop, NoiseSampler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that stands still for a while in their midst."""
    loop, sampler = sampled
    loop.warm_up(share=8, micro_batches=1)
    taken: list[int] = []
    real, lost = loop.squared_norms, [0.0]

    def squared_norms(chunk: object, *, step: int, share: int) -> tuple[float, float]:
        taken.append(step)
        assert len(taken) < 100, "it would sample for ever"
        lost[0] += 100.0 * (len(taken) == 5)
        return real(chunk, step=step, share=share)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "squared_norms", squared_norms)
    monkeypatch.setattr("scalesearch.training.noise.perf_counter", lambda: perf_counter() + lost[0])

    def sample(step: int, step_seconds: float) -> bool:
        found = sampler.sample(seed=1, step=step, position=8 * step, share=8, step_seconds=step_seconds)
        return found is not None

    assert sample(0, 1e4)
    assert lost == [100.0]
    assert not any(sample(step, 1.0) for step in range(1, 20)), "a tenth of 19 s has been earned of 100"
    assert sample(20, 2_000.0)
