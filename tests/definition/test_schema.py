from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from scalesearch.core.budget import Budget
from scalesearch.core.quantities import Amount
from scalesearch.definition import StudyDefinition
from scalesearch.errors import DefinitionError

Define = Callable[..., StudyDefinition]

PIECEWISE = 'kind = "piecewise"\ndecays = 2\ndecay_factor = 0.1\nboundaries = { low = "1 epochs", high = "30 epochs" }'
CHANGES = [
    ("workload.name", 'name = "digits/mlp"', 'name = "mnist/mlp"'),
    ("workload.optimizer", 'optimizer = "momentum"', 'optimizer = "nesterov"'),
    ("workload.options.hidden_units", "hidden_units = 64", "hidden_units = 65"),
    ("objective.metric", "val/classification_error", "val/loss"),
    ("objective.direction", "target = 0.1", 'target = 0.1\ndirection = "maximize"'),
    ("objective.target", "target = 0.1", "target = 0.1000001"),
    ("objective.minimize", 'minimize = "seconds"', 'minimize = "steps"'),
    ("objective.crossing", "target = 0.1", 'target = 0.1\ncrossing = "first"'),
    ("search.global_batch_size.low", "low = 8", "low = 4"),
    ("search.global_batch_size.high", "high = 64", "high = 128"),
    ("search.global_batch_size.multiple_of", "high = 64", "high = 64, multiple_of = 8"),
    ("search.learning_rate.low", "low = 1e-3", "low = 1e-4"),
    ("search.learning_rate.high", "high = 1.0", "high = 2.0"),
    ("search.momentum", "momentum = 0.9", "momentum = 0.91"),
    ("search.sampler", 'sampler = "tpe"', 'sampler = "qmc"'),
    ("search.schedule.decays", "decays = 2", "decays = 1"),
    ("search.schedule.decay_factor", "decay_factor = 0.1", "decay_factor = 0.3"),
    ("search.schedule.boundaries.low", 'low = "1 epochs"', 'low = "2 epochs"'),
    ("search.schedule.boundaries.high", 'high = "30 epochs"', "high = 1234567"),
    ("baseline.global_batch_size", "global_batch_size = 16", "global_batch_size = 32"),
    ("baseline.learning_rate", "learning_rate = 0.01", "learning_rate = 0.02"),
    ("baseline.momentum", "momentum = 0.8", "momentum = 0.7"),
    ("baseline.boundaries", '["50 %", "75 %"]', '["50 %", "75.5 %"]'),
    ("baseline.decay_factor", "decay_factor = 0.2", "decay_factor = 0.25"),
    ("trial.max_examples", 'max_examples = "30 epochs"', 'max_examples = "31 epochs"'),
    ("trial.first_evaluation", '"0.5 epochs"', '"0.6 epochs"'),
    ("trial.evaluation_ratio", "evaluation_ratio = 1.1", "evaluation_ratio = 1.2"),
    ("run.accumulation", "accumulation = 1", "accumulation = 2"),
    ("run.seed", "seed = 3", "seed = 4"),
]
ELSEWHERE = {
    "search.schedule.kind": "all of its keys change with it",
    "search.schedule.decay_examples": "a linear schedule's, below",
    "search.schedule.end_factor.low": "a linear schedule's, below",
    "search.schedule.end_factor.high": "a linear schedule's, below",
    "search.schedule.end_factor.scale": "has one value",
    "search.learning_rate.scale": "has one value",
    "baseline.decay_examples": "a linear schedule's, below",
    "baseline.end_factor": "a linear schedule's, below",
}


def differing_keys(one: StudyDefinition, other: StudyDefinition) -> set[str]:
    a, b = one.fingerprint(), other.fingerprint()
    return {k for k in a.keys() | b.keys() if a.get(k, ...) != b.get(k, ...)}


@pytest.mark.parametrize(("key", "old", "new"), CHANGES)
def test_the_fingerprint_changes_in_exactly_the_key_that_changed(define: Define, key: str, old: str, new: str) -> None:
    assert differing_keys(define(), define(old, new)) == {key}


