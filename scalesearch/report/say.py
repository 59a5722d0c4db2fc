"""A line on a console, as it is: no markup is read from it, nothing in it is coloured, and it is not broken."""

from __future__ import annotations

from rich.console import Console


def say(console: Console, line: str, *, style: str | None = None) -> None:
    """Print a line that may hold a user's own words, such as names, paths and messages of errors."""
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)
