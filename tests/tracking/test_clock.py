from __future__ import annotations

import time

from scalesearch.tracking.clock import now_ms


def test_it_is_the_time_of_day() -> None:
    assert abs(now_ms() / 1000 - time.time()) < 5.0
