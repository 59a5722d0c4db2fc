"""Trials of simulated workloads, trained as a study would train them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

from scalesearch.core.curve_planner import CurvePlanner
from scalesearch.core.evaluation import EvaluationPlan
from scalesearch.core.parameters import Parameters
from scalesearch.core.planner import Planner
from scalesearch.core.prefix import seed_to_share
from scalesearch.core.proposal import Proposal
from scalesearch.core.results import Cost, Goal, Measurement, Outcome, TrialResult, crossing
from scalesearch.core.schedule import Constant, Piecewise
from scalesearch.core.simulate import SimulatedTrainer, SimulatedWorkload
from scalesearch.core.simulate.workload import GradientNoise, RunNoise, Spectrum, StepTime
from scalesearch.core.stopping import verdict


class Trainer(Protocol):
    def train(self, parameters: Parameters, *, seed: int, plan: EvaluationPlan) -> Iterator[Measurement]: ...


QUIET = RunNoise(speed=0.0, level=0.0, evaluation=0.0)
EASY = SimulatedWorkload(
    target=0.3,
    spectrum=Spectrum(dimension=100, modes=30),
    gradient_noise=GradientNoise(variance=5.0),
    run_noise=RunNoise(speed=0.02, level=0.01, evaluation=0.01),
    step_time=StepTime(saturation_batch=64.0),
    train_examples=4096,
)


def constant(learning_rate: float, *, global_batch_size: int = 64, momentum: float | None = None) -> Parameters:
    schedule = Constant(learning_rate=learning_rate)
    return Parameters(global_batch_size=global_batch_size, schedule=schedule, momentum=momentum)


def decaying(learning_rate: float, *boundaries: int, global_batch_size: int = 64, factor: float = 0.1) -> Parameters:
    """`boundaries` in steps."""
    examples = tuple(b * global_batch_size for b in boundaries)
    schedule = Piecewise(learning_rate=learning_rate, decay_factor=factor, boundaries=examples)
    return Parameters(global_batch_size=global_batch_size, schedule=schedule)


def run(
    workload: SimulatedWorkload,
    parameters: Parameters,
    *,
    max_examples: int,
    goal: Goal = "seconds",
    seed: int = 0,
    max_steps: float = math.inf,
    should_stop: Callable[[Sequence[Measurement]], bool] = lambda measured: False,
    trainer: Trainer | None = None,
) -> TrialResult:
    """Train until the target is reached, the run diverges or is stopped, or `max_steps` or `max_examples` are over."""
    batch, objective = parameters.global_batch_size, workload.objective(goal)
    full_length = max_examples // batch
    steps = max(1, math.floor(min(max_steps, full_length)))
    plan = EvaluationPlan(
        objective=objective,
        boundaries=parameters.schedule.boundaries,
        first_examples=workload.train_examples // 50,
        max_interval_examples=workload.train_examples,
        end_examples=steps * batch,
    )
    outcome = Outcome.CAPPED if steps < full_length else Outcome.EXHAUSTED
    measured: list[Measurement] = []
    for measurement in (trainer or SimulatedTrainer(workload)).train(parameters, seed=seed, plan=plan):
        measured.append(measurement)
        if ended := verdict(measured, objective):
            outcome = ended[0]
            break
        if should_stop(measured):
            outcome = Outcome.CAPPED
            break
    return TrialResult(
        number=seed,
        parameters=parameters,
        seed=seed,
        outcome=outcome,
        reason="",
        cost=Cost(examples=measured[-1].examples, device_seconds=measured[-1].elapsed_seconds),
        reached=crossing(measured, objective) if outcome is Outcome.REACHED else None,
        measurements=tuple(measured),
    )


def run_proposal(
    workload: SimulatedWorkload, planner: Planner | CurvePlanner, proposal: Proposal, results: Sequence[TrialResult]
) -> TrialResult:
    """What a study does with a proposal."""
    per_step = planner.cost_per_step(results)(proposal.parameters.global_batch_size)
    earlier = [(r.parameters, r.seed) for r in results]
    shared = seed_to_share(proposal.parameters, earlier, max_examples=planner.max_examples)
    return run(
        workload,
        proposal.parameters,
        max_examples=planner.max_examples,
        goal=planner.objective.minimize,
        seed=1000 * planner.seed + len(results) if shared is None else shared,
        max_steps=math.inf if proposal.cap is None else proposal.cap / per_step,
        should_stop=partial(planner.should_stop, proposal=proposal, results=tuple(results)),
    )
