"""What takes long to find out, kept in files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def kept(path: Path, find_out: Callable[[], str]) -> str:
    """What the file holds; if there is none, what `find_out` gives, which is kept there: all of it or nothing."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(find_out(), encoding="utf-8")
        partial.replace(path)
    return path.read_text(encoding="utf-8")
