"""The `retune` command: a study that starts from what is known, on other hardware."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace

from pydantic import ValidationError

from scalesearch.cli.run import StudyOptions, run_study
from scalesearch.definition import load_definition
from scalesearch.definition.schema import BaselineSection
from scalesearch.errors import DefinitionError, StudyError
from scalesearch.search.database import open_storage
from scalesearch.search.storage import StudyStore
from scalesearch.study.past import PastStudy
from scalesearch.study.retuning import Present, check_same_workload


@dataclass(frozen=True, kw_only=True)
class RetuneOptions:
    """What the command line says; one of `from_study`, `from_mlflow` (a run's id) and `from_config` (TOML) is given."""

    study: StudyOptions
    from_study: str | None
    from_mlflow: str | None
    from_config: str | None
    from_replicas: int


def run_retune(options: RetuneOptions, *, started: float) -> int:
    """Run or continue a retune; returns the exit code."""
    return run_study(replace(options.study, present=_present(options)), started=started)


def _present(options: RetuneOptions) -> Present:
    if options.from_study is not None:
        return _of_study(options, options.from_study)
    if options.from_mlflow is not None:
        return _of_mlflow(options, options.from_mlflow)
    assert options.from_config is not None
    return Present(
        config=parse_config(options.from_config),
        replicas=options.from_replicas,
        source="the configuration given",
    )


def _of_study(options: RetuneOptions, name: str) -> Present:
    definition = load_definition(options.study.definition_path)
    study = PastStudy.of(StudyStore(open_storage(options.study.storage_url, create=False), name))
    check_same_workload(study, definition)
    return Present.of(study)


def parse_config(text: str) -> BaselineSection:
    """Settings from `key = value, …` with the keys of a definition's section `baseline`. Raises DefinitionError."""
    try:
        return BaselineSection.model_validate(tomllib.loads(f"present = {{ {text} }}")["present"])
    except tomllib.TOMLDecodeError as error:
        problem = str(error)
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"`{'.'.join(map(str, first['loc']))}`: {first['msg'].lower()}"
    raise DefinitionError(
        f"--from-config: {problem}; expected the keys of [baseline], e.g. 'global_batch_size = 64, learning_rate = 0.05, "
        'momentum = 0.9, boundaries = ["5 epochs"]\''
    )


def _of_mlflow(options: RetuneOptions, run_id: str) -> Present:
    from scalesearch.tracking.past_run import read_run  # MLflow takes seconds to import

    if options.study.tracking_uri is None:
        raise StudyError('--from-mlflow needs the MLflow that holds the run: --tracking-uri may not be "none"')
    run = read_run(options.study.tracking_uri, run_id)
    if run.study is not None:
        return _of_study(options, run.study)
    return Present(parameters=run.parameters, replicas=options.from_replicas, source=f"MLflow run {run_id}")
