from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scalesearch.core.accumulation import AsFewAsFit
from scalesearch.core.axis import Interval
from scalesearch.core.evaluation import EvaluationPlan
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Objective
from scalesearch.core.schedule import Constant, Linear, Piecewise
from scalesearch.core.schedule_space import ConstantSpace, LinearSpace, PiecewiseSpace
from scalesearch.definition import ResolvedStudy, StudyDefinition, resolve
from scalesearch.errors import DefinitionError

Define = Callable[..., StudyDefinition]

PIECEWISE = 'kind = "piecewise"\ndecays = 2\ndecay_factor = 0.1\nboundaries = { low = "1 epochs", high = "30 epochs" }'
METRICS = ("val/loss", "val/classification_error", "val/accuracy")


def resolved(definition: StudyDefinition, *, replicas: int = 1, **options: Any) -> ResolvedStudy:
    given = {"train_examples": 1000, "metrics": METRICS, "maximize": ("val/accuracy",), **options}
    return resolve(definition, replicas=replicas, **given)


def refusal(definition: StudyDefinition, *, replicas: int = 1) -> str:
    with pytest.raises(DefinitionError) as caught:
        resolved(definition, replicas=replicas)
    return str(caught.value)


def test_epochs_and_percentages_become_examples(define: Define) -> None:
    study = resolved(define(), replicas=4)
    assert study.name == "quick-r4"
    assert study.max_examples == 30_000
    assert study.first_evaluation_examples == 500
    assert study.baseline == Parameters(
        global_batch_size=16,
        schedule=Piecewise(learning_rate=0.01, decay_factor=0.2, boundaries=(15_000, 22_500)),
        momentum=0.8,
    )
    assert study.space.schedule == PiecewiseSpace(
        decays=2, boundaries=Interval(1000, 30_000), decay_factor=Interval(0.1, 0.1)
    )


def test_the_space(define: Define) -> None:
    space = resolved(define(), replicas=4).space
    assert space.batch_sizes.values() == (8, 16, 32, 64)
    assert space.learning_rate == Interval(1e-3, 1.0)
    assert space.momentum == Interval(0.9, 0.9)
    assert resolved(define(), replicas=16).space.batch_sizes.values() == (16, 32, 64)
    searched = define("momentum = 0.9", "momentum = { low = 0.5, high = 0.99 }")
    assert resolved(searched).space.momentum == Interval(0.5, 0.99)


@pytest.mark.parametrize(
    ("size", "replicas", "nearest"), [(30, 4, "28 or 32"), (2, 4, "4"), (17, 2, "16 or 18"), (1, 3, "3")]
)
def test_a_baseline_that_the_replicas_cannot_share_names_the_nearest_sizes(
    define: Define, size: int, replicas: int, nearest: str
) -> None:
    definition = define(
        "global_batch_size = 16", f"global_batch_size = {size}", "high = 64", "high = 64, multiple_of = 6"
    )
    message = refusal(definition, replicas=replicas)
    assert message == (
        f"`baseline.global_batch_size = {size}` is not divisible by {replicas} (replicas × accumulation): use {nearest}"
    )


def test_accumulation_divides_too(define: Define) -> None:
    definition = define("accumulation = 1", "accumulation = 4", "global_batch_size = 16", "global_batch_size = 20")
    assert "is not divisible by 8 (replicas × accumulation): use 16 or 24" in refusal(definition, replicas=2)
    fits = resolved(define("accumulation = 1", "accumulation = 4"), replicas=4)
    assert fits.baseline is not None
    assert fits.baseline.accumulation == 4
    assert fits.baseline.per_replica_batch_size(4) == 1
    assert fits.space.accumulation == 4
    assert fits.space.batch_sizes.values() == (16, 32, 64)


@pytest.mark.parametrize(("how", "only_measured"), [("auto", False), ("measure", True)])
def test_as_few_micro_batches_as_fit_ask_nothing_of_the_sizes(define: Define, how: str, only_measured: bool) -> None:
    definition = define("accumulation = 1", f'accumulation = "{how}"', 'sampler = "tpe"', 'aim = "curve"')
    fits = resolved(definition, replicas=4)
    assert fits.space.accumulation == AsFewAsFit(replicas=4, only_measured=only_measured)
    assert fits.space.batch_sizes.divisor == 4
    assert fits.baseline is not None
    assert fits.baseline.accumulation == 1


