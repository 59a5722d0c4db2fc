"""A study definition from what a study keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalesearch.definition.schema import KEYS_OF_SCHEDULES, StudyDefinition


def definition_from_fingerprint(fingerprint: Mapping[str, Any]) -> StudyDefinition:
    """The inverse of `StudyDefinition.fingerprint`, but for what that leaves out, which is as by default."""
    tables = _nested(fingerprint)
    schedule = tables.get("search", {}).get("schedule", {})
    for kind, keys in KEYS_OF_SCHEDULES.items():
        if kind != schedule.get("kind"):
            for key in keys:  # defaults, which may not be given for another kind
                schedule.pop(key, None)
    return StudyDefinition.model_validate(tables)


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """`{"a.b": 1}` as `{"a": {"b": 1}}`, without what is None or belongs to no section."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        section, _, rest = key.partition(".")
        if value is None or not rest or section not in StudyDefinition.model_fields:
            continue
        table = nested.setdefault(section, {})
        *path, last = rest.split(".")
        for part in path:
            table = table.setdefault(part, {})
        table[last] = value
    return nested
