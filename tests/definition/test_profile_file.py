from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scalesearch.definition.profile_file import check_workload, profile_to_json, read_profile, write_profile
from scalesearch.errors import ProfileError
from tests.core.profiles import AFFINE, MACHINE, points, profile

PROFILE = profile(points(AFFINE, shares=(8, 64), replicas=(1, 2)))


def broken(folder: Path, change: Callable[[Any], object]) -> Path:
    content = json.loads(json.dumps(profile_to_json(PROFILE)))
    change(content)
    path = folder / "profile.json"
    path.write_text(json.dumps(content))
    return path


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    write_profile(PROFILE, path)
    assert read_profile(path) == PROFILE


def first_point(content: Any) -> Any:
    return content["profile"]["by_replicas"][0]["points"][0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(version=2), "`version = 2`: this scalesearch reads version 1"),
        (lambda c: c.update(format="x"), "not a profile"),
        (lambda c: c.pop("profile"), "profile"),
        (lambda c: first_point(c).update(step_seconds="fast"), "step_seconds"),
        (lambda c: first_point(c).pop("replicas"), "replicas"),
        (lambda c: first_point(c).update(step_seconds=-1.0), "`step_seconds` must be positive, but is -1"),
        (lambda c: first_point(c).update(interval=[2.0, 3.0]), "`interval` must hold"),
        (lambda c: c["profile"]["by_replicas"].reverse(), "ascending order"),
        (lambda c: c["profile"].update(by_replicas=[]), "no measured step time"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: Callable[[Any], object], said: str) -> None:
    path = broken(tmp_path, change)
    with pytest.raises(ProfileError) as caught:
        read_profile(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot be read: No such file"):
        read_profile(tmp_path / "missing.json")
    (tmp_path / "text").write_text("seconds")
    with pytest.raises(ProfileError, match="not JSON"):
        read_profile(tmp_path / "text")
    with pytest.raises(ProfileError, match="cannot be written"):
        write_profile(PROFILE, tmp_path / "no" / "folder.json")


def test_another_workload_is_refused_and_other_hardware_is_not() -> None:
    check_workload(PROFILE, replace(MACHINE, hardware={"kind": "CPU"}, software={}), source="a.json")
    with pytest.raises(
        ProfileError, match=r"a\.json is a profile of another workload:\n  workload\.name: made/up there"
    ):
        check_workload(PROFILE, replace(MACHINE, workload={"name": "other"}), source="a.json")
