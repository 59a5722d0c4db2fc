"""Definitions read back from what studies keep of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scalesearch.definition import load_definition
from scalesearch.definition.stored import definition_from_fingerprint

STUDIES = sorted((Path(__file__).parents[2] / "studies").glob("*.toml"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_definition_comes_back_as_it_was(path: Path) -> None:
    definition = load_definition(path)
    kept = json.loads(json.dumps({**definition.fingerprint(), "replicas": 2}))
    back = definition_from_fingerprint(kept)
    assert back.fingerprint() == definition.fingerprint()
    assert back.search == definition.search
    assert back.baseline == definition.baseline