def test_where_nothing_is_crossed_the_fingerprint_has_no_rule_for_it(define: Define) -> None:
    goal_is_the_metric = define("target = 0.1", "", 'minimize = "seconds"', 'minimize = "metric"')
    assert "objective.crossing" not in goal_is_the_metric.fingerprint()


def test_every_key_of_the_fingerprint_is_among_the_changes_tested(define: Define) -> None:
    assert define().fingerprint().keys() == {key for key, _, _ in CHANGES} | ELSEWHERE.keys()


def test_a_study_of_the_optimum_may_go_on_as_one_of_the_curve(define: Define) -> None:
    scaling = ('sampler = "tpe"', 'sampler = "scaling"')
    curve = define('sampler = "tpe"', 'sampler = "scaling"\naim = "curve"')
    assert (define().search.aim, curve.search.aim) == ("optimum", "curve")
    assert differing_keys(define(*scaling), curve) == set()


@pytest.mark.parametrize("sampler", ["tpe", "random", "qmc"])
def test_only_scaling_measures_a_curve(define: Define, sampler: str) -> None:
    with pytest.raises(DefinitionError, match=f'aim = "curve".* needs .sampler = "scaling".*{sampler}'):
        define('sampler = "tpe"', f'sampler = "{sampler}"\naim = "curve"')


def test_a_curve_needs_a_target(define: Define) -> None:
    with pytest.raises(DefinitionError, match=r'search.aim = "curve".*objective.minimize = "metric"'):
        define('sampler = "tpe"', 'aim = "curve"', "target = 0.1", "", 'minimize = "seconds"', 'minimize = "metric"')


def test_the_fingerprint_of_a_linear_schedule(define: Define) -> None:
    text = 'kind = "linear"\ndecay_examples = "10 epochs"\nend_factor = 0.01'
    linear = define(PIECEWISE, text)
    assert differing_keys(define(), linear) >= {"search.schedule.kind", "search.schedule.decay_examples"}
    changed = define(PIECEWISE, text.replace('"10 epochs"', '{ low = "5 epochs", high = 1000000 }'))
    assert differing_keys(linear, changed) == {
        "search.schedule.decay_examples",
        "search.schedule.decay_examples.low",
        "search.schedule.decay_examples.high",
    }
    changed = define(PIECEWISE, text.replace("0.01", "0.02"))
    assert differing_keys(linear, changed) == {"search.schedule.end_factor"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('name = "quick"', 'name = "quicker"'),
        ("examples = 5e6", "examples = 6e6"),
        ('wall_clock = "75s"', 'wall_clock = "2h"'),
        ("trials = 40", ""),
        ('no_progress_limit = "5m"', 'no_progress_limit = "6m"'),
        ('no_progress_limit = "5m"', 'no_progress_limit = "5m"\nsnapshots_limit = "1 GiB"'),
        ('replicas = "all"', "replicas = 2"),
    ],
)
def test_budget_name_and_what_only_guards_the_run_are_not_in_the_fingerprint(
    define: Define, old: str, new: str
) -> None:
    assert differing_keys(define(), define(old, new)) == set()


def test_the_fingerprint_survives_json(define: Define) -> None:
    fingerprint = define().fingerprint()
    assert json.loads(json.dumps(fingerprint, allow_nan=False)) == fingerprint


def test_how_an_amount_is_written_does_not_change_the_fingerprint(define: Define) -> None:
    same = define('max_examples = "30 epochs"', 'max_examples = " 30.0 Epochs"', "seed = 3", "seed = 3")
    assert differing_keys(define(), same) == set()


def test_values_are_what_the_text_says(define: Define) -> None:
    definition = define()
    assert definition.trial.max_examples == Amount(30, "epochs")
    assert definition.baseline is not None
    assert definition.baseline.boundaries == (Amount(50, "%"), Amount(75, "%"))
    assert definition.run.no_progress_limit == 300
    assert definition.budget.budget() == Budget(
        examples=5e6, epochs=400, device_seconds=7200, wall_clock_seconds=75, trials=40
    )


def test_whole_numbers_are_numbers(define: Define) -> None:
    assert define("target = 0.1", "target = 1").objective.target == 1.0
    assert define("momentum = 0.9", "momentum = 0").search.momentum == 0.0
    assert define("high = 1.0", "high = 2").search.learning_rate.high == 2.0
    assert define("examples = 5e6", "examples = 5000000").budget.examples == 5e6


