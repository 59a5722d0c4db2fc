from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalesearch.core.parameters import Parameters
from scalesearch.core.schedule import Constant, Linear, Piecewise, Schedule
from scalesearch.report import words

from .trials import OBJECTIVE


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 s"), (1e-10, "0 s"), (3.21e-6, "3.2 µs"), (9.96e-5, "100 µs"), (5e-4, "500 µs"),
        (0.0123, "12 ms"), (0.25, "0.25 s"), (0.999, "1.0 s"), (8.3, "8.3 s"), (9.96, "10 s"),
        (45.2, "45 s"), (59.7, "1m 00s"), (125, "2m 05s"), (3599.6, "1h 00m"), (4380, "1h 13m"), (90_000, "25h 00m"),
    ],
)  # fmt: skip
def test_duration(seconds: float, expected: str) -> None:
    assert words.duration(seconds) == expected


@given(st.floats(1e-3, 1e7))
def test_a_duration_is_within_six_percent_and_has_no_exponent(seconds: float) -> None:
    text = words.duration(seconds)
    units = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
    parts = re.findall(r"([0-9.]+) ?(ms|s|m|h)\b", text)
    assert "".join(f"{n}{u}" for n, u in parts) == text.replace(" ", "")
    assert sum(float(n) * units[u] for n, u in parts) == pytest.approx(seconds, rel=0.06)


def test_signed_durations_and_sizes() -> None:
    assert [words.signed_duration(s) for s in (0.0, 2e-3, -2e-3)] == ["+ 0 s", "+ 2 ms", "− 2 ms"]
    assert [words.size(s) for s in (2**20, 820 * 2**20, 1.25 * 2**30)] == ["1 MiB", "820 MiB", "1.2 GiB"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"), (942, "942"), (9_999, "9,999"), (10_000, "10k"), (131_920, "132k"), (999_499, "999k"),
        (999_600, "1M"), (5_123_456, "5.12M"), (999_600_000, "1G"), (2.345e12, "2,340G"),
    ],
)  # fmt: skip
def test_count(value: float, expected: str) -> None:
    assert words.count(value) == expected


@given(st.floats(1, 1e14))
def test_a_count_has_three_digits_at_least_and_no_exponent(value: float) -> None:
    match = re.fullmatch(r"([0-9,]+(?:\.[0-9]+)?)([kMG]?)", words.count(value))
    assert match is not None
    shown = float(match[1].replace(",", "")) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[match[2]]
    assert shown == pytest.approx(value, rel=0.005, abs=0.5)


def test_costs_have_their_unit() -> None:
    assert words.cost(61.2, "seconds") == "1m 01s"
    assert words.cost(307.4, "steps") == "307 steps"
    assert words.cost(157_000, "examples") == "157k examples"
    assert words.cost(0.1034567, "metric") == "0.103457"


def test_ratios() -> None:
    assert words.ratio(3.31) == "3.3 ×"
    assert words.ratio(1.04) == "1.04 ×"


def test_goal_has_its_direction() -> None:
    assert words.goal(OBJECTIVE) == "val/classification_error < 0.1"
    assert words.goal(replace(OBJECTIVE, direction="maximize", target=0.9)) == "val/classification_error > 0.9"


def settings(schedule: Schedule, *, momentum: float | None = 0.9, replicas: int = 4, accumulation: int = 1) -> str:
    parameters = Parameters(
        global_batch_size=2048, schedule=schedule, momentum=momentum, accumulation=accumulation
    )  # fmt: skip
    return words.settings(parameters, replicas=replicas, train_examples=55_000)


def test_settings_of_a_piecewise_schedule_name_boundaries_in_all_units() -> None:
    assert settings(Piecewise(learning_rate=0.21, decay_factor=0.1, boundaries=(132_000, 275_000))) == (
        "global batch 2,048 (512 per replica), learning rate 0.21, momentum 0.9, "
        "× 0.1 after 2.4 epochs (132,000 examples, step 65) and after 5 epochs (275,000 examples, step 135)"
    )


def test_settings_of_a_linear_schedule() -> None:
    text = settings(Linear(learning_rate=0.21, decay_examples=110_000, end_factor=0.01))
    assert text.endswith("falling linearly to × 0.01 until 2 epochs (110,000 examples, step 54)")


@pytest.mark.parametrize(
    "schedule", [Constant(learning_rate=1e-4), Piecewise(learning_rate=1e-4, decay_factor=0.1, boundaries=())]
)
def test_settings_without_decay(schedule: Schedule) -> None:
    assert settings(schedule, momentum=None, replicas=1) == "global batch 2,048, learning rate 0.0001, no decay"


@pytest.mark.parametrize(("replicas", "share"), [(1, ""), (2, " (1,024 per replica)")])
def test_settings_name_the_share_of_a_replica_where_there_are_several(replicas: int, share: str) -> None:
    assert settings(Constant(learning_rate=0.1), replicas=replicas).startswith(f"global batch 2,048{share}, ")


def test_settings_name_micro_batches() -> None:
    text = settings(Constant(learning_rate=0.1), replicas=1, accumulation=4)
    assert text.startswith("global batch 2,048 (512 per replica × 4 micro-batches), ")
