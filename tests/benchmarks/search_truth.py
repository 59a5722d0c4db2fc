"""What is known about a workload: the measure that every method is held against."""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from pathlib import Path
from typing import Any

import numpy as np
from search_workloads import Case, SimulatedCase, run_trial

import scalesearch.core
from scalesearch.core.parameters import Parameters
from scalesearch.core.schedule import Constant
from scalesearch.core.simulate import Decays, Optimum, true_curve

SMALLER_OCTAVES, LARGER_OCTAVES = 7, 5  # of the batch sizes looked at, around the critical one
FULL_LENGTH = 4.0  # cost of the longest trial, in those of the optimum
MISS_REGRET = FULL_LENGTH - 1.0


@dataclass(frozen=True, kw_only=True)
class Truth:
    """The optima by batch size (without noise if simulated), and the parameters that are best on average with noise.

    `unit`, one full run, is the mean cost of `best`; `misses` is the share of its runs that miss the target, and
    `log_cost_sd` the standard deviation of the logarithm of the others' cost.
    """

    critical_batch: float
    curve: dict[int, Optimum]
    best: Parameters
    unit: float
    misses: float
    log_cost_sd: float

    @property
    def least_steps(self) -> float:
        return min(o.steps for o in self.curve.values())


@singledispatch
def truth(case: Case) -> Truth:
    """The truth about a case; search_live adds live ones."""
    raise NotImplementedError(type(case))


@truth.register
def _(case: SimulatedCase) -> Truth:
    """From the last run of the benchmark if nothing has changed since."""
    found: Truth = _kept("truth", _ALL_SOURCES, case, _truth)
    return found


@singledispatch
def regrets(case: Case, parameters: Parameters, seeds: Sequence[int], *, unit: float) -> list[float]:
    """What each run costs above one full run, in full runs; MISS_REGRET if it would cost more than FULL_LENGTH."""
    runs = (run_trial(case, parameters, number=0, seed=s, max_cost=FULL_LENGTH * unit) for s in seeds)
    return [r.reached.cost(case.minimize) / unit - 1.0 if r.reached else MISS_REGRET for r in runs]


def _digest(sources: Iterable[Path]) -> bytes:
    return hashlib.sha256(b"".join(p.read_bytes() for p in sources)).digest()


_CORE = Path(scalesearch.core.__file__).parent
_HERE = Path(__file__)
# At import, so that all of one run of the benchmark agrees even if a file is edited meanwhile.
_SIMULATION = _digest(sorted(_CORE.glob("simulate/*.py")))
_OTHERS = [_CORE / "evaluation.py", _CORE / "results.py", _CORE / "stopping.py"]
_ALL_SOURCES = _SIMULATION + _digest([*_OTHERS, _HERE, _HERE.with_name("search_workloads.py")])


def _kept(what: str, sources: bytes, case: SimulatedCase, compute: Callable[[SimulatedCase], Any]) -> Any:
    """What `compute` found about a case, kept in the temporary folder: it takes up to some minutes."""
    key = hashlib.sha256(sources + repr(case).encode()).hexdigest()[:24]
    kept = Path(tempfile.gettempdir()) / f"scalesearch-{what}-{key}.pickle"
    if not kept.exists():
        partial = kept.with_suffix(f".{os.getpid()}")
        partial.write_bytes(pickle.dumps(compute(case)))
        partial.replace(kept)
    return pickle.loads(kept.read_bytes())


def _truth(case: SimulatedCase) -> Truth:
    critical, curve = _kept("curve", _SIMULATION, case, _curve)
    cheapest = sorted(curve, key=lambda o: o.cost(case.minimize))
    unit = cheapest[0].cost(case.minimize)
    best = _best_with_noise(case, [o.parameters for o in cheapest[:2]], unit)
    regret = regrets(case, best, range(4096, 4096 + 256), unit=unit)
    return Truth(
        critical_batch=critical,
        curve={o.parameters.global_batch_size: o for o in curve},
        best=best,
        unit=unit * (1.0 + float(np.mean(regret))),
        **spread(regret),
    )


def spread(regret: Sequence[float]) -> dict[str, float]:
    """The share of misses and the standard deviation of log cost, from the regrets of runs."""
    costs = 1.0 + np.array([r for r in regret if r < MISS_REGRET])
    return {
        "misses": 1.0 - len(costs) / len(regret),
        "log_cost_sd": float(np.log(costs).std(ddof=1)) if len(costs) > 1 else math.nan,
    }


def _curve(case: SimulatedCase) -> tuple[float, tuple[Optimum, ...]]:
    """The critical batch size, and the optima at the batch sizes around it."""
    decays = Decays(number=case.decays, factor=case.decay_factor)
    small, large = true_curve(case.workload, (8, 2**20), momentum=case.momentum, decays=decays)
    critical = small.examples / large.steps  # the fewest examples, over the fewest steps
    centre = round(math.log2(critical))
    sizes = [2**k for k in range(max(0, centre - SMALLER_OCTAVES), centre + LARGER_OCTAVES + 1)]
    return critical, true_curve(case.workload, sizes, momentum=case.momentum, decays=decays)


def _best_with_noise(case: SimulatedCase, starts: Sequence[Parameters], unit: float) -> Parameters:
    """The least mean cost near the noise-free optima, by successive halving: those lie too near to their cliffs."""
    random = np.random.default_rng(0)
    candidates = [*starts, *(_changed(p, random) for p in starts for _ in range(60))]
    first = 1024
    for seeds, keep in ((8, 24), (32, 6), (128, 1)):
        mean = {p: np.mean(regrets(case, p, range(first, first + seeds), unit=unit)) for p in candidates}
        candidates = sorted(candidates, key=mean.__getitem__)[:keep]
        first += seeds
    return candidates[0]


def _changed(parameters: Parameters, random: np.random.Generator) -> Parameters:
    """A rate and boundaries nearby, more often lower and later than the opposite."""
    rate = parameters.learning_rate * math.exp(random.normal(-0.06, 0.08))
    schedule = replace(parameters.schedule, learning_rate=rate)
    if isinstance(schedule, Constant):
        return replace(parameters, schedule=schedule)
    boundaries: list[int] = []
    lengths = np.diff([0, *schedule.boundaries]) * np.exp(
        random.normal(0.03, [0.05, *[0.4] * 9][: len(schedule.boundaries)])
    )
    for length in lengths:
        boundaries.append(sum(boundaries[-1:]) + max(1, round(length)))
    return replace(parameters, schedule=replace(schedule, boundaries=tuple(boundaries)))
