"""A stopwatch counts what happens inside its blocks."""

from __future__ import annotations

from time import perf_counter, sleep

from scalesearch.training.stopwatch import Stopwatch


def test_only_time_inside_counts() -> None:
    watch = Stopwatch()
    assert watch.seconds == 0.0
    inside = 0.0
    for _ in range(3):
        begin = perf_counter()
        with watch:
            sleep(0.01)
            assert watch.seconds > 0.0
        inside += perf_counter() - begin
        sleep(0.02)
    assert 0.03 <= watch.seconds <= inside
