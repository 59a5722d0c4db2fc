"""Spaces, parameters and results for tests of the search."""

from __future__ import annotations

import math
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from scalesearch.core.axis import Interval
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Cost, Measurement, Objective, Outcome, Reached, TrialResult
from scalesearch.core.schedule import Constant, Piecewise
from scalesearch.core.schedule_space import ConstantSpace, PiecewiseSpace
from scalesearch.core.space import BatchSizes, SearchSpace
from scalesearch.search.storage import StudyStore

ERROR = "val/classification_error"
STEPS = Objective(metric=ERROR, direction="minimize", target=0.1, minimize="steps")

SPACE = SearchSpace(
    batch_sizes=BatchSizes(low=8, high=1024, multiple_of=None, divisor=1),
    learning_rate=Interval(1e-3, 1.0),
    momentum=Interval(0.5, 0.99),
    schedule=PiecewiseSpace(decays=2, boundaries=Interval(1_000, 100_000), decay_factor=Interval(0.1, 0.1)),
)
RATE_ONLY = SearchSpace(
    batch_sizes=BatchSizes(low=64, high=64, multiple_of=None, divisor=1),
    learning_rate=Interval(1e-4, 1.0),
    momentum=None,
    schedule=ConstantSpace(),
)
BASELINE = Parameters(
    global_batch_size=96,  # neither a power of two, nor is the rate inside of the space
    schedule=Piecewise(learning_rate=2.5, decay_factor=0.2, boundaries=(30_000,)),
    momentum=0.9,
)


def constant(learning_rate: float, *, global_batch_size: int = 64) -> Parameters:
    return Parameters(global_batch_size=global_batch_size, schedule=Constant(learning_rate=learning_rate))


def measurements(*errors: float, loss: float = 1.5, metrics: dict[str, float] | None = None) -> tuple[Measurement, ...]:
    """An evaluation every 100 steps of 64 examples, the first one before training."""
    return tuple(
        Measurement(
            step=100 * i,
            examples=6_400 * i,
            train_seconds=0.7 * i,
            elapsed_seconds=0.9 * i + 0.1,
            train_loss=math.nan if i == 0 else loss,
            metrics={ERROR: error, "val/loss": 2 * error, **(metrics or {})},
        )
        for i, error in enumerate(errors)
    )


def result(number: int, parameters: Parameters, outcome: Outcome, **fields: Any) -> TrialResult:
    """A result of `outcome` that is as full as such a result can be."""
    measured = measurements(0.9, 0.3) if outcome is not Outcome.OUT_OF_MEMORY else ()
    reached = None
    if outcome is Outcome.REACHED:
        measured = measurements(0.9, 0.3, 0.08)
        reached = Reached(steps=187.5, examples=12_000.25, seconds=1.3, evaluation_step=200, evaluation_examples=12_800)
    complete: dict[str, Any] = {
        "number": number,
        "parameters": parameters,
        "seed": 17,
        "outcome": outcome,
        "reason": f"for a test of {outcome.value}",
        "cost": Cost(examples=12_800, device_seconds=3.8),
        "reached": reached,
        "measurements": measured,
        "seconds": 2.25,
    }
    return TrialResult(**(complete | fields))


def tell(
    store: StudyStore,
    outcome: Outcome,
    objective: Objective = STEPS,
    *,
    space: SearchSpace = SPACE,
    **fields: object,
) -> TrialResult:
    """Ask for a trial and tell its result."""
    trial = store.ask(space, sampler_name="random", seed=3)
    told = result(trial.number, trial.parameters, outcome, seed=trial.seed, **fields)
    store.tell(told, objective)
    return told


def in_optuna(storage_url: str) -> list[FrozenTrial]:
    """The trials as anybody sees them who opens the file with Optuna alone."""
    return optuna.load_study(study_name="s", storage=storage_url).get_trials()