@pytest.mark.parametrize(
    ("bounds", "replicas", "remedy"),
    [
        ("low = 8, high = 64", 3, "set `multiple_of = 3`, since no power of two is divisible by 3"),
        ("low = 1, high = 2", 3,
         "set `multiple_of = 3`, since no power of two is divisible by 3, and set `high` to at least 3"),
        ("low = 8, high = 64", 128, "set `high` to at least 128"),
        ("low = 8, high = 64", 100,
         "set `multiple_of = 100`, since no power of two is divisible by 100, and set `high` to at least 100"),
        ("low = 8, high = 23, multiple_of = 8", 3, "set `high` to at least 24"),
        ("low = 25, high = 47, multiple_of = 8", 3, "set `high` to at least 48"),
    ],
)  # fmt: skip
def test_no_batch_size_for_the_replicas_says_what_to_set(
    define: Define, bounds: str, replicas: int, remedy: str
) -> None:
    message = refusal(define("low = 8, high = 64", bounds), replicas=replicas)
    assert message == (
        f"`search.global_batch_size = {{ {bounds} }}`: no size in it can be shared equally by {replicas} replicas; "
        f"{remedy}"
    )


def test_the_remedy_works(define: Define) -> None:
    definition = define("high = 64", "high = 64, multiple_of = 3", "global_batch_size = 16", "global_batch_size = 15")
    sizes = resolved(definition, replicas=3).space.batch_sizes.values()
    assert sizes == tuple(range(9, 65, 3))


def test_micro_batches_are_named_where_there_are_some(define: Define) -> None:
    message = refusal(define("accumulation = 1", "accumulation = 2"), replicas=64)
    assert "can be shared equally by 64 replicas × 2 micro-batches; set `high` to at least 128" in message


SGD = ('optimizer = "momentum"', 'optimizer = "sgd"')


def test_sgd_has_no_momentum(define: Define) -> None:
    has_none = 'optimizer "sgd" has no momentum; use "momentum" or "nesterov", or remove the key'
    assert refusal(define(*SGD)) == f"`search.momentum`: {has_none}"
    assert refusal(define(*SGD, "momentum = 0.9", "")) == f"`baseline.momentum = 0.8`: {has_none}"
    study = resolved(define(*SGD, "momentum = 0.9", "", "momentum = 0.8", ""))
    assert study.space.momentum is None
    assert study.baseline is not None
    assert study.baseline.momentum is None


@pytest.mark.parametrize("optimizer", ["momentum", "nesterov", "adam", "adamw"])
def test_momentum_is_by_default_0_9(define: Define, optimizer: str) -> None:
    parts = ('optimizer = "momentum"', f'optimizer = "{optimizer}"', "momentum = 0.9", "", "momentum = 0.8", "")
    study = resolved(define(*parts))
    assert study.space.momentum == Interval(0.9, 0.9)
    assert study.baseline is not None
    assert study.baseline.momentum == 0.9


def test_a_workloads_own_optimizer_has_the_momentum_that_is_asked_for_or_none(define: Define) -> None:
    own = ('optimizer = "momentum"', 'optimizer = "workload"')
    assert resolved(define(*own)).space.momentum == Interval(0.9, 0.9)
    study = resolved(define(*own, "momentum = 0.9", "", "momentum = 0.8", ""))
    assert study.space.momentum is None
    assert study.baseline is not None
    assert study.baseline.momentum is None


def test_the_baselines_momentum_is_the_default_as_near_as_the_space_has_it(define: Define) -> None:
    study = resolved(define("momentum = 0.9", "momentum = { low = 0.1, high = 0.5 }", "momentum = 0.8", ""))
    assert study.baseline is not None
    assert study.baseline.momentum == 0.5


