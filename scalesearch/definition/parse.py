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
    return parse_definition(read_definition(path), source=str(path), default_name=path.stem)


def read_definition(path: Path) -> str:
    """The text of a definition. Raises DefinitionError if the file cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DefinitionError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DefinitionError(f"{path}: not UTF-8, as TOML must be: {error.reason} at byte {error.start}") from error


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
    by_key: dict[tuple[str, ...], list[Any]] = {}
    for e in error.errors():
        by_key.setdefault(_path(e, table), []).append(e)
    # `momentum = { hihg = 1 }` fails both as a number and as an interval: the deeper error is the one that helps.
    deepest = [p for p in by_key if not any(q[: len(p)] == p and len(q) > len(p) for q in by_key)]
    return [_sentence(by_key[path], path) for path in deepest]


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


def _sentence(errors: list[Any], path: tuple[str, ...]) -> str:
    """What is wrong with one key, by all the kinds of value that it may hold."""
    key, first = ".".join(path), errors[0]
    if first["type"] == "extra_forbidden":
        known = _known_keys(path[:-1])
        near = difflib.get_close_matches(path[-1], known, n=1)
        hint = f"did you mean `{near[0]}`?" if near else "known here: " + ", ".join(f"`{k}`" for k in known)
        return f"unknown key `{key}`: {hint}"
    if first["type"] == "missing":
        return f"`{key}` is missing"
    # That 1.5 is not below 1 says more than that it is not a table either.
    broken = [e for e in errors if not e["type"].endswith(("_type", "literal_error", "int_from_float"))] or errors
    rule = " or ".join(dict.fromkeys(_rule(e, path) for e in broken)).replace(" or must be ", " or ")
    if isinstance(first["input"], dict):
        return f"`{key}`: {rule}" if key else rule
    return f"`{key} = {_toml(first['input'])}`: {rule}"


def _rule(error: Any, path: tuple[str, ...]) -> str:
    match error["type"]:
        case "model_type":
            return "must be a table with the keys " + ", ".join(f"`{k}`" for k in _known_keys(path))
        case "dict_type":
            return "must be a table"
        case "tuple_type":
            return "must be a list"
        case "float_type":
            return "must be a number"
        case "int_type" | "int_from_float":
            return "must be a whole number"
        case "string_type":
            return "must be a string"
        case "literal_error":
            # Pydantic quotes as Python does.
            return "must be " + str(error["ctx"]["expected"]).replace("'", '"')
        case _:
            return str(error["msg"]).removeprefix("Value error, ").replace("Input should", "must")


def _toml(value: Any) -> str:
    """A value about as it is written in TOML."""
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else str(value)


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
