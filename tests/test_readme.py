"""What the README shows works, and shows everything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from scalesearch.definition import StudyDefinition, load_definition, parse_definition
from scalesearch.definition.parse import _models_in
from scalesearch.workloads import BUILT_IN, load_workload

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def _keys(model: type[BaseModel]) -> set[str]:
    keys = set()
    for name, field in model.model_fields.items():
        keys |= {name}
        for inner in _models_in(field.annotation):
            keys |= _keys(inner)
    return keys


def test_the_study_definition_in_the_readme_is_valid() -> None:
    (text,) = _blocks("toml")
    definition = parse_definition(text, source="README.md", default_name="readme")
    assert definition.name == "my_study"


def test_the_readme_shows_every_key() -> None:
    (text,) = _blocks("toml")
    # `scale` only documents itself: each quantity has one scale.
    missing = {key for key in _keys(StudyDefinition) - {"scale"} if not re.search(rf"\b{key}\b", text)}
    assert not missing


def test_the_workload_in_the_readme_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = _blocks("python")
    (tmp_path / "my_readme_workload.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    workload = load_workload("my_readme_workload:mlp")
    data = workload.load_data()
    assert len(data.train) == 1500
    assert workload.build_model().count_params() == 20 * 32 + 32 + 32 * 2 + 2


@pytest.mark.parametrize("path", sorted((ROOT / "studies").glob("*.toml")), ids=lambda p: p.stem)
def test_study_definitions_are_valid(path: Path) -> None:
    assert load_definition(path).workload.name in BUILT_IN


def test_every_data_set_has_a_study_definition() -> None:
    defined = {load_definition(path).workload.name.split("/")[0] for path in (ROOT / "studies").glob("*.toml")}
    assert {name.split("/")[0] for name in BUILT_IN} <= defined
