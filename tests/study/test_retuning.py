"""Retunes: what is taken over from a study, and that a retune is a study."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from scalesearch.core.accumulation import AsFewAsFit
from scalesearch.core.budget import Budget
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Outcome
from scalesearch.core.schedule import Constant
from scalesearch.definition import ResolvedStudy, StudyDefinition, parse_definition
from scalesearch.definition.schema import BaselineSection
from scalesearch.errors import StudyError
from scalesearch.search.database import open_storage
from scalesearch.study.past import PastStudy
from scalesearch.study.retuning import Present, check_same_workload, retuning

from .scripted import ERROR, STEPS_TO_TARGET, TRAIN_EXAMPLES, Session, resolved

Storage = optuna.storages.BaseStorage
DEFINITION = f"""
[workload]
name = "tests/closed_form"
[objective]
metric = "{ERROR}"
target = 0.1
minimize = "steps"
[search]
global_batch_size = {{ low = 16, high = 128 }}
learning_rate = {{ low = 1e-3, high = 10.0 }}
[trial]
max_examples = 8000
"""


def define(*replacements: str) -> StudyDefinition:
    text = DEFINITION
    for old, new in zip(replacements[::2], replacements[1::2], strict=True):
        assert old in text
        text = text.replace(old, new)
    return parse_definition(text, source="a test", default_name="s")


@pytest.fixture
def past(storage: Storage) -> PastStudy:
    """A study of 12 random trials on two replicas, as it is read back."""
    session = Session(storage, budget=Budget(trials=12), what=resolved(STEPS_TO_TARGET))
    session.run()
    session.store.check_definition(define().fingerprint())
    session.store.keep("target", 0.1)
    session.store.keep(
        "context",
        {"replicas": 2, "train_examples": TRAIN_EXAMPLES, "objective": {"metric": ERROR, "direction": "minimize"}},
    )
    return PastStudy.of(session.store)


def there(**fields: object) -> ResolvedStudy:
    return resolved(**{"objective": STEPS_TO_TARGET, "name": "s-retune", "replicas": 4, **fields})


def test_the_same_workload_is_taken_over_in_full(past: PastStudy) -> None:
    made = retuning(Present.of(past), define(), there())
    assert made.warm_start.old == past.results
    assert not made.warm_start.forgets_old
    assert made.told == ()
    keep, linear, sqrt = (r.parameters for r in made.warm_start.rules if r.boundaries_in == "examples")
    assert keep.global_batch_size % 4 == 0
    assert linear.global_batch_size == 2 * past.leader.global_batch_size
    assert linear.learning_rate == pytest.approx(2 * past.leader.learning_rate)
    assert sqrt.learning_rate == pytest.approx(2**0.5 * past.leader.learning_rate)
    assert made.resolved.baseline is None
    assert made.present.quality[ERROR]


def test_a_changed_target_is_read_from_the_old_curves(past: PastStudy) -> None:
    harder = there(objective=replace(STEPS_TO_TARGET, target=0.02))
    made = retuning(Present.of(past), define("target = 0.1", "target = 0.02"), harder)
    assert not made.warm_start.forgets_old
    assert any("target: 0.1 there, 0.02 here" in sentence for sentence in made.told)
    assert not any(r.outcome is Outcome.REACHED for r in made.warm_start.old if r.reached is None)
    easier = there(objective=replace(STEPS_TO_TARGET, target=0.3))
    read = retuning(Present.of(past), define("target = 0.1", "target = 0.3"), easier).warm_start.old
    steps = [
        (a.reached.steps, b.reached.steps) for a, b in zip(past.results, read, strict=True) if a.reached and b.reached
    ]
    assert steps
    assert all(new < old for old, new in steps)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ('name = "tests/closed_form"', 'name = "tests/closed_form"\noptions = { units = 3 }'),
            "workload.options.units",
        ),
        (('name = "tests/closed_form"', 'name = "tests/closed_form"\noptimizer = "nesterov"'), "workload.optimizer"),
    ],
)
def test_changed_models_count_less_and_it_is_told(past: PastStudy, change: tuple[str, str], said: str) -> None:
    made = retuning(Present.of(past), define(*change), there())
    assert made.warm_start.forgets_old
    assert any(said in sentence and "until a run here has reached the target" in sentence for sentence in made.told)


def test_changed_data_count_less_and_another_metric_counts_nothing(past: PastStudy) -> None:
    more_data = retuning(Present.of(past), define(), there(train_examples=9_000))
    assert more_data.warm_start.forgets_old
    assert any("training examples: 1,000 there, 9,000 here" in sentence for sentence in more_data.told)
    other = there(objective=replace(STEPS_TO_TARGET, metric="val/loss"))
    made = retuning(Present.of(past), define(), other)
    assert made.warm_start.old == ()
    assert any("only the old settings" in sentence for sentence in made.told)


def test_adam_is_told_from_sgd(past: PastStudy) -> None:
    assert not retuning(Present.of(past), define(), there()).warm_start.adaptive
    adam = define('name = "tests/closed_form"', 'name = "tests/closed_form"\noptimizer = "adam"')
    assert retuning(Present.of(past), adam, there()).warm_start.adaptive


def test_another_workload_is_refused(past: PastStudy) -> None:
    with pytest.raises(StudyError, match=r"study s is of tests/closed_form, the definition of mnist/mlp"):
        check_same_workload(past, define("tests/closed_form", "mnist/mlp"))


def test_settings_alone_are_in_epochs_of_the_workload() -> None:
    config = BaselineSection.model_validate(
        {"global_batch_size": 30, "learning_rate": 0.2, "boundaries": ["2 epochs"], "momentum": 0.8}
    )
    made = retuning(Present(replicas=1, source="a test", config=config), define(), there())
    keep, linear = made.warm_start.rules[:2]
    assert keep.parameters.global_batch_size == 32
    assert keep.parameters.schedule.boundaries == (2 * TRAIN_EXAMPLES,)
    assert (linear.parameters.global_batch_size, linear.parameters.momentum) == (120, 0.8)
    assert made.told == ("a global batch of 30 cannot be shared equally here: 32 stands for `keep`",)


def test_without_a_target_there_is_nothing_to_retune() -> None:
    present = Present(
        replicas=1, source="a test", parameters=Parameters(global_batch_size=64, schedule=Constant(learning_rate=0.1))
    )
    with pytest.raises(StudyError, match="needs a target"):
        retuning(present, define(), there(objective=replace(STEPS_TO_TARGET, minimize="metric", target=None)))
    with pytest.raises(StudyError, match="is not known yet"):
        retuning(present, define(), there(objective=replace(STEPS_TO_TARGET, target=None)))


def test_a_retune_is_a_study_and_goes_on_where_it_was_stopped(past: PastStudy, tmp_path: Path) -> None:
    made = retuning(Present.of(past), define(), there())

    def session(name: str, trials: int) -> Session:
        storage = open_storage(f"sqlite:///{tmp_path}/{name}.db")
        return Session(
            storage,
            budget=Budget(trials=trials),
            what=made.resolved,
            sampler_name="scaling",
            warm_start=made.warm_start,
        )

    whole = session("whole", 8)
    found = whole.run().findings
    assert found.recommendation is not None
    assert found.recommendation.parameters in {r.parameters for r in whole.results if r.reached}
    assert whole.store.attribute("expected_costs_of_rules") is not None
    assert len(whole.results) <= 8
    session("cut", 3).run()
    going_on = session("cut", 8)
    going_on.run()
    assert [r.parameters for r in going_on.results] == [r.parameters for r in whole.results]


def test_what_is_taken_over_is_cut_into_as_many_micro_batches_as_a_profile_asks_for(past: PastStudy) -> None:
    made = retuning(Present.of(past), define(), there())
    assert {r.parameters.accumulation for r in (*made.warm_start.rules, *made.warm_start.old)} == {1}
    space = replace(made.resolved.space, accumulation=AsFewAsFit(replicas=4, largest_share=8))
    within = made.within(space)
    assert within.resolved.space == space
    for known in (*within.warm_start.rules, *within.warm_start.old):
        assert known.parameters.accumulation == space.accumulation_at(known.parameters.global_batch_size)
    assert max(r.parameters.accumulation for r in within.warm_start.old) > 1
