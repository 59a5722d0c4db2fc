"""From a workload's name and options to a `Workload`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType
from typing import get_type_hints

from scalesearch.errors import ScalesearchError, WorkloadError
from scalesearch.workloads.catalog import BUILT_IN
from scalesearch.workloads.workload import Workload

NO_OPTIONS: Mapping[str, object] = MappingProxyType({})


def load_workload(name: str, options: Mapping[str, object] = NO_OPTIONS) -> Workload:
    """The workload called `name`, made with `options`.

    Args:
        name: a key of `BUILT_IN`, or `package.module:name` of your own `Workload` or of a callable that
            returns one.
        options: keyword arguments of the workload's factory.

    Raises:
        WorkloadError: the workload cannot be found, does not know an option, or is not a `Workload`.
    """
    if name in BUILT_IN:
        return _make(name, BUILT_IN[name].load_factory(), options)
    if ":" not in name:
        raise WorkloadError(
            f"There is no built-in workload {name!r}{_nearest(name, BUILT_IN)}. "
            f"Built in are {', '.join(BUILT_IN)}. A workload of your own is named `package.module:name`."
        )
    target = _import(name)
    if isinstance(target, Workload):
        if options:
            raise WorkloadError(
                f"{name!r} is a finished Workload and takes no options, but got {', '.join(options)}. "
                "Name a function that returns a Workload instead."
            )
        return target
    if not callable(target):
        raise WorkloadError(f"{name!r} must be a Workload or a callable that returns one, but is {_kind(target)}.")
    return _make(name, target, options)


def _import(name: str) -> object:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute.isidentifier() or module_name.startswith("."):
        raise WorkloadError(f"A workload of your own is named `package.module:name`, but got {name!r}.")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise WorkloadError(
                f"Workload {name!r}: {module_name!r} imports {error.name!r}, which is not installed."
            ) from error
        raise WorkloadError(
            f"Workload {name!r}: there is no module {error.name!r} on the Python path. The current folder "
            "is on the path when run as `python -m scalesearch`."
        ) from error
    except Exception as error:
        raise WorkloadError(f"Workload {name!r}: importing {module_name!r} failed with {_named(error)}") from error
    if not hasattr(module, attribute):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise WorkloadError(
            f"Workload {name!r}: the module {module_name!r} has no {attribute!r}"
            f"{_nearest(attribute, public)}. It has {', '.join(public) or 'no public names'}."
        )
    found: object = getattr(module, attribute)
    return found


def _make(name: str, factory: Callable[..., object], options: Mapping[str, object]) -> Workload:
    try:
        _check_options(name, factory, options)
        made = factory(**options)
    except ScalesearchError:
        raise
    except Exception as error:
        raise WorkloadError(f"Workload {name!r}: making it failed with {_named(error)}") from error
    if not isinstance(made, Workload):
        raise WorkloadError(f"{name!r} must return a Workload, but returned {_kind(made)}.")
    return made


def _check_options(name: str, factory: Callable[..., object], options: Mapping[str, object]) -> None:
    parameters = inspect.signature(factory).parameters.values()
    by_name = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for option in options:
        if option not in by_name and not takes_any:
            known = f"It knows {', '.join(by_name)}." if by_name else "It has no options."
            raise WorkloadError(f"Workload {name!r} has no option {option!r}{_nearest(option, by_name)}. {known}")
    missing = [p.name for p in by_name.values() if p.default is p.empty and p.name not in options]
    if missing:
        raise WorkloadError(f"Workload {name!r} needs a value for the option {', '.join(missing)}.")
    if name in BUILT_IN:
        _check_types(name, get_type_hints(factory), options)


def _check_types(name: str, types: Mapping[str, type], options: Mapping[str, object]) -> None:
    for option, value in options.items():
        wanted = types[option]
        number_for_float = wanted is float and type(value) is int
        if type(value) is not wanted and not number_for_float:
            raise WorkloadError(
                f"Workload {name!r}: the option `{option}` must be of type {wanted.__name__}, but got {value!r}."
            )


def _nearest(name: str, known: Iterable[str]) -> str:
    matches = get_close_matches(name, list(known), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def _kind(value: object) -> str:
    return f"an object of type {type(value).__name__}"


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
