from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from scalesearch.core.axis import Interval
from scalesearch.core.edges import Limits
from scalesearch.core.evaluation import EvaluationPlan
from scalesearch.core.parameters import Parameters
from scalesearch.core.planner import Planner
from scalesearch.core.range_trials import RANGE, is_range
from scalesearch.core.results import Goal, Objective, Outcome, TrialResult
from scalesearch.core.schedule_space import ConstantSpace, PiecewiseSpace
from scalesearch.core.simulate import Decays, SimulatedTrainer, true_optimum
from scalesearch.core.space import BatchSizes, SearchSpace
from scalesearch.search import CappingPruner
from scalesearch.search.scaling import ScalingSampler, distributions, reported_trials, suggest
from tests.core.simulated import EASY, decaying, run

TARGET = 0.3
REPEATS = ("repeat of the leader", "repeat of a challenger", "confirmation")
MAX_EXAMPLES = 10_000
OpenDatabase = Callable[[Path], str]
LOSS = Objective(metric="loss", direction="minimize", target=TARGET, minimize="examples")
SPACE = SearchSpace(
    batch_sizes=BatchSizes(low=8, high=512, multiple_of=None, divisor=1),
    learning_rate=Interval(1e-3, 10.0),
    momentum=None,
    schedule=PiecewiseSpace(decays=1, boundaries=Interval(200, MAX_EXAMPLES), decay_factor=Interval(0.1, 0.1)),
)
PLANNER = Planner(space=SPACE, objective=LOSS, max_examples=MAX_EXAMPLES)


def training(parameters: Parameters, *, max_examples: int = MAX_EXAMPLES) -> Iterator[tuple[int, float]]:
    """(examples seen, loss) of a simulated workload."""
    plan = EvaluationPlan(
        objective=EASY.objective("examples"),
        boundaries=parameters.schedule.boundaries,
        first_examples=80,
        max_interval_examples=4096,
        end_examples=max_examples,
    )
    for measured in SimulatedTrainer(EASY).train(parameters, seed=0, plan=plan):
        yield measured.examples, measured.metrics["val/loss"]


def objective(trial: optuna.Trial, space: SearchSpace = SPACE) -> float:
    """As in the docstring."""
    for examples, loss in training(suggest(trial, space)):
        if loss < TARGET:
            return examples
        trial.report(loss, step=examples)
        if trial.should_prune():
            break
    raise optuna.TrialPruned


def new_study(planner: Planner = PLANNER) -> optuna.Study:
    return optuna.create_study(sampler=ScalingSampler(planner), pruner=CappingPruner())


@pytest.fixture(scope="module")
def study() -> optuna.Study:
    """Of fourteen trials."""
    done = new_study()
    done.optimize(objective, n_trials=14)
    return done


def test_the_example_of_the_docstring_runs() -> None:
    [example] = re.findall(r"```python\n(.*?)```", inspect.getdoc(ScalingSampler) or "", re.DOTALL)
    scope: dict[str, Any] = {
        "optuna": optuna,
        "training": lambda parameters: training(parameters, max_examples=100_000),
        "suggest": suggest,
        **{t.__name__: t for t in (SearchSpace, BatchSizes, Interval, ConstantSpace, Objective, Planner)},
        **{t.__name__: t for t in (ScalingSampler, CappingPruner)},
    }
    exec(example, scope)
    done: optuna.Study = scope["study"]
    done.optimize(scope["objective"], n_trials=14)
    assert any(t.state is TrialState.COMPLETE for t in done.trials)
    assert len({tuple(t.params.values()) for t in done.trials}) >= 7
    assert all(t.value is None or t.value < 100_000 for t in done.trials if t.state is TrialState.COMPLETE)


def test_it_comes_near_the_optimum(study: optuna.Study) -> None:
    optimum = true_optimum(EASY, (8, 16, 32, 64), goal="examples", decays=Decays(number=1))
    hits = [t.value for t in study.trials if t.state is TrialState.COMPLETE]
    assert len(hits) >= 3
    assert study.best_value < 1.25 * optimum.examples
    assert study.best_value < hits[0]  # type: ignore[operator]


