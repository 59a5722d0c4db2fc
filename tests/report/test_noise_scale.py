"""The gradient noise scale beside the critical batch size."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from scalesearch.core.curve import ScalingCurve
from scalesearch.core.noise_scale import GradientNoise
from scalesearch.core.results import TrialResult
from scalesearch.report.noise_scale import measured_critical_batch_size, noise_scale_json, noise_scale_lines
from scalesearch.report.terminal import recommendation_lines

from .trials import TRAIN_EXAMPLES, found, trial


def noisy(*values: tuple[float, float]) -> TrialResult:
    """A run with these traces and squared norms, two samples at each measurement after the first."""
    run = trial(3, values=[0.9] + [0.5] * (len(values) - 1) + [0.05])
    blocks = [None, *(GradientNoise(trace=t, squared_norm=g, samples=2) for t, g in values)]
    return replace(run, measurements=tuple(replace(m, noise=b) for m, b in zip(run.measurements, blocks, strict=True)))


EIGHT = [(90.0, 9.0)] * 4 + [(100.0 + d, 0.5) for d in (-4.0, -2.0, 2.0, 4.0)]
UNSEEN = [(10.0, g) for g in (-0.3, -0.2, -0.25, 0.1) * 2]


def test_the_second_half_is_compared_with_what_was_measured() -> None:
    first, caveat = noise_scale_lines(noisy(*EIGHT), 400.0)
    assert first == (
        "gradient noise scale 200 (90 %: 191 to 209; 8 samples in trial 3, its second half): 0.5 × the critical batch size"
    )
    assert "measured steps count" in caveat


def test_without_a_measured_one_it_is_a_forecast() -> None:
    assert noise_scale_lines(noisy(*EIGHT), None)[0].endswith("the critical batch size, which was not measured")


def test_a_gradient_within_its_noise_is_told() -> None:
    first = noise_scale_lines(noisy(*UNSEEN), 400.0)[0]
    assert first.startswith("gradient noise scale unknown (90 %: at least ")
    assert first.endswith(": the gradient was not told from its noise")


def test_a_run_without_samples_says_nothing() -> None:
    assert noise_scale_lines(trial(1), 400.0) == []
    assert noise_scale_json(trial(1)) is None
    assert noise_scale_json(None) is None


def test_a_critical_batch_size_beyond_the_batch_sizes_was_not_measured() -> None:
    curve = ScalingCurve(s_min=10.0, b_crit=128.0, residual=0.0)
    assert measured_critical_batch_size(curve, [64, 256]) == 128.0
    assert [measured_critical_batch_size(curve, sizes) for sizes in ([16, 64], [256, 512], [])] == [None] * 3
    assert measured_critical_batch_size(None, [64, 256]) is None


def test_report_and_json_have_it() -> None:
    findings = found(noisy(*EIGHT))
    lines = list(recommendation_lines(findings, replicas=2, train_examples=TRAIN_EXAMPLES))
    assert any(line.startswith("gradient noise scale 200 ") for line in lines)
    best = findings.recommendation
    assert best is not None
    json = noise_scale_json(best.best)
    assert json is not None
    assert (json["value"], json["samples"], json["trial"]) == (pytest.approx(200.0), 8, 3)
    assert json["interval"] == pytest.approx([200 - 8.593, 200 + 8.593], abs=0.01)
    assert noise_scale_json(noisy(*UNSEEN))["value"] is None  # type: ignore[index]
    assert math.isfinite(json["interval"][1])
