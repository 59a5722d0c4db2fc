from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial

from scalesearch.search import CappingPruner


@pytest.fixture
def study() -> optuna.Study:
    return optuna.create_study()


def complete(study: optuna.Study, cost: float, *, violation: float | None = None) -> None:
    constraints = None if violation is None else {"target": violation}
    study.add_trial(create_trial(state=TrialState.COMPLETE, value=cost, constraints=constraints))


def running(*, step: int) -> FrozenTrial:
    return create_trial(state=TrialState.RUNNING, intermediate_values={0: 0.9, step: 0.5})


def test_without_an_incumbent_nothing_is_stopped(study: optuna.Study) -> None:
    assert not CappingPruner().prune(study, running(step=10**9))


def test_a_trial_is_stopped_once_it_has_cost_more_than_the_cheapest(study: optuna.Study) -> None:
    complete(study, 500.0)
    complete(study, 300.0)
    assert not CappingPruner().prune(study, running(step=300))
    assert CappingPruner().prune(study, running(step=301))


def test_the_margin_is_a_factor_of_the_incumbents_cost(study: optuna.Study) -> None:
    complete(study, 300.0)
    pruner = CappingPruner(margin=1.5)
    assert not pruner.prune(study, running(step=450))
    assert pruner.prune(study, running(step=451))


def test_a_margin_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`margin >= 1` must hold, but got 0\.9"):
        CappingPruner(margin=0.9)


def test_infeasible_and_pruned_trials_are_no_incumbents(study: optuna.Study) -> None:
    complete(study, 300.0)
    complete(study, 10.0, violation=0.2)
    study.add_trial(create_trial(state=TrialState.PRUNED, intermediate_values={5: 0.01}))
    study.add_trial(create_trial(state=TrialState.PRUNED, value=1.0))
    assert not CappingPruner().prune(study, running(step=300))
    assert CappingPruner().prune(study, running(step=301))


def test_a_met_constraint_does_not_keep_a_trial_from_being_the_incumbent(study: optuna.Study) -> None:
    complete(study, 300.0, violation=-1.0)
    assert CappingPruner().prune(study, running(step=301))


def test_the_cost_may_be_something_else_than_the_step(study: optuna.Study) -> None:
    complete(study, 300.0)
    pruner = CappingPruner(cost=lambda trial: trial.user_attrs["seconds"])
    cheap = create_trial(state=TrialState.RUNNING, user_attrs={"seconds": 299.0}, intermediate_values={10**9: 0.5})
    dear = create_trial(state=TrialState.RUNNING, user_attrs={"seconds": 301.0}, intermediate_values={1: 0.5})
    assert not pruner.prune(study, cheap)
    assert pruner.prune(study, dear)


def test_a_study_that_maximises_is_refused() -> None:
    study = optuna.create_study(direction="maximize")
    with pytest.raises(ValueError, match="minimises a cost, but this one maximises"):
        CappingPruner().prune(study, running(step=1))


def test_the_example_of_the_docstring_runs() -> None:
    """Trials need 1,000 examples times ten per decade from the best rate; those that cannot win are stopped early."""
    [example] = re.findall(r"```python\n(.*?)```", inspect.getdoc(CappingPruner) or "", re.DOTALL)
    seen: list[int] = []

    def training(learning_rate: float) -> Iterator[tuple[int, float]]:
        needed = 1_000 * 10 ** abs(round(2 * (learning_rate - 0.5)))  # 1,000 or 10,000 examples
        seen.append(0)
        for examples in range(100, 20_001, 100):
            seen[-1] = examples
            yield examples, 0.05 if examples >= needed else 0.5

    scope = {"optuna": optuna, "training": training, "CappingPruner": CappingPruner}
    exec(example, scope)
    study: optuna.Study = scope["study"]  # type: ignore[assignment]
    for learning_rate in (0.5, 0.999, 0.5):
        study.enqueue_trial({"learning_rate": learning_rate})
    study.optimize(scope["objective"], n_trials=3)  # type: ignore[arg-type]

    assert [t.state for t in study.trials] == [TrialState.COMPLETE, TrialState.PRUNED, TrialState.COMPLETE]
    assert seen == [1_000, 1_100, 1_000], "the second trial ends at its first report above the incumbent's cost"
    assert study.best_value == 1_000
