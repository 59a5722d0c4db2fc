"""Settings read back from MLflow runs."""

from __future__ import annotations

import pytest
from mlflow import MlflowClient

from scalesearch.core.parameters import Parameters
from scalesearch.core.schedule import Constant, Linear, Piecewise, Schedule
from scalesearch.errors import StudyError
from scalesearch.tracking.content import trial_params
from scalesearch.tracking.past_run import read_run

SCHEDULES: list[Schedule] = [
    Constant(learning_rate=0.1),
    Piecewise(learning_rate=0.1, decay_factor=0.2, boundaries=(100, 300)),
    Linear(learning_rate=0.1, decay_examples=500, end_factor=0.01),
]


@pytest.fixture
def client(tracking_uri: str) -> MlflowClient:
    return MlflowClient(tracking_uri)


def logged(client: MlflowClient, params: dict[str, str], **tags: str) -> str:
    run_id: str = client.create_run("0", tags=tags).info.run_id
    for key, value in params.items():
        client.log_param(run_id, key, value)
    client.set_terminated(run_id)
    return run_id


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.kind)
def test_a_trial_comes_back_as_it_was(client: MlflowClient, tracking_uri: str, schedule: Schedule) -> None:
    parameters = Parameters(global_batch_size=96, schedule=schedule, momentum=0.9)
    run_id = logged(client, trial_params(parameters, seed=0, replicas=2))
    assert read_run(tracking_uri, run_id).parameters == parameters


def test_a_study_is_known_by_its_name(client: MlflowClient, tracking_uri: str) -> None:
    run_id = logged(client, {}, **{"scalesearch.kind": "study", "scalesearch.study": "mine-r1"})
    assert read_run(tracking_uri, run_id).study == "mine-r1"


def test_what_is_missing_is_said(client: MlflowClient, tracking_uri: str) -> None:
    run_id = logged(client, {"lr": "0.1", "global_batch_size": "64"})
    with pytest.raises(StudyError, match=r"no param learning_rate; it has global_batch_size, lr"):
        read_run(tracking_uri, run_id)
    with pytest.raises(StudyError, match="holds no such run"):
        read_run(tracking_uri, "0" * 32)