def test_trials_know_their_cap_and_why(study: optuna.Study) -> None:
    assert study.trials[0].user_attrs["why"] == RANGE
    assert all(t.user_attrs["cap"] > 0.0 for t in study.trials)
    assert study.trials[-1].user_attrs["why"] != RANGE


def test_results_know_what_they_were_run_for(study: optuna.Study) -> None:
    results = reported_trials(study, PLANNER)
    assert [r.why for r in results] == [t.user_attrs["why"] for t in study.trials]
    assert is_range(results[0])


def test_the_script_can_observe_the_cap_itself() -> None:
    seen = []

    def reads_its_cap(trial: optuna.Trial) -> float:
        suggest(trial, SPACE)
        seen.append(trial.user_attrs["cap"])
        raise optuna.TrialPruned

    new_study().optimize(reads_its_cap, n_trials=2)
    assert len(seen) == 2
    assert all(cap > 0.0 for cap in seen)


def test_the_pruner_observes_caps(study: optuna.Study) -> None:
    """A trial ends at its first report beyond its cap, be that below or above the incumbent's cost."""
    pruned = [t for t in study.trials if t.state is TrialState.PRUNED]
    for trial in pruned:
        steps = sorted(trial.intermediate_values)
        stopped = [s for s in steps if s > trial.user_attrs["cap"]]
        assert len(stopped) <= 1
    ranging = [
        t for t in pruned if t.user_attrs["why"] == RANGE and np.isfinite(list(t.intermediate_values.values())).all()
    ]
    assert ranging
    assert all(max(t.intermediate_values) > t.user_attrs["cap"] for t in ranging)
    assert all(max(t.intermediate_values) < 0.2 * MAX_EXAMPLES for t in ranging)


@pytest.mark.parametrize(("cap", "ended"), [(50.0, True), (500.0, False), (None, False)])
def test_a_cap_counts_before_the_incumbent(study: optuna.Study, cap: float | None, ended: bool) -> None:
    trial = create_trial(state=TrialState.RUNNING, intermediate_values={0: 0.9, 400: 0.5}, user_attrs={"cap": cap})
    assert CappingPruner().prune(study, trial) is ended
    incumbents_cost = round(study.best_value) + 1
    trial = create_trial(
        state=TrialState.RUNNING, intermediate_values={incumbents_cost: 0.5}, user_attrs={"cap": 2.0 * study.best_value}
    )
    assert not CappingPruner().prune(study, trial)


def test_queued_trials_are_left_as_they_are() -> None:
    done = new_study()
    queued = SPACE.coordinates(decaying(0.7, 30))
    done.enqueue_trial(queued)
    done.optimize(objective, n_trials=2)
    assert done.trials[0].params == pytest.approx(queued)
    assert "why" not in done.trials[0].user_attrs
    assert "why" in done.trials[1].user_attrs


def test_what_a_queued_trial_leaves_open_is_not_the_planners() -> None:
    """A proposal is one point: a part of it, with a cap that was meant for the whole, would be something else."""
    done = new_study()
    done.enqueue_trial({"log2_global_batch_size": 5})
    done.optimize(objective, n_trials=1)
    [trial] = done.trials
    assert trial.params["log2_global_batch_size"] == 5
    assert set(trial.params) == set(distributions(SPACE))
    assert "cap" not in trial.user_attrs


def test_a_queued_trial_counts_as_a_result() -> None:
    done = new_study()
    done.enqueue_trial(SPACE.coordinates(decaying(0.7, 30)))
    done.optimize(objective, n_trials=1)
    [result] = reported_trials(done, PLANNER)
    assert result.outcome is Outcome.REACHED
    assert PLANNER.recommend([result]) == result.parameters


def test_one_seed_gives_one_sequence(study: optuna.Study) -> None:
    again, other = new_study(), new_study(replace(PLANNER, seed=1))
    for s in (again, other):
        s.optimize(objective, n_trials=10)
    assert [t.params for t in again.trials] == [t.params for t in study.trials[:10]]
    assert [t.params for t in other.trials] != [t.params for t in study.trials[:10]]


