from __future__ import annotations

import tomllib
from typing import Any

import numpy as np
import pytest

from scalesearch.core.simulate.workload import (
    LearningRateMap,
    SaturatingMetric,
    SimulatedWorkload,
    Spectrum,
    StepTime,
    workload_from_table,
)
from scalesearch.errors import WorkloadError

TABLE = """
target = 0.2
train_examples = 1000

[spectrum]
dimension = 500
exponent = 2

[metric]
name = "val/mistakes"

[step_time]
shape = "affine"
"""


def test_a_table_sets_options_and_leaves_the_others_at_their_defaults() -> None:
    workload = workload_from_table(tomllib.loads(TABLE), source="here")
    assert workload == SimulatedWorkload(
        target=0.2,
        train_examples=1000,
        spectrum=Spectrum(dimension=500, exponent=2.0),
        metric=SaturatingMetric(name="val/mistakes"),
        step_time=StepTime(shape="affine"),
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "here: `target` is missing"),
        ({"target": 1.0, "metrik": {}}, "here: unknown key `metrik`: did you mean `metric`?"),
        ({"target": 1.0, "spectrum": {"zzz": 1}}, "here.spectrum: unknown key `zzz`: known here: `dimension`"),
        ({"target": "low"}, "here.target = 'low': must be of type float"),
        ({"target": 1.0, "spectrum": {"dimension": 1.5}}, "here.spectrum.dimension = 1.5: must be of type int"),
        ({"target": 1.0, "spectrum": 3}, "here.spectrum = 3: must be a table"),
        ({"target": 1.0, "step_time": {"shape": "x"}}, "here.step_time.shape = 'x': must be one of kinked, affine"),
    ],
)
def test_a_wrong_table_is_refused_with_the_key_and_the_rule(table: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError) as error:
        workload_from_table(table, source="here")
    assert message in str(error.value)


def test_bins_keep_the_trace_and_the_initial_loss() -> None:
    workload = SimulatedWorkload(target=1.0, spectrum=Spectrum(dimension=10_000, initial_exponent=0.5))
    index = np.arange(1, 10_001)
    modes = workload.modes
    assert 60 <= len(modes.curvature) <= 95
    assert modes.multiplicity.sum() == 10_000
    assert modes.multiplicity @ modes.curvature == pytest.approx((1 / index).sum())
    assert workload.initial_loss == pytest.approx(0.5 * (index**-1.5).sum())


def test_a_spectrum_smaller_than_its_bins_is_exact() -> None:
    modes = SimulatedWorkload(target=1.0, spectrum=Spectrum(dimension=5)).modes
    np.testing.assert_allclose(modes.curvature, [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])


def test_a_saturating_metric_and_its_inverse() -> None:
    metric = SaturatingMetric(floor=0.1, scale=0.8)
    assert metric.of_loss(0.0) == pytest.approx(0.1)
    assert metric.of_loss(np.inf) == pytest.approx(0.9)
    assert metric.loss_at(metric.of_loss(0.37)) == pytest.approx(0.37)


def test_a_learning_rate_map_and_its_inverse() -> None:
    adam_like = LearningRateMap(scale=2.0, batch_exponent=0.5, reference_batch=16)
    assert adam_like(0.1, 64) == pytest.approx(0.4)
    assert adam_like.inverse(0.4, 64) == pytest.approx(0.1)
    assert LearningRateMap(exponent=0.3).inverse(0.5, 1) == pytest.approx(0.5 ** (1 / 0.3))


def test_step_times() -> None:
    kinked = StepTime(base_seconds=2.0, saturation_batch=100, sync_seconds=0.5)
    assert [kinked(b) for b in (1, 100, 300)] == [2.5, 2.5, 6.5]
    assert StepTime(base_seconds=2.0, saturation_batch=100, sync_seconds=0.5, shape="affine")(100) == 4.5
