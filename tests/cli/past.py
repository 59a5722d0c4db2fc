"""A finished study in a storage, made up: no TensorFlow."""

from __future__ import annotations

import math
from pathlib import Path

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Cost, Measurement, Outcome, TrialResult, crossing, first_crossing
from scalesearch.core.schedule import Constant
from scalesearch.definition import load_definition, resolve
from scalesearch.search.database import open_storage
from scalesearch.search.storage import StudyStore

TRAIN_EXAMPLES = 1_257
STORAGE = "sqlite:///scalesearch.db"
METRICS = ("val/classification_error", "val/loss")


def past_study(definition: Path, *, reaches: bool = True, replicas: int = 1) -> str:
    """The name of a study of `definition` in the storage of its folder, with trials at two batch sizes."""
    parsed = load_definition(definition)
    resolved = resolve(parsed, replicas=replicas, train_examples=TRAIN_EXAMPLES, metrics=METRICS, maximize=())
    store = StudyStore(
        open_storage(f"sqlite:///{definition.parent}/scalesearch.db"), resolved.name, direction="minimize"
    )
    store.check_definition({**parsed.fingerprint(), "replicas": replicas})
    objective = resolved.objective
    store.keep("target", objective.target)
    store.keep(
        "context",
        {
            "workload": parsed.workload.name,
            "optimizer": parsed.workload.optimizer,
            "replicas": replicas,
            "train_examples": TRAIN_EXAMPLES,
            "curve_sizes": (),
            "objective": vars(objective),
            "budget": {"trials": 8},
        },
    )
    for size, rate in ((16, 0.1), (16, 0.2), (16, 0.2), (32, 0.2), (32, 0.3)):
        parameters = Parameters(global_batch_size=size, schedule=Constant(learning_rate=rate), momentum=0.9)
        store.enqueue(parameters, resolved.space)
        trial = store.ask(resolved.space, sampler_name="random", seed=0)
        measured = _curve(parameters, best=0.05 if reaches else 0.3)
        reached = crossing(measured, objective)
        result = TrialResult(
            number=trial.number,
            parameters=parameters,
            seed=trial.seed,
            outcome=Outcome.REACHED if reached else Outcome.EXHAUSTED,
            reason="made up",
            cost=Cost(examples=measured[-1].examples, device_seconds=measured[-1].elapsed_seconds),
            reached=reached,
            first_reached=first_crossing(measured, objective),
            measurements=measured,
            test_metrics={"test/classification_error": 0.16} if reached else {},
        )
        store.tell(result, objective)
    return resolved.name


def _curve(parameters: Parameters, *, best: float) -> tuple[Measurement, ...]:
    """The error falls with the sum of the rates, towards `best`; a step takes 1 ms and 10 µs for each example."""
    size, per_step = parameters.global_batch_size, 1e-3 + 1e-5 * parameters.global_batch_size
    measured = []
    for step in range(0, 8 * TRAIN_EXAMPLES // size, 10):
        error = best + (0.9 - best) * math.exp(-step * parameters.learning_rate / 20)
        measured.append(
            Measurement(
                step=step,
                examples=step * size,
                train_seconds=step * per_step,
                elapsed_seconds=1.0 + step * per_step,
                train_loss=2.0 * error if step else math.nan,
                metrics={"val/classification_error": error, "val/loss": 2.0 * error},
            )
        )
        if error < 0.13:
            break
    return tuple(measured)