def test_a_continued_study_goes_on_as_if_it_had_never_stopped(study: optuna.Study) -> None:
    continued = new_study()
    continued.add_trials(study.trials[:9])
    continued.optimize(objective, n_trials=2)
    assert [t.params for t in continued.trials[9:]] == [t.params for t in study.trials[9:11]]


def test_parameters_of_the_scripts_own_are_drawn_at_random() -> None:
    def with_another(trial: optuna.Trial) -> float:
        suggest(trial, SPACE)
        trial.suggest_float("dropout", 0.0, 0.5)
        raise optuna.TrialPruned

    done = new_study()
    done.optimize(with_another, n_trials=4)
    assert len({t.params["dropout"] for t in done.trials}) == 4


def test_suggested_parameters_are_those_of_the_trial(study: optuna.Study) -> None:
    trial = study.trials[3]
    fixed = optuna.trial.FixedTrial(trial.params)
    assert suggest(fixed, SPACE) == SPACE.parameters(trial.params)  # type: ignore[arg-type]
    kinds = {name: type(d) for name, d in distributions(SPACE).items()}
    assert kinds == {
        "log2_global_batch_size": IntDistribution,
        "effective_learning_rate": FloatDistribution,
        "decay_boundary_1": FloatDistribution,
    }


def test_what_was_reported_becomes_results(study: optuna.Study) -> None:
    results = reported_trials(study, PLANNER)
    assert [r.number for r in results] == list(range(14))
    for result, trial in zip(results, study.trials, strict=True):
        assert result.parameters == SPACE.parameters(trial.params)
        size = result.parameters.global_batch_size
        assert [m.step for m in result.measurements] == sorted(m.step for m in result.measurements)
        assert result.measurements[0].step == 0
        reported = {m.examples: m.metrics["loss"] for m in result.measurements}
        assert trial.intermediate_values.items() <= reported.items()
        if trial.state is TrialState.COMPLETE:
            assert result.reached is not None
            assert result.reached.examples == pytest.approx(trial.value)
            assert result.reached.steps == pytest.approx(trial.value / size)  # type: ignore[operator]
            end = result.measurements[-1]
            assert (end.examples, end.metrics["loss"]) == (trial.value, TARGET)
        else:
            assert result.outcome in (Outcome.CAPPED, Outcome.DIVERGED)


@pytest.mark.parametrize(("goal", "per_step"), [("steps", 1.0), ("examples", 64.0), ("seconds", 0.5)])
def test_a_value_is_in_the_unit_of_the_goal(goal: Goal, per_step: float) -> None:
    planner = replace(PLANNER, objective=replace(LOSS, minimize=goal), step_seconds=lambda size: 0.5)
    done = new_study(planner)
    done.add_trial(
        create_trial(
            value=30 * per_step,
            params=SPACE.coordinates(decaying(0.7, 30)),
            distributions=distributions(SPACE),
            intermediate_values={0: 2.5, 640: 0.9, 1280: 0.5},
        )
    )
    [result] = reported_trials(done, planner)
    assert result.reached is not None
    assert result.reached.steps == pytest.approx(30)
    assert result.reached.cost(goal) == pytest.approx(30 * per_step)


def test_a_hit_at_the_first_evaluation_counts() -> None:
    """The script of the docstring returns before it has reported anything."""
    done = new_study()
    done.optimize(lambda trial: float(suggest(trial, SPACE).global_batch_size), n_trials=3)
    assert [r.outcome for r in reported_trials(done, PLANNER)] == [Outcome.REACHED] * 3
    assert len({tuple(t.params.values()) for t in done.trials}) > 1


def test_a_trial_that_failed_is_not_tried_again_as_it_was() -> None:
    def fails(trial: optuna.Trial) -> float:
        suggest(trial, SPACE)
        raise MemoryError

    done = new_study()
    done.optimize(fails, n_trials=4, catch=(MemoryError,))
    assert [r.outcome for r in reported_trials(done, PLANNER)] == [Outcome.CRASHED] * 4
    assert len({tuple(t.params.values()) for t in done.trials}) >= 3