def test_a_definition_cannot_be_changed(define: Define) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        define().run.seed = 5


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        (("target = 0.1", ""), '`objective`: `minimize = "seconds"` needs a `target`'),
        (
            ('minimize = "seconds"', 'minimize = "metric"'),
            '`objective`: with `minimize = "metric"` there is no target: remove `target`',
        ),
        (
            ('target = 0.1\nminimize = "seconds"', 'crossing = "first"\nminimize = "metric"'),
            '`objective`: with `minimize = "metric"` there is no target: remove `crossing`',
        ),
        (
            ('boundaries = { low = "1 epochs", high = "30 epochs" }', ""),
            '`search.schedule`: `kind = "piecewise"` needs `boundaries = { low = …, high = … }`',
        ),
        (
            ('kind = "piecewise"', ""),
            '`search.schedule`: `decays` is of `kind = "piecewise"`, but the kind is "constant"',
        ),
        (
            ('kind = "piecewise"', 'kind = "piecewise"\nend_factor = 0.1'),
            '`search.schedule`: `end_factor` is of `kind = "linear"`, but the kind is "piecewise"',
        ),
        (
            ("decay_factor = 0.2", "decay_factor = 0.2\ndecay_examples = 100"),
            "`baseline`: `decay_examples` and `end_factor` describe one linear decay: give both or neither",
        ),
        (
            ("decay_factor = 0.2", "decay_factor = 0.2\ndecay_examples = 100\nend_factor = 0.1"),
            "`baseline`: give either `boundaries` or a linear decay, not both",
        ),
        (
            ('max_examples = "30 epochs"', 'max_examples = "50 %"'),
            '`trial.max_examples = "50 %"`: percentages are of `max_examples` itself: '
            'give it as "20 epochs" or "5e6 examples"',
        ),
    ],
)
def test_keys_that_do_not_go_together(define: Define, parts: tuple[str, ...], says: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        define(*parts)
    assert str(caught.value) == f"study.toml: {says}"


def test_what_is_only_measured_is_of_a_curve(define: Define) -> None:
    with pytest.raises(DefinitionError, match=r'`run.accumulation = "measure"` is for `search.aim = "curve"`.*"auto"'):
        define("accumulation = 1", 'accumulation = "measure"')


def test_a_linear_schedule_needs_its_length(define: Define) -> None:
    with pytest.raises(DefinitionError, match="needs `decay_examples`"):
        define(PIECEWISE, 'kind = "linear"')


def test_the_baseline_as_target_needs_a_baseline(define: Define, edit: Callable[..., str]) -> None:
    assert define("target = 0.1", 'target = "baseline"').objective.target == "baseline"
    section = re.search(r"\[baseline\].*?(?=\[trial\])", edit(), re.DOTALL)
    assert section is not None
    with pytest.raises(DefinitionError, match=r'`objective.target = "baseline"` needs a \[baseline\] section'):
        define("target = 0.1", 'target = "baseline"', section[0], "")
    assert define(section[0], "").baseline is None


def sections(model: type[BaseModel] = StudyDefinition) -> dict[str, type[BaseModel]]:
    found: dict[str, type[BaseModel]] = {model.__name__: model}

    def visit(annotation: Any) -> None:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            found.update(sections(annotation))
        for part in getattr(annotation, "__args__", ()):
            visit(part)

    for field in model.model_fields.values():
        visit(field.annotation)
    return found


@pytest.mark.parametrize("name", sections())
def test_every_section_is_documented(name: str) -> None:
    documentation = sections()[name].__doc__
    assert documentation is not None
    assert documentation[0] in "`ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def test_cma_es_names_its_extra_where_its_package_is_missing(define: Define, monkeypatch: pytest.MonkeyPatch) -> None:
    assert define('sampler = "tpe"', 'sampler = "cmaes"').search.sampler == "cmaes"
    monkeypatch.setitem(sys.modules, "cmaes", None)
    with pytest.raises(DefinitionError, match=r'`search.sampler = "cmaes"`: needs .*scalesearch\[cmaes\]'):
        define('sampler = "tpe"', 'sampler = "cmaes"')
