"""Profiles as JSON files: measured on one machine with `profile --export FILE`, read on another with `--profile FILE`.

    {"format": "scalesearch profile", "version": 1, "profile": {"fingerprint": {…}, "by_replicas": [{…}, …]}}

`profile` has the fields of `core.profile.Profile`; sizes are examples, times seconds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from scalesearch.core.profile import Profile, ProfileFingerprint
from scalesearch.errors import ProfileError

FORMAT = "scalesearch profile"
VERSION = 1

_PROFILE = TypeAdapter(Profile)


def profile_to_json(profile: Profile) -> dict[str, Any]:
    """The content of a profile file."""
    return {"format": FORMAT, "version": VERSION, "profile": _PROFILE.dump_python(profile, mode="json")}


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile file. Raises ProfileError."""
    try:
        path.write_text(json.dumps(profile_to_json(profile), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ProfileError(f"{path}: cannot be written: {error.strerror or error}") from error


def read_profile(path: Path) -> Profile:
    """Read a profile file. Raises ProfileError: what is wrong with which key."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ProfileError(f"{path}: not JSON, as `profile --export` writes it: {error}") from error
    return profile_from_json(content, source=str(path))


def profile_from_json(content: Any, *, source: str) -> Profile:
    """The inverse of `profile_to_json`. Raises ProfileError: what is wrong with which key of `source`."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ProfileError(
            f'{source}: not a profile: `"format": "{FORMAT}"` is missing; make one with profile --export'
        )
    if content.get("version") != VERSION:
        raise ProfileError(
            f"{source}: `version = {content.get('version')!r}`: this scalesearch reads version {VERSION}; "
            "export it again with the scalesearch that is to read it"
        )
    try:
        profile = _PROFILE.validate_json(json.dumps(content.get("profile")), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "profile"
        raise ProfileError(f"{source}: `profile.{key}`: {first['msg'].lower()}") from error
    if problem := _nonsense(profile):
        raise ProfileError(f"{source}: {problem}")
    return profile


def check_workload(profile: Profile, wanted: ProfileFingerprint, *, source: str) -> None:
    """Raise ProfileError if a profile is of another workload: its times say nothing about the wanted one."""
    only = ProfileFingerprint(hardware={}, software={}, workload=wanted.workload)
    theirs = ProfileFingerprint(hardware={}, software={}, workload=profile.fingerprint.workload)
    if differences := only.differences(theirs):
        lines = "\n".join(f"  {line}" for line in differences)
        raise ProfileError(f"{source} is a profile of another workload:\n{lines}\nProfile this one there")


def _nonsense(profile: Profile) -> str | None:
    if not profile.points:
        return "it holds no measured step time"
    for p in profile.points:
        for name in (
            "replicas",
            "per_replica_batch_size",
            "accumulation",
            "step_seconds",
            "undisturbed_seconds",
            "steps",
        ):
            if not getattr(p, name) > 0:
                return f"`{name}` must be positive, but is {getattr(p, name)}"
        if not 0 <= p.interval[0] <= p.step_seconds <= p.interval[1] < float("inf"):
            return f"`interval` must hold step_seconds = {p.step_seconds:g}, but is {list(p.interval)}"
    replicas = [part.replicas for part in profile.by_replicas]
    if replicas != sorted(set(replicas)):
        return f"`by_replicas` must be in ascending order of its replicas, each once, but has {replicas}"
    return None
