"""TOML text to a `StudyDefinition`, with errors that name file, key, value, rule and the nearest known key."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from scalesearch.definition.schema import StudyDefinition
from scalesearch.errors import DefinitionError


def load_definition(path: Path) -> StudyDefinition:
    """Read a study definition. Raises DefinitionError: file, key, value, rule, and the nearest known key."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DefinitionError(f"{path}: cannot be read: {error.strerror or error}") from error
    return parse_definition(text, source=str(path), default_name=path.stem)


def parse_definition(text: str, *, source: str, default_name: str) -> StudyDefinition:
    """Parse TOML text; `source` is what errors call it."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DefinitionError(f"{source}: not valid TOML: {error}") from error
    try:
        return StudyDefinition.model_validate({"name": default_name, **table})
    except ValidationError as error:
        problems = "\n".join(f"{source}: {problem}" for problem in _problems(error, table))
        raise DefinitionError(problems) from error


def _problems(error: ValidationError, table: dict[str, Any]) -> list[str]:
    """One sentence per broken key; where a key may hold several kinds of value, what each of them asks for."""
    by_key: dict[tuple[str, ...], list[str]] = {}
    for e in error.errors():
        path = _path(e, table)
        by_key.setdefault(path, []).append(_sentence(e, path))
    # `momentum = { hihg = 1 }` fails both as a number and as an interval: the deeper error is the one that helps.
    deepest = [p for p in by_key if not any(q[: len(p)] == p and len(q) > len(p) for q in by_key)]
    return [" or ".join(dict.fromkeys(by_key[path])) for path in deepest]


def _path(error: Any, table: Any) -> tuple[str, ...]:
    """The keys of an error's location; Pydantic mixes in the names of union members, which are left out."""
    path: list[str] = []
    for part in error["loc"]:
        if (isinstance(table, dict) and part in table) or (isinstance(table, list) and isinstance(part, int)):
            table = table[part]
        elif not (error["type"] == "missing" and part == error["loc"][-1]):
            continue
        path.append(str(part))
    return tuple(path)


def _sentence(error: Any, path: tuple[str, ...]) -> str:
    key = ".".join(path)
    if error["type"] == "extra_forbidden":
        known = _known_keys(path[:-1])
        near = difflib.get_close_matches(path[-1], known, n=1)
        hint = f"did you mean `{near[0]}`?" if near else "known here: " + ", ".join(f"`{k}`" for k in known)
        return f"unknown key `{key}`: {hint}"
    if error["type"] == "missing":
        return f"`{key}` is missing"
    message = error["msg"].removeprefix("Value error, ")
    if isinstance(error["input"], dict):
        return f"`{key}`: {message}" if key else message
    return f"`{key} = {error['input']!r}`: {message[0].lower()}{message[1:]}"


def _known_keys(path: tuple[str, ...]) -> list[str]:
    model: Any = StudyDefinition
    for key in path:
        candidates = _models_in(model.model_fields[key].annotation) if key in model.model_fields else []
        if not candidates:
            return []
        model = candidates[0]
    return list(model.model_fields)


def _models_in(annotation: Any) -> list[Any]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for part in getattr(annotation, "__args__", ()) for m in _models_in(part)]
