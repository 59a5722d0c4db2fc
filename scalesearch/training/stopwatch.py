"""Time spent in parts of a run."""

from __future__ import annotations

from time import perf_counter
from types import TracebackType


class Stopwatch:
    """Sums the seconds spent inside its `with` blocks, from `seconds` on."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._total = seconds
        self._entered: float | None = None

    def __enter__(self) -> Stopwatch:
        self._entered = perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._total = self.seconds
        self._entered = None

    @property
    def seconds(self) -> float:
        """Seconds so far, the block that is open included."""
        running = 0.0 if self._entered is None else perf_counter() - self._entered
        return self._total + running
