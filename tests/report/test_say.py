from __future__ import annotations

import io

from rich.console import Console

from scalesearch.report.say import say


def test_a_line_is_printed_as_it_is_however_long_it_is_and_whatever_is_in_it() -> None:
    out = io.StringIO()
    line = "[bold]/data/[old]/profile.json[/] 12 of 30 " + 50 * "words "
    say(Console(file=out, width=40, force_terminal=True), line)
    assert out.getvalue() == line + "\n"
