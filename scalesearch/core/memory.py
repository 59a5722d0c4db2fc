"""What was last worked out, kept: what is asked several times between two trials is fitted once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from scalesearch.core.results import TrialResult

T = TypeVar("T")


@dataclass
class Memory(Generic[T]):
    """Remembers what follows from one list of results. Fits are pure functions, so that nobody can tell the difference."""

    _results: tuple[TrialResult, ...] = ()
    _settings: Hashable = None
    _remembered: T | None = None

    def of(self, results: Sequence[TrialResult], settings: Hashable, fit: Callable[[], T]) -> T:
        """What follows from `results` under `settings`: as remembered, if they are the same, else anew from `fit`."""
        if self._remembered is None or settings != self._settings or tuple(results) != self._results:
            self._remembered = fit()
            self._results, self._settings = tuple(results), settings
        return self._remembered
