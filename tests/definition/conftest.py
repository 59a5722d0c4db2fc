from __future__ import annotations

from collections.abc import Callable

import pytest

from scalesearch.definition import StudyDefinition, parse_definition

TOML = """
name = "quick"

[workload]
name = "digits/mlp"
optimizer = "momentum"
options = { hidden_units = 64 }

[objective]
metric = "val/classification_error"
target = 0.1
minimize = "seconds"

[search]
global_batch_size = { low = 8, high = 64 }
learning_rate = { low = 1e-3, high = 1.0 }
momentum = 0.9
sampler = "tpe"

[search.schedule]
kind = "piecewise"
decays = 2
decay_factor = 0.1
boundaries = { low = "1 epochs", high = "30 epochs" }

[baseline]
global_batch_size = 16
learning_rate = 0.01
momentum = 0.8
boundaries = ["50 %", "75 %"]
decay_factor = 0.2

[trial]
max_examples = "30 epochs"
first_evaluation = "0.5 epochs"
evaluation_ratio = 1.1

[budget]
examples = 5e6
epochs = 400
device_time = "2h"
wall_clock = "75s"
trials = 40

[run]
replicas = "all"
accumulation = 1
seed = 3
no_progress_limit = "5m"
"""

Edit = Callable[..., str]


@pytest.fixture
def edit() -> Edit:
    """(old, new, ...) -> the definition's text with each old part replaced, which must be in it once."""

    def replaced(*parts: str) -> str:
        text = TOML
        for old, new in zip(parts[::2], parts[1::2], strict=True):
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        return text

    return replaced


@pytest.fixture
def define(edit: Edit) -> Callable[..., StudyDefinition]:
    """(old, new, ...) -> the definition with each old part of its text replaced."""
    return lambda *parts: parse_definition(edit(*parts), source="study.toml", default_name="study")
