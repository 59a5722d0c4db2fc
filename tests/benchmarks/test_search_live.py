"""That live problems are read, paid for and compared with their truth as the simulated ones are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from search_environment import Environment, problem
from search_live import PROBLEMS, TRUTHS, LiveCase, live_cases, parameters_to_json, priced, stored_truth
from search_live_truth import _Ledger, _race, expert_problem
from search_truth import FULL_LENGTH, MISS_REGRET, regrets
from search_workloads import run_trial
from test_search import run

from scalesearch.core.evaluation import EvaluationPlan
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Measurement, Outcome
from scalesearch.core.schedule import Constant, Piecewise

TABLE = """
["digits/mlp"]
optimizer = "momentum"
momentum = 0.9
metric = "val/loss"
target = 0.5
step_examples = 100
expert = { max_examples = 4000, global_batch_size = [16, 64], learning_rate = [0.01, 0.1], boundaries = [0.1, 1.0] }
"""
NAMES = ["digits/mlp", "fashion_mnist/mlp"]


@dataclass(frozen=True, kw_only=True)
class FallingCase(LiveCase):
    """Its metric is 1 / (1 + learning rate × examples / 100), with a percent or two less than 100 for each seed."""

    train_examples: int = 1000

    def train(self, parameters: Parameters, *, seed: int, plan: EvaluationPlan) -> Iterator[Measurement]:
        return priced(self._untimed(parameters, seed, plan), self.step_seconds(parameters.global_batch_size))

    def _untimed(self, parameters: Parameters, seed: int, plan: EvaluationPlan) -> Iterator[Measurement]:
        batch, step = parameters.global_batch_size, 0
        measured: list[Measurement] = []
        while step is not None:
            value = 1.0 / (1.0 + parameters.learning_rate * step * batch / (100 - seed % 4))
            measured.append(
                Measurement(
                    step=step,
                    examples=step * batch,
                    train_seconds=123.0,
                    elapsed_seconds=456.0,
                    train_loss=value,
                    metrics={"val/loss": value},
                )
            )
            yield measured[-1]
            step = plan.next_step(measured, global_batch_size=batch)


@pytest.fixture
def case() -> FallingCase:
    [read] = live_cases(["fashion_mnist/mlp"])
    fields = {name: getattr(read, name) for name in read.__dataclass_fields__}
    return FallingCase(**{**fields, "target": 0.5, "step_examples": 100})


def at(rate: float, batch: int = 50) -> Parameters:
    return Parameters(global_batch_size=batch, schedule=Constant(learning_rate=rate), momentum=0.9)


def test_a_trial_costs_its_steps_at_the_price_of_a_batch_and_a_fixed_number_of_examples(case: FallingCase) -> None:
    posed = replace(expert_problem(case, seed=0), max_examples=10_000)
    environment = Environment(case, posed, unit=1000.0, full_cost=9_000.0, budgets=(20.0,))
    hit = environment.run(at(1.0))
    assert hit.outcome is Outcome.REACHED  # at 100 examples: two steps
    assert environment.cost_to_target(hit) == pytest.approx(2 * (100 + 50), rel=0.2)
    steps = hit.measurements[-1].step
    assert environment.spent == pytest.approx(steps * 150 / 1000)
    missed = environment.run(at(1e-4))
    assert missed.outcome is Outcome.CAPPED
    assert missed.measurements[-1].step == 9_000 // 150
    assert environment.spent == pytest.approx((steps * 150 + 9_000) / 1000)


def test_regret_is_of_the_cost_and_a_miss_counts_as_such(case: FallingCase) -> None:
    """The crossing is at 100 / rate examples."""
    unit = 2000.0
    [slow] = regrets.dispatch(object)(case, at(0.1), [1], unit=unit)
    assert slow == pytest.approx((1000 / 50) * 150 / unit - 1.0, rel=0.05)
    [never] = regrets.dispatch(object)(case, at(0.1), [1], unit=3000.0 / FULL_LENGTH * 0.9)
    assert never == MISS_REGRET


def test_a_race_is_won_by_the_least_mean_cost(case: FallingCase) -> None:
    ledger = _Ledger()
    rates = [0.02, 0.1, 0.005, 0.05]
    won = _race(case, [at(r) for r in rates], ((1, 2), (3, 1)), cap=20_000.0, first_seed=1, ledger=ledger)
    assert won.parameters == at(0.1)
    assert len(set(won.costs)) == 4  # each with a seed of its own
    assert ledger.runs == 4 + 2 * 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("targett = 1", "wrong.toml: digits/mlp: unknown key `targett`: did you mean `target`?"),
        ("minimize = 'steps'", "wrong.toml: digits/mlp: unknown key `minimize`"),
    ],
)
def test_a_mistake_in_a_problem_is_named(wrong: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(f"{TABLE}{wrong}\n")
    with pytest.raises(SystemExit, match=message.replace("?", r"\?")):
        live_cases(["digits/mlp"], path)


def test_what_is_missing_in_a_problem_is_named(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(TABLE.replace("step_examples = 100", ""))
    with pytest.raises(SystemExit, match=r"wrong.toml: digits/mlp: `step_examples` is missing"):
        live_cases(["digits/mlp"], path)
    path.write_text(TABLE.replace("max_examples = 4000, ", ""))
    with pytest.raises(SystemExit, match=r"wrong.toml: digits/mlp.expert: `max_examples` is missing"):
        live_cases(["digits/mlp"], path)


def test_an_unknown_problem_is_refused() -> None:
    done = run("--live", "mnist/mlp")
    assert done.returncode != 0
    assert "search_live.toml has no mnist/mlp; it has digits/mlp, fashion_mnist/mlp" in done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_the_stored_truth_belongs_to_the_problem_and_poses_one_that_holds_it(name: str) -> None:
    [case] = live_cases([name])
    known = stored_truth(case)
    assert known.unit > 0.0
    assert known.misses <= 0.2
    assert known.best.global_batch_size in known.curve
    posed = problem(case, known, seed=3, guess_factor=2.5)
    assert posed.space.nearest(known.best) == known.best
    octaves = len(posed.space.batch_sizes.values()) - 1
    assert 8 <= octaves <= 12


def test_a_truth_of_another_problem_is_refused(tmp_path: Path) -> None:
    [case] = live_cases(["digits/mlp"])
    with pytest.raises(SystemExit, match="made for another problem"):
        stored_truth(replace(case, target=case.target / 2))
    stored_truth(replace(case, fresh_seeds=3))  # which changes no run
    with pytest.raises(SystemExit, match=r"has no digits/mlp: run `search\.py --make-truth digits/mlp`"):
        stored_truth(case, tmp_path / "none.json")


def test_parameters_survive_the_file_of_truths() -> None:
    [case] = live_cases(["digits/mlp"])
    row = json.loads(TRUTHS.read_text())["digits/mlp"]["curve"][0]
    known = stored_truth(case).curve[row["global_batch_size"]].parameters
    assert isinstance(known.schedule, Piecewise)
    assert known.momentum == 0.9
    assert parameters_to_json(known).items() <= row.items()


def test_a_real_run(tmp_path: Path) -> None:
    """Digits by our engine: the loss falls below 0.5 within an epoch."""
    path = tmp_path / PROBLEMS.name
    path.write_text(TABLE)
    [case] = live_cases(["digits/mlp"], path)
    result = run_trial(case, at(0.05), number=0, seed=5, max_cost=20_000)
    assert result.outcome is Outcome.REACHED
    assert case.train_examples == 1257
    assert 5 < result.reached.steps < 40
    assert result.measurements[-1].elapsed_seconds == result.measurements[-1].step * 150