@pytest.mark.parametrize(
    ("metric", "hint"),
    [
        ("val/clasification_error", "did you mean `val/classification_error`?"),
        ("zzz", "it measures val/accuracy, val/classification_error, val/loss"),
    ],
)
def test_an_unknown_metric_names_the_nearest(define: Define, metric: str, hint: str) -> None:
    assert refusal(define("val/classification_error", metric)) == (
        f"`objective.metric = '{metric}'`: workload digits/mlp does not measure it: {hint}"
    )


def test_a_whole_number_is_a_target(define: Define) -> None:
    assert resolved(define("target = 0.1", "target = 1")).objective == Objective(
        metric="val/classification_error", direction="minimize", target=1.0, minimize="seconds"
    )


def test_direction_is_the_workloads_unless_the_definition_says_otherwise(define: Define) -> None:
    accuracy = define("val/classification_error", "val/accuracy")
    assert resolved(accuracy).objective.direction == "maximize"
    least = define("val/classification_error", "val/accuracy", "target = 0.1", 'target = 0.1\ndirection = "minimize"')
    assert resolved(least).objective.direction == "minimize"


def test_the_rule_of_the_crossing_is_the_definitions(define: Define) -> None:
    assert resolved(define()).objective.crossing == "smoothed"
    assert resolved(define("target = 0.1", 'target = 0.1\ncrossing = "first"')).objective.crossing == "first"


def test_the_baseline_as_target_is_not_known_yet(define: Define) -> None:
    study = resolved(define("target = 0.1", 'target = "baseline"'))
    assert study.objective.target is None
    assert study.target_from_baseline
    assert not resolved(define()).target_from_baseline


def test_a_linear_schedule(define: Define) -> None:
    linear = 'kind = "linear"\ndecay_examples = { low = "50 %", high = "30 epochs" }\nend_factor = 0.01'
    baseline = ('boundaries = ["50 %", "75 %"]\ndecay_factor = 0.2', 'decay_examples = "10 epochs"\nend_factor = 0.1')
    study = resolved(define(PIECEWISE, linear, *baseline))
    assert study.space.schedule == LinearSpace(decay_examples=Interval(15_000, 30_000), end_factor=Interval(0.01, 0.01))
    assert study.baseline is not None
    assert study.baseline.schedule == Linear(learning_rate=0.01, decay_examples=10_000, end_factor=0.1)
    pinned = resolved(define(PIECEWISE, 'kind = "linear"\ndecay_examples = "10 epochs"'))
    assert pinned.space.schedule == LinearSpace(decay_examples=Interval(10_000, 10_000), end_factor=Interval(1e-4, 0.1))


@pytest.mark.parametrize("schedule", ['kind = "constant"', PIECEWISE.replace("decays = 2", "decays = 0")])
def test_no_decay(define: Define, schedule: str) -> None:
    study = resolved(define(PIECEWISE, schedule, 'boundaries = ["50 %", "75 %"]', ""))
    assert study.space.schedule == ConstantSpace()
    assert study.baseline is not None
    assert study.baseline.schedule == Constant(learning_rate=0.01)


def test_bounds_of_mixed_units_are_ordered_in_examples(define: Define) -> None:
    assert refusal(define('low = "1 epochs"', 'low = "40000 examples"')) == (
        '`search.schedule.boundaries`: `low <= high` must hold, but got low = "40000 examples", high = "30 epochs"'
    )


@pytest.mark.parametrize("boundaries", ['["75 %", "50 %"]', '["50 %", "15 epochs"]'])
def test_the_baselines_boundaries_must_increase(define: Define, boundaries: str) -> None:
    assert "they must be strictly increasing" in refusal(define('["50 %", "75 %"]', boundaries))


def test_the_evaluation_plan_of_a_trial(define: Define) -> None:
    study = resolved(define())
    assert study.baseline is not None
    assert study.evaluation_plan(study.baseline, study.objective) == EvaluationPlan(
        objective=study.objective,
        boundaries=(15_000, 22_500),
        first_examples=500,
        max_interval_examples=1000,
        end_examples=30_000,
        ratio=1.1,
    )
