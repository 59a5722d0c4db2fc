"""Streaming from the host gives what examples in the devices' memory give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scalesearch.training.engine import MirroredTrainer
from scalesearch.workloads.workload import Augmentation, Split

from .tiny import ACCUMULATIONS, DENSE, IMAGES, REPLICAS, difference, run, trainer, weights

NOISY = replace(
    DENSE, augmentation=Augmentation(random_numbers=3, apply=lambda inputs, u: inputs * (1 + u[:, 0, None, None, None]))
)


@pytest.fixture(scope="module")
def resident() -> MirroredTrainer:
    """One replica with all examples in memory."""
    return trainer(NOISY)


def test_streamed_equals_resident_from_a_file(resident: MirroredTrainer, tmp_path: Path) -> None:
    path = tmp_path / "inputs.npy"
    np.save(path, IMAGES.train.inputs)
    file = Split(inputs=np.load(path, mmap_mode="r"), labels=IMAGES.train.labels)
    streamed = trainer(NOISY, data=replace(IMAGES, train=file), resident_bytes_limit=file.inputs.nbytes - 1)
    assert run(streamed)[-1].metrics == pytest.approx(run(resident)[-1].metrics, rel=1e-5)
    assert difference(weights(streamed), weights(resident)) < 1e-6


@pytest.mark.parametrize("replicas", REPLICAS)
def test_streamed_equals_resident_for_any_cut(resident: MirroredTrainer, replicas: int) -> None:
    run(resident)
    streamed = trainer(NOISY, replicas=replicas, resident_bytes_limit=0)
    for accumulation in ACCUMULATIONS:
        run(streamed, every=1, accumulation=accumulation)
        assert difference(weights(streamed), weights(resident)) < 1e-5


def test_a_streamed_batch_may_be_larger_than_the_data(resident: MirroredTrainer) -> None:
    streamed = trainer(NOISY, resident_bytes_limit=0)
    for used in (streamed, resident):
        run(used, batch=120, steps=3)
    assert difference(weights(streamed), weights(resident)) < 1e-6
