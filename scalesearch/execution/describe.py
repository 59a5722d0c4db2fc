"""An error of a user's code in one line: type, message, and the place in that code."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

import scalesearch

LONGEST_MESSAGE = 500
_FRAME = re.compile(r'( *)File "(.+)", line (\d+)')
_COMPILING, _RUNNING = "in user code:", "Graph execution error:"  # how TensorFlow begins an error of a compiled step


def describe(error: BaseException) -> str:
    """Type, message and place of an error, in one line."""
    text, kind = str(error), f"{type(error).__name__}: "
    if not text.startswith((_COMPILING, _RUNNING)):
        return f"{kind}{_one_line(text)}{place(error)}"
    frames, message = _tensorflow_message(text)
    if text.startswith(_COMPILING):
        kind = ""  # the message itself names it
    return f"{kind}{_one_line(message)}{_innermost(frames)}"


def place(error: BaseException) -> str:
    """` (file, line n)` of the user's code where an error, or what caused it, came about; empty if nowhere there."""
    return _innermost((f.filename, f.lineno) for cause in _causes(error) for f in traceback.extract_tb(cause))


def _causes(error: BaseException) -> Iterator[TracebackType | None]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause.__traceback__
        cause = cause.__cause__


def _tensorflow_message(text: str) -> tuple[list[tuple[str, str]], str]:
    """The frames (file, line) on the way to an error of a compiled step, and what it says after them."""
    frames: list[tuple[str, str]] = []
    lines, indent = text.splitlines(), 0
    for i, line in enumerate(lines):
        if frame := _FRAME.match(line):
            indent = len(frame[1])
            frames.append((frame[2], frame[3]))
        elif frames and line.strip() and len(line) - len(line.lstrip()) <= indent:  # else: a frame's source
            return frames, "\n".join(lines[i:]).partition("Traceback (most recent call last)")[0]
    return frames, text


def _innermost(frames: Iterable[tuple[str, object]]) -> str:
    own = [f" ({Path(file).name}, line {line})" for file, line in frames if not _is_library(file)]
    return own[-1] if own else ""


def _is_library(file: str) -> bool:
    path = Path(file)
    if file.startswith("<") or "__autograph_generated_file" in file:
        return True
    if {"site-packages", "dist-packages"} & set(path.parts):
        return True
    return path.is_relative_to(Path(scalesearch.__file__).parent) or path.is_relative_to(sysconfig.get_path("stdlib"))


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_MESSAGE else line[: LONGEST_MESSAGE - 1] + "…"
