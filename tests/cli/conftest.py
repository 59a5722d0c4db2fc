from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

DIGITS = """
[workload]
name = "digits/mlp"
options = { hidden_units = 32 }

[objective]
metric = "val/classification_error"
target = 0.15
minimize = "steps"

[search]
sampler = "random"
global_batch_size = { low = 16, high = 64 }
learning_rate = { low = 0.05, high = 0.5 }

[baseline]
global_batch_size = 32
learning_rate = 0.02

[trial]
max_examples = "8 epochs"

[budget]
trials = 8
"""
WriteDefinition = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def define(folder: Path) -> WriteDefinition:
    """(old, new, …) -> the path of the definition `digits.toml`, a study of digits with each `old` replaced."""

    def write(*replacements: str) -> Path:
        text = DIGITS
        for old, new in zip(replacements[::2], replacements[1::2], strict=True):
            assert old in text
            text = text.replace(old, new)
        path = folder / "digits.toml"
        path.write_text(text)
        return path

    return write
