from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalesearch.core.budget import Budget
from scalesearch.core.quantities import Amount, ExampleUnit, parse_amount, parse_budget, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20 epochs", Amount(20, "epochs")),
        ("1 epoch", Amount(1, "epochs")),
        (" 0.1EPOCHS ", Amount(0.1, "epochs")),
        ("5e6 examples", Amount(5e6, "examples")),
        ("1 example", Amount(1, "examples")),
        ("50 %", Amount(50, "%")),
        ("12.5%", Amount(12.5, "%")),
        (".5 epochs", Amount(0.5, "epochs")),
        (300, Amount(300, "examples")),
        (Amount(3, "epochs"), Amount(3, "epochs")),
    ],
)
def test_amounts(text: Any, expected: Amount) -> None:
    assert parse_amount(text) == expected


@pytest.mark.parametrize(
    "bad",
    ["", "20", "epochs", "-1 epochs", "0 epochs", "1.2.3 epochs", ". epochs", "5 parsecs", "1e400 examples",
     "5 epochs 3", 0, -3, math.inf, math.nan, True, None, [1], {"low": 1}],
)  # fmt: skip
def test_what_is_no_amount_says_what_one_looks_like(bad: Any) -> None:
    with pytest.raises(ValueError, match='expected a positive amount such as "20 epochs"'):
        parse_amount(bad)


def test_amounts_in_examples() -> None:
    assert Amount(0.5, "epochs").examples(train_examples=1437) == 718
    assert Amount(5e6, "examples").examples(train_examples=1437) == 5_000_000
    assert Amount(75, "%").examples(train_examples=1437, max_examples=10_000) == 7500
    assert Amount(1e-9, "epochs").examples(train_examples=1437) == 1
    assert Amount(1e-9, "%").examples(train_examples=1437, max_examples=10_000) == 1
    with pytest.raises(ValueError, match="percentage"):
        Amount(75, "%").examples(train_examples=1437)


@given(st.floats(1e-12, 1e15), st.sampled_from(["examples", "epochs", "%"]))
def test_an_amount_as_text_is_the_same_amount(value: float, unit: ExampleUnit) -> None:
    """Definitions are compared by it: 1,234,567 and 1,234,568 examples must differ."""
    assert parse_amount(str(Amount(value, unit))) == Amount(value, unit)


def test_an_amount_reads_well() -> None:
    assert str(Amount(20.0, "epochs")) == "20 epochs"
    assert str(Amount(1_234_567.0, "examples")) == "1234567 examples"
    assert str(Amount(12.5, "%")) == "12.5 %"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("2h", 7200), ("1h30m", 5400), ("1.5h", 5400), ("1 h 1 m 1 s", 3661),
     (45, 45), (0.5, 0.5)],
)  # fmt: skip
def test_durations(text: Any, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("bad", ["", " ", "30", "h", "ten minutes", "1.2.3h", "30m2h", "-5m", True, None, []])
def test_what_is_no_duration_says_what_one_looks_like(bad: Any) -> None:
    with pytest.raises(ValueError, match='expected a duration such as "90s"'):
        parse_seconds(bad)


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("10m", Budget(wall_clock_seconds=600)),
        ("5e6ex", Budget(examples=5e6)),
        ("40ep", Budget(epochs=40)),
        ("1trial", Budget(trials=1)),
        ("device:2h", Budget(device_seconds=7200)),
        ("Device:90s , 25trials,1h30m", Budget(device_seconds=90, trials=25, wall_clock_seconds=5400)),
    ],
)
def test_budgets(text: str, budget: Budget) -> None:
    assert parse_budget(text) == budget


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("", "'' is not a budget: expected e.g. 30m"),
        ("soon", "'soon' is not a budget"),
        ("10m,soon", "'soon' is not a budget"),
        ("10m,", "'' is not a budget"),
        ("device:soon", "'device:soon' is not a budget"),
        ("1.2.3ex", "'1.2.3ex' is not a budget"),
        ("30", "'30' is not a budget"),
        ("0m", "must be positive"),
        ("0trials", "must be positive"),
        ("1e400ex", "must be positive and finite"),
        ("2.5trials", "must be whole, but got 2.5"),
        ("10m,20m", "'20m' is a second limit of one unit"),
    ],
)
def test_what_is_no_budget_says_why(bad: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_budget(bad)


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("4 GiB", 4 * 2**30),
        ("1.5kib", 1536),
        ("500 MB", 500_000_000),
        ("2TB", 2 * 10**12),
        ("7 B", 7),
        ("0 B", 0),
        (0, 0),
        (1e6, 1_000_000),
    ],
)
def test_sizes(value: Any, size: int) -> None:
    assert parse_bytes(value) == size


@pytest.mark.parametrize("bad", ["4", "GiB", "4 Gib/s", "-1 GB", "1e400 B", math.inf, math.nan, True, None])
def test_what_is_no_size_says_what_is(bad: Any) -> None:
    with pytest.raises(ValueError, match='such as "4 GiB"'):
        parse_bytes(bad)
