"""Ctrl-C and SIGTERM."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from rich.console import Console

STOP_SECONDS = 8.0  # from the user's request to the end of the copy in MLflow; the rest is for the process to end


@dataclass
class Stop:
    """The user's wish to stop, and by when everything has to be over."""

    requested: threading.Event = field(default_factory=threading.Event)
    deadline: float = math.inf

    def is_urgent(self) -> bool:
        """Whether there is no time left to wait for anything."""
        return time.monotonic() > self.deadline - STOP_SECONDS / 2


@contextmanager
def stop_on_signal(stop: Stop, console: Console) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM requests a stop; a second Ctrl-C interrupts at once."""

    def request_stop(number: int, frame: FrameType | None) -> None:
        if not stop.requested.is_set():
            stop.deadline = time.monotonic() + STOP_SECONDS
            stop.requested.set()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            console.print("stopping: everything is kept (Ctrl-C again to stop at once)")

    before = {s: signal.signal(s, request_stop) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM is as Ctrl-C: before a study runs, and after it."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