def test_a_loss_that_is_no_number_is_divergence() -> None:
    def diverges(trial: optuna.Trial) -> float:
        suggest(trial, SPACE)
        trial.report(float("nan"), step=64)
        raise optuna.TrialPruned

    done = new_study()
    done.optimize(diverges, n_trials=2)
    first, second = reported_trials(done, PLANNER)
    assert first.outcome is Outcome.DIVERGED
    assert second.parameters.learning_rate < first.parameters.learning_rate


def test_a_history_of_ones_own_replaces_what_was_reported(study: optuna.Study) -> None:
    known = reported_trials(study, PLANNER)[:8]
    other = optuna.create_study(sampler=ScalingSampler(PLANNER, history=lambda study: known))
    assert suggest(other.ask(), SPACE) == PLANNER.propose(known).parameters


def history(count: int) -> Callable[[optuna.Study], Sequence[TrialResult]]:
    """So many finished trials of all kinds."""
    random = np.random.default_rng(0)
    results = []
    for number in range(count):
        size = int(2 ** random.integers(3, 10))
        parameters = decaying(
            float(np.exp(random.uniform(-4, 1.1))), int(random.integers(5, 200)), global_batch_size=size
        )
        results.append(run(EASY, parameters, max_examples=MAX_EXAMPLES, goal="examples", seed=number))
    return lambda study: results


@pytest.mark.parametrize(("finished", "seconds"), [(100, 0.2), (1000, 1.0)])
def test_suggestions_are_fast(finished: int, seconds: float, capsys: pytest.CaptureFixture[str]) -> None:
    """CPU time, the least of three; a machine that others use as well may take twice as long for the same work."""
    planner = replace(PLANNER, objective=EASY.objective("examples"))
    study = optuna.create_study(sampler=ScalingSampler(planner, history=history(finished)))
    took = []
    for _ in range(3):
        started = process_time()
        study.ask(distributions(SPACE))
        took.append(process_time() - started)
    with capsys.disabled():
        print(f"\n  a suggestion after {finished:,} trials: {min(took):.3f} s (aim {seconds:g} s)")  # noqa: T201
    assert min(took) < 2.0 * seconds


def test_several_trials_may_be_asked_for_before_any_is_told() -> None:
    def four_at_once() -> optuna.Study:
        study = new_study()
        for _ in range(4):
            asked = [study.ask() for _ in range(4)]
            for trial in asked:
                suggest(trial, SPACE)
            for trial in asked:
                tell(study, trial)
        return study

    study = four_at_once()
    assert len(new_points(study)) >= 14
    diverged = [r.outcome is Outcome.DIVERGED for r in reported_trials(study, PLANNER)]
    assert sum(diverged[4:]) <= 1, "once the limit is known, all are below it"
    assert [t.params for t in four_at_once().trials] == [t.params for t in study.trials]


def new_points(study: optuna.Study) -> list[tuple[Any, ...]]:
    """Of the trials that were not meant as repeats; each is bought once."""
    points = [tuple(t.params.values()) for t in study.trials if t.user_attrs["why"] not in REPEATS]
    assert len(set(points)) == len(points)
    return points


def tell(study: optuna.Study, trial: optuna.Trial) -> None:
    try:
        study.tell(trial, objective(trial))
    except optuna.TrialPruned:
        study.tell(trial, state=TrialState.PRUNED)


def test_threads_find_about_as_good_an_answer(study: optuna.Study) -> None:
    threads = new_study()
    threads.optimize(objective, n_trials=14, n_jobs=4)
    assert len(new_points(threads)) >= 9
    assert threads.best_value < 1.25 * study.best_value


