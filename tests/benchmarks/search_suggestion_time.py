"""How long a method takes to suggest a trial after many finished ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

from search_environment import Environment, problem
from search_methods import METHODS
from search_rows import Score, Study
from search_truth import FULL_LENGTH, Truth
from search_workloads import Case

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import TrialResult

TRIALS = (100.0, 1000.0)
SUGGESTIONS = 5
HISTORY = "tpe+cap+stop"


class StoppedWatch(Environment):
    """Without a bound on what is spent; notes how long the method took before each trial, since the one before it ended."""

    def __init__(self, case: Case, known: Truth, *, trials: int, history: Sequence[TrialResult] = ()) -> None:
        posed = problem(case, known, seed=0, guess_factor=2.5)
        super().__init__(case, posed, unit=known.unit, full_cost=FULL_LENGTH * known.unit, budgets=(math.inf,))
        self.results = list(history)
        self.waits: dict[int, float] = {}
        self._most = trials
        self._since = perf_counter()

    @property
    def has_budget(self) -> bool:
        return len(self.results) < self._most

    def run(self, parameters: Parameters, **named: Any) -> TrialResult:
        self.waits[len(self.results)] = perf_counter() - self._since
        result = super().run(parameters, **named)
        self._since = perf_counter()
        return result


def suggestion_times(case: Case, known: Truth, names: Sequence[str], trials: Sequence[float]) -> Iterator[Study]:
    """For each method and each of SUGGESTIONS suggestions, the wall time after so many trials.

    The methods make their trials themselves, but for ours, which is given those of HISTORY.
    """
    counts = [int(n) for n in trials]
    history = _studied(HISTORY, case, known, trials=max(counts)).results if "scaling" in names else []
    for name in names:
        if name == "scaling":
            waits: dict[int, float] = {}
            for count in counts:
                waits |= _studied(name, case, known, trials=count + SUGGESTIONS, history=history[:count]).waits
        else:
            waits = _studied(name, case, known, trials=max(counts) + SUGGESTIONS).waits
        for i in range(SUGGESTIONS):
            seconds = [waits[count + i] for count in counts]
            yield Study(
                workload=case.name,
                method=name,
                seed=i,
                scores=tuple(Score(value=s) for s in seconds),
                trials=max(counts),
                seconds_per_suggestion=seconds[-1],
            )


def _studied(name: str, case: Case, known: Truth, *, trials: int, history: Sequence[TrialResult] = ()) -> StoppedWatch:
    environment = StoppedWatch(case, known, trials=trials, history=history)
    METHODS[name].run(environment)
    return environment
