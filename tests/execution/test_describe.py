from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from scalesearch.errors import WorkloadError
from scalesearch.execution.describe import LONGEST_MESSAGE, describe, place

HERE = Path(__file__).name


def caught(function: Callable[[], object]) -> Exception:
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def fail() -> None:
    raise ValueError("no\n  such   thing")


def fail_in_a_library() -> None:
    json.loads("{")


def fail_with_a_cause() -> None:
    try:
        fail()
    except ValueError as error:
        raise WorkloadError("build_model raised it") from error


def line_of(function: Callable[[], object], offset: int) -> int:
    return function.__code__.co_firstlineno + offset


def test_an_error_is_one_line_with_its_type_and_place() -> None:
    assert describe(caught(fail)) == f"ValueError: no such thing ({HERE}, line {line_of(fail, 1)})"


def test_the_place_is_the_last_one_in_the_users_own_code() -> None:
    expected = f" ({HERE}, line {line_of(fail_in_a_library, 1)})"
    assert place(caught(fail_in_a_library)) == expected


def test_the_place_is_that_of_the_cause() -> None:
    assert describe(caught(fail_with_a_cause)) == (
        f"WorkloadError: build_model raised it ({HERE}, line {line_of(fail, 1)})"
    )


def test_an_error_that_was_never_raised_has_no_place() -> None:
    assert describe(KeyError("x")) == "KeyError: 'x'"


def test_a_checkout_called_scalesearch_is_not_our_package(tmp_path: Path) -> None:
    source = tmp_path / "scalesearch" / "my_workload.py"
    error = caught(lambda: exec(compile("1 / 0", str(source), "exec")))
    assert place(error) == " (my_workload.py, line 1)"


def test_a_long_message_is_cut() -> None:
    described = describe(ValueError("x" * 10_000))
    assert described == "ValueError: " + "x" * (LONGEST_MESSAGE - 1) + "…"


COMPILING = """in user code:

    File "/venv/lib/python3.11/site-packages/keras/layer.py", line 92, in call  *
        return self.body(x)
    File "/home/me/my_workload.py", line 12, in loss  *
        return labels - outputs
    File "/venv/lib/python3.11/site-packages/keras/ops.py", line 3, in sub  **
        raise e

    ValueError: Exception encountered when calling Sequential.call().

    Dimensions must be equal, but are 3 and 4.
"""
RUNNING = """Graph execution error:

Detected at node while/Sub defined at (most recent call last):
  File "/home/me/my_workload.py", line 12, in loss

  File "/tmp/__autograph_generated_filexy.py", line 7, in loss

Incompatible shapes: [3] vs. [4]
\t [[{{node while/Sub}}]]
Traceback (most recent call last):
  File "/home/me/other.py", line 1, in f
"""


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            COMPILING,
            "ValueError: Exception encountered when calling Sequential.call(). Dimensions must be equal, but are 3 "
            "and 4. (my_workload.py, line 12)",
        ),
        (
            RUNNING,
            "RuntimeError: Incompatible shapes: [3] vs. [4] [[{{node while/Sub}}]] (my_workload.py, line 12)",
        ),
        ("Graph execution error:\n\nno frames at all", "RuntimeError: Graph execution error: no frames at all"),
    ],
)
def test_what_tensorflow_buries_under_the_way_to_it_is_dug_out(message: str, expected: str) -> None:
    assert describe(RuntimeError(message)) == expected
