from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalesearch.core.noise_scale import GradientNoise
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Cost, Measurement, Outcome, Reached, TrialResult
from scalesearch.core.schedule import Constant, Linear, Piecewise, Schedule
from scalesearch.search.records import (
    PARAMETERS,
    measurements_from_json,
    measurements_to_json,
    result_from_json,
    result_to_json,
)

counts = st.integers(0, 2**53)
any_float = st.floats()
positive = st.floats(0, 1e300, exclude_min=True)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    rate = draw(positive)
    kind = draw(st.sampled_from(["constant", "piecewise", "linear"]))
    if kind == "constant":
        return Constant(learning_rate=rate)
    if kind == "linear":
        return Linear(learning_rate=rate, decay_examples=draw(st.integers(1, 10**9)), end_factor=draw(st.floats(0, 1)))
    boundaries = sorted(draw(st.sets(st.integers(1, 10**9), max_size=3)))
    return Piecewise(learning_rate=rate, decay_factor=draw(positive), boundaries=tuple(boundaries))


parameters = st.builds(
    Parameters,
    global_batch_size=st.integers(1, 2**20),
    schedule=schedules(),
    momentum=st.none() | st.floats(0, 1, exclude_max=True),
    accumulation=st.integers(1, 8),
)


finite = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def results(draw: st.DrawFn) -> TrialResult:
    names = draw(st.lists(st.text(max_size=8), unique=True, max_size=3))
    measurement = st.builds(
        Measurement,
        step=counts,
        examples=counts,
        train_seconds=any_float,
        elapsed_seconds=any_float,
        train_loss=any_float,
        metrics=st.fixed_dictionaries(dict.fromkeys(names, any_float)),
        noise=st.none() | st.builds(GradientNoise, trace=finite, squared_norm=finite, samples=counts),
    )
    reached = st.builds(
        Reached, steps=positive, examples=positive, seconds=positive, evaluation_step=counts, evaluation_examples=counts
    )
    return TrialResult(
        number=draw(st.integers(0, 10**6)),
        parameters=draw(parameters),
        seed=draw(st.integers(0, 2**31 - 1)),
        outcome=draw(st.sampled_from(Outcome)),
        reason=draw(st.text()),
        cost=Cost(examples=draw(counts), device_seconds=draw(st.floats(0, 1e9))),
        reached=draw(st.none() | reached),
        first_reached=draw(st.none() | reached),
        measurements=tuple(draw(st.lists(measurement, max_size=4))),
        test_metrics=draw(st.dictionaries(st.text(max_size=8), any_float, max_size=2)),
        is_baseline=draw(st.booleans()),
        why=draw(st.text()),
        seconds=draw(st.floats(0, 1e9)),
        shared_steps=draw(counts),
    )


def attributes(result: TrialResult) -> dict[str, object]:
    """The attributes of a trial as a storage keeps them: strict JSON, which knows no NaN and no infinity."""
    values = {
        "parameters": PARAMETERS.dump_python(result.parameters, mode="json"),
        "seed": result.seed,
        "is_baseline": result.is_baseline,
        "why": result.why,
        "measurements": measurements_to_json(result.measurements),
        "result": result_to_json(result),
    }
    loaded: dict[str, object] = json.loads(json.dumps(values, allow_nan=False))
    return loaded


def in_full(result: TrialResult) -> str:
    """Every digit of a result; NaN, which is not equal to itself, included."""
    return json.dumps(asdict(result), sort_keys=True)


@settings(max_examples=60, derandomize=True)
@given(results())
def test_every_result_comes_back_as_it_was(result: TrialResult) -> None:
    assert in_full(result_from_json(result.number, attributes(result))) == in_full(result)


@settings(max_examples=10, derandomize=True)
@given(results())
def test_a_record_from_before_there_were_two_rules_went_by_the_first(result: TrialResult) -> None:
    kept = result_to_json(result)
    del kept["first_reached"]
    back = result_from_json(result.number, attributes(result) | {"result": json.loads(json.dumps(kept))})
    assert back.reached == back.first_reached == result.reached


def test_measurements_without_samples_of_noise_are_kept_as_before_there_were_any() -> None:
    bare = Measurement(step=1, examples=8, train_seconds=1.0, elapsed_seconds=1.0, train_loss=1.0, metrics={})
    kept = measurements_to_json([bare])
    assert "noise" not in kept
    assert measurements_from_json(kept) == (bare,)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.1 + 0.2, 1e-320])
def test_the_numbers_that_json_does_not_have_are_kept(value: float) -> None:
    measurement = Measurement(
        step=0, examples=0, train_seconds=0.0, elapsed_seconds=0.0, train_loss=value, metrics={"val/loss": value}
    )
    blank = TrialResult(
        number=0,
        parameters=Parameters(global_batch_size=1, schedule=Constant(learning_rate=1.0)),
        seed=0,
        outcome=Outcome.DIVERGED,
        reason="",
        cost=Cost(),
        reached=None,
        measurements=(measurement, replace(measurement, step=1)),
        test_metrics={"test/loss": value},
    )
    back = result_from_json(0, attributes(blank))
    assert [m.step for m in back.measurements] == [0, 1]
    last = back.measurements[1]
    for kept in (last.train_loss, last.metrics["val/loss"], back.test_metrics["test/loss"]):
        assert kept == value or (math.isnan(kept) and math.isnan(value))
