"""The file format of the search benchmark's workloads, and one training run of them."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalesearch.core.evaluation import EvaluationPlan
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Cost, Goal, Measurement, Objective, Outcome, TrialResult, crossing
from scalesearch.core.simulate import SimulatedTrainer, SimulatedWorkload, workload_from_table
from scalesearch.core.stopping import verdict

FIRST_EVALUATION_SHARE = 0.01  # of an epoch

Stop = Callable[[Sequence[Measurement]], bool]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A workload and how it is searched."""

    name: str
    workload: SimulatedWorkload
    minimize: Goal = "seconds"
    momentum: float | None = None
    decays: int = 2
    decay_factor: float = 0.1

    @property
    def objective(self) -> Objective:
        return self.workload.objective(self.minimize)

    def cost_per_step(self, batch: int) -> float:
        """In the unit that is minimised."""
        return {"seconds": self.workload.step_time(batch), "examples": float(batch), "steps": 1.0}[self.minimize]

    def spent(self, result: TrialResult) -> float:
        """What a trial cost, whatever its outcome."""
        return result.measurements[-1].step * self.cost_per_step(result.parameters.global_batch_size)


def load_cases(path: Path) -> list[Case]:
    """Every workload of a file in the format of search_tuning.toml."""
    cases = []
    for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items():
        study = table.pop("study", {})
        workload = workload_from_table(table, source=f"{path.name}: {name}")
        try:
            cases.append(Case(name=name, workload=workload, **study))
        except TypeError as error:
            raise SystemExit(f"{path.name}: {name}.study: {error}") from error
    return cases


def run_trial(
    case: Case,
    parameters: Parameters,
    *,
    number: int,
    seed: int,
    max_cost: float,
    max_examples: float = math.inf,
    should_stop: Stop | None = None,
) -> TrialResult:
    """Train until the target is reached, the run diverges, is stopped, or has cost `max_cost`."""
    batch, objective = parameters.global_batch_size, case.objective
    steps = max(1, math.floor(min(max_cost / case.cost_per_step(batch), max_examples / batch)))
    plan = EvaluationPlan(
        objective=objective,
        boundaries=parameters.schedule.boundaries,
        first_examples=round(FIRST_EVALUATION_SHARE * case.workload.train_examples),
        max_interval_examples=case.workload.train_examples,
        end_examples=steps * batch,
    )
    measured: list[Measurement] = []
    end: tuple[Outcome, str] | None = None
    ruled_out_steps: float | None = None
    for measurement in SimulatedTrainer(case.workload).train(parameters, seed=seed, plan=plan):
        measured.append(measurement)
        end = verdict(measured, objective)
        if end is None and should_stop is not None and should_stop(measured):
            end, ruled_out_steps = (Outcome.CAPPED, "stopped"), steps
        if end:
            break
    full_length = (steps + 1) * batch > max_examples
    outcome, reason = end or ((Outcome.EXHAUSTED, "") if full_length else (Outcome.CAPPED, "cap"))
    return TrialResult(
        number=number,
        parameters=parameters,
        seed=seed,
        outcome=outcome,
        reason=reason,
        cost=Cost(examples=measured[-1].examples, device_seconds=measured[-1].elapsed_seconds),
        reached=crossing(measured, objective) if outcome is Outcome.REACHED else None,
        measurements=tuple(measured),
        ruled_out_steps=ruled_out_steps,
    )