def test_a_trial_that_never_ends_only_repels() -> None:
    """Of a process that died: it stays in the storage as RUNNING."""
    study = new_study()
    suggest(study.ask(), SPACE)
    study.ask()  # died before it had its parameters
    study.optimize(objective, n_trials=12)
    assert study.trials[0].state is study.trials[1].state is TrialState.RUNNING
    assert study.trials[0].params not in [t.params for t in study.trials[2:]]
    assert any(t.state is TrialState.COMPLETE for t in study.trials)


def test_a_storage_that_is_opened_anew_for_every_trial_gives_the_same_sequence(
    study: optuna.Study, tmp_path: Path, new_database: OpenDatabase
) -> None:
    url = new_database(tmp_path / "optuna.db")
    for _ in range(8):
        again = optuna.create_study(
            study_name="s",
            storage=url,
            load_if_exists=True,
            sampler=ScalingSampler(PLANNER),
            pruner=CappingPruner(),
        )
        again.optimize(objective, n_trials=1)
    assert [t.params for t in again.trials] == [t.params for t in study.trials[:8]]


def test_a_repeat_is_of_exactly_the_parameters_that_it_repeats() -> None:
    """Coordinates of parameters, made parameters again, may differ in the last digit."""
    space = replace(SPACE, momentum=Interval(0.5, 0.98), learning_rate=Interval(1e-4, 1.0))
    planner = replace(PLANNER, space=space, objective=EASY.objective("examples"), confirming=True)
    odd = next(p for p in in_space(space) if space.nearest(p) != p)
    hit = replace(run(EASY, decaying(0.7, 30), max_examples=MAX_EXAMPLES, goal="examples"), parameters=odd)
    study = optuna.create_study(sampler=ScalingSampler(planner, history=lambda study: [hit]))
    assert suggest(study.ask(), space) == odd


def in_space(space: SearchSpace) -> Iterator[Parameters]:
    random = np.random.default_rng(0)
    while True:
        yield space.parameters({a.name: a.clip(random.uniform(a.low, a.high)) for a in space.axes()})


SMALL = replace(
    SPACE, batch_sizes=BatchSizes(low=2, high=8, multiple_of=None, divisor=1), learning_rate=Interval(1e-3, 0.1)
)
WIDENING = replace(PLANNER, space=SMALL, limits=Limits(train_examples=EASY.train_examples, max_examples=MAX_EXAMPLES))


def test_a_space_is_widened_where_the_optimum_lies_at_its_edge(tmp_path: Path, new_database: OpenDatabase) -> None:
    def in_small_space(trial: optuna.Trial) -> float:
        return objective(trial, SMALL)

    whole, url = new_study(WIDENING), new_database(tmp_path / "optuna.db")
    whole.optimize(in_small_space, n_trials=14)
    rates = [r.parameters.learning_rate for r in reported_trials(whole, WIDENING)]
    assert max(rates[:4]) <= 0.1
    assert 0.1 < max(rates) <= 0.4 * (1 + 1e-9)
    beyond = next(t for t in whole.trials if t.params["effective_learning_rate"] > 0.1)
    assert beyond.distributions["effective_learning_rate"].high > 0.1  # type: ignore[attr-defined]
    assert beyond.params["effective_learning_rate"] == pytest.approx(rates[beyond.number])

    continued = optuna.create_study(storage=url, sampler=ScalingSampler(WIDENING), pruner=CappingPruner())
    continued.add_trials(whole.trials[: beyond.number + 1])
    continued.optimize(in_small_space, n_trials=1)
    assert continued.trials[-1].params == whole.trials[beyond.number + 1].params


def test_a_script_that_cuts_proposals_off_is_told() -> None:
    """Instead of a random value in place of the one proposed."""
    hit = run(EASY, decaying(0.7, 30), max_examples=MAX_EXAMPLES, goal="examples")
    beyond = replace(hit, parameters=decaying(0.3, 100, global_batch_size=8))
    planner = replace(WIDENING, objective=EASY.objective("examples"), confirming=True)
    study = optuna.create_study(sampler=ScalingSampler(planner, history=lambda study: [beyond]))
    with pytest.raises(ValueError, match=r"effective_learning_rate .* `suggest\(trial, space\)`"):
        study.ask(distributions(SMALL))
