"""The time that is written down."""

from __future__ import annotations

import time

_OFFSET = time.time() - time.monotonic()


def now_ms() -> int:
    """Milliseconds since 1970. A clock that is set while a study runs does not end trials before they began."""
    return round(1000 * (_OFFSET + time.monotonic()))
