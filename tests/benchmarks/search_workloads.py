"""The file format of the search benchmark's workloads, and one training run of them."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Protocol

from scalesearch.core.evaluation import EvaluationPlan
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Cost, CrossingRule, Goal, Measurement, Objective, Outcome, TrialResult, crossing
from scalesearch.core.simulate import SimulatedTrainer, SimulatedWorkload, workload_from_table
from scalesearch.core.stopping import awaits_confirmation, verdict

FIRST_EVALUATION_SHARE = 0.01  # of an epoch
CONFIRMED_WITHIN = 1.05  # times the cost at which the target was first met

Stop = Callable[[Sequence[Measurement]], bool]


class Case(Protocol):
    """A workload and how it is searched: what methods and accounts know of it."""

    @property
    def name(self) -> str: ...
    @property
    def objective(self) -> Objective: ...
    @property
    def minimize(self) -> Goal: ...
    @property
    def momentum(self) -> float | None: ...
    @property
    def decays(self) -> int: ...
    @property
    def decay_factor(self) -> float: ...
    @property
    def train_examples(self) -> int:
        """Of an epoch."""

    @property
    def fresh_seeds(self) -> int:
        """How many runs the regret of a recommendation is the mean of."""

    def cost_per_step(self, batch: int) -> float:
        """In the unit that is minimised."""

    def step_seconds(self, batch: int) -> float: ...
    def train(self, parameters: Parameters, *, seed: int, plan: EvaluationPlan) -> Iterator[Measurement]: ...


@dataclass(frozen=True, kw_only=True)
class SimulatedCase:
    """A simulated workload and how it is searched."""

    name: str
    workload: SimulatedWorkload
    minimize: Goal = "seconds"
    crossing: CrossingRule = "smoothed"
    momentum: float | None = None
    decays: int = 2
    decay_factor: float = 0.1

    fresh_seeds: ClassVar[int] = 32

    @property
    def objective(self) -> Objective:
        return replace(self.workload.objective(self.minimize), crossing=self.crossing)

    @property
    def train_examples(self) -> int:
        return self.workload.train_examples

    def cost_per_step(self, batch: int) -> float:
        return {"seconds": self.step_seconds(batch), "examples": float(batch), "steps": 1.0}[self.minimize]

    def step_seconds(self, batch: int) -> float:
        return self.workload.step_time(batch)

    def train(self, parameters: Parameters, *, seed: int, plan: EvaluationPlan) -> Iterator[Measurement]:
        return SimulatedTrainer(self.workload).train(parameters, seed=seed, plan=plan)


def load_cases(path: Path) -> list[SimulatedCase]:
    """Every workload of a file in the format of search_tuning.toml."""
    cases = []
    for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items():
        study = table.pop("study", {})
        workload = workload_from_table(table, source=f"{path.name}: {name}")
        try:
            cases.append(SimulatedCase(name=name, workload=workload, **study))
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
    """Train until the target is reached, the run diverges, is stopped, or has cost `max_cost`.

    A run whose last evaluation within `max_cost` met the target is evaluated once more, to confirm it.
    """
    batch, objective = parameters.global_batch_size, case.objective
    steps = max(1, math.floor(min(max_cost / case.cost_per_step(batch), max_examples / batch)))
    steps_to_confirm = max(steps, math.floor(min(CONFIRMED_WITHIN * steps + 1, max_examples / batch)))
    plan = EvaluationPlan(
        objective=objective,
        boundaries=(*parameters.schedule.boundaries, steps * batch),
        first_examples=round(FIRST_EVALUATION_SHARE * case.train_examples),
        max_interval_examples=case.train_examples,
        end_examples=steps_to_confirm * batch,
    )
    measured: list[Measurement] = []
    end: tuple[Outcome, str] | None = None
    ruled_out_steps: float | None = None
    for measurement in case.train(parameters, seed=seed, plan=plan):
        measured.append(measurement)
        end = verdict(measured, objective)
        if end is None and awaits_confirmation(measured, objective):
            continue
        if end is None and should_stop is not None and should_stop(measured):
            end, ruled_out_steps = (Outcome.CAPPED, "stopped"), steps
        if end or measurement.step >= steps:
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
