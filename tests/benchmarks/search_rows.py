"""What studies came to, as rows and as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

ALL = "all"
RESAMPLES = 1000

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Score:
    """How a study did within a budget: `value` (less is better), the share `missed`, and figures that go beside them."""

    value: float
    missed: float = 0.0
    more: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Study:
    """What one study of a workload by a method came to at each budget."""

    workload: str
    method: str
    seed: int
    scores: tuple[Score, ...]
    trials: int
    seconds_per_suggestion: float


def rows(
    name: str, studies: Sequence[Study], workloads: Sequence[str], methods: Sequence[str], budgets: Sequence[float]
) -> Iterator[Row]:
    """A row for each method, workload and budget, and for all workloads together if there are several."""
    for method in methods:
        for workload in (*([ALL] if len(workloads) > 1 else []), *workloads):
            chosen = [s for s in studies if s.method == method and workload in (ALL, s.workload)]
            for i, budget in enumerate(budgets):
                scores = [s.scores[i] for s in chosen]
                values = np.array([s.value for s in scores])
                yield {
                    "set": name,
                    "workload": workload,
                    "method": method,
                    "budget": budget,
                    "median": round(float(np.median(values)), 4),
                    "median_interval": _interval(values, chosen),
                    "p90": round(float(np.quantile(values, 0.9)), 4),
                    "missed": round(float(np.mean([s.missed for s in scores])), 4),
                    "seeds": len({s.seed for s in chosen}),
                    **{k: round(float(np.median([s.more[k] for s in scores])), 4) for k in scores[0].more},
                }


def _interval(values: np.ndarray, studies: Sequence[Study]) -> list[float]:
    """90 % bootstrap interval of the median over seeds, for these workloads: each keeps its number of studies."""
    random = np.random.default_rng(0)
    groups = [np.flatnonzero([s.workload == w for s in studies]) for w in sorted({s.workload for s in studies})]
    medians = [np.median(values[np.concatenate([random.choice(g, len(g)) for g in groups])]) for _ in range(RESAMPLES)]
    return [round(float(q), 4) for q in np.quantile(medians, [0.05, 0.95])]


def print_rows(console: Console, found: Sequence[Row], *, what: str, digits: int = 2) -> None:
    """A table for each workload: methods by budgets. `what` explains a cell."""
    methods, budgets = dict.fromkeys(r["method"] for r in found), dict.fromkeys(r["budget"] for r in found)
    for workload in dict.fromkeys(r["workload"] for r in found):
        table = Table("method", *(f"{b:g}" for b in budgets), title=f"{workload}: {what}", box=SIMPLE_HEAD)
        for method in methods:
            table.add_row(
                method, *(_cell(r, digits) for r in found if (r["workload"], r["method"]) == (workload, method))
            )
        console.print(table)


def print_effort(console: Console, studies: Sequence[Study]) -> None:
    """How long the methods took, and for how many trials."""
    columns = [Column(name, justify="right") for name in ("seconds per suggestion", "trials per study")]
    table = Table("method", *columns, title="Medians over studies", box=SIMPLE_HEAD)
    for method in dict.fromkeys(s.method for s in studies):
        chosen = [s for s in studies if s.method == method]
        seconds, trials = np.median([(s.seconds_per_suggestion, s.trials) for s in chosen], axis=0)
        table.add_row(method, f"{seconds:.3f}", f"{trials:.0f}")
    console.print(table)


def _cell(row: Row, digits: int) -> str:
    """The median and its interval, and below them the 90th percentile, further figures, and the share missed."""
    median, low, high, p90 = (f"{v:.{digits}f}" for v in (row["median"], *row["median_interval"], row["p90"]))
    more = [f"{row[k]:.{digits}f}" for k in list(row)[list(row).index("seeds") + 1 :]]
    return f"{median} \\[{low} {high}]\n" + ", ".join([p90, *more, f"{row['missed']:.0%}"])
