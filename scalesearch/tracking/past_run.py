"""The settings of a run that MLflow holds."""

from __future__ import annotations

import json
from dataclasses import dataclass

from scalesearch.core.parameters import Parameters
from scalesearch.core.schedule import Constant, Linear, Piecewise, Schedule
from scalesearch.errors import StudyError
from scalesearch.tracking.uri import check_tracking_uri


@dataclass(frozen=True)
class PastRun:
    """The parameters of a trial's run; of a study's own run, the name of the `study` instead."""

    parameters: Parameters | None = None
    study: str | None = None


def read_run(tracking_uri: str, run_id: str) -> PastRun:
    """Read a run. Raises StudyError if there is none, or if it lacks what a configuration needs."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    check_tracking_uri(tracking_uri)
    try:
        run = MlflowClient(tracking_uri).get_run(run_id)
    except MlflowException as error:
        raise StudyError(f"--from-mlflow {run_id}: {tracking_uri} holds no such run: {error.message}") from None
    if run.data.tags.get("scalesearch.kind") == "study":
        return PastRun(study=run.data.tags["scalesearch.study"])
    params = run.data.params
    missing = [key for key in ("global_batch_size", "learning_rate") if key not in params]
    if missing:
        raise StudyError(
            f"--from-mlflow {run_id}: the run has no param {' and no param '.join(missing)}; it has "
            f"{', '.join(sorted(params)) or 'none'}. Give the settings as --from-config"
        )
    try:
        return PastRun(parameters=_parameters(params))
    except ValueError as error:
        raise StudyError(f"--from-mlflow {run_id}: its params are no configuration: {error}") from None


def _parameters(params: dict[str, str]) -> Parameters:
    rate = float(params["learning_rate"])
    boundaries = tuple(int(b) for b in json.loads(params.get("decay_boundaries", "[]")))
    factor = float(params.get("decay_factor", 0.1))
    schedule: Schedule = Constant(learning_rate=rate)
    if params.get("schedule") == "linear":
        schedule = Linear(learning_rate=rate, decay_examples=boundaries[0], end_factor=factor)
    elif boundaries:
        schedule = Piecewise(learning_rate=rate, decay_factor=factor, boundaries=boundaries)
    momentum = params.get("momentum")
    return Parameters(
        global_batch_size=int(float(params["global_batch_size"])),
        schedule=schedule,
        momentum=float(momentum) if momentum is not None else None,
    )
