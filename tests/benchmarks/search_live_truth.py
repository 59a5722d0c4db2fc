"""Where the true optimum of a live problem is, for `search.py --make-truth NAME`.

1. Long searches in the expert's box are pooled: TPE with cap and stop, and our own unless the problem is held out.
2. From the best hit on, one batch size after another is refined near the optimum of its neighbour.
3. Near the best batch sizes many candidates race by successive halving; the winner is measured on fresh seeds.

Runs are kept in the temporary folder, so a command that was broken off goes on where it was.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import accumulate, count
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from search_environment import Environment, Problem
from search_live import TRUTHS, LiveCase, parameters_to_json
from search_methods import METHODS
from search_truth import FULL_LENGTH, MISS_REGRET, regrets

import scalesearch
from scalesearch.core.axis import Interval
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import TrialResult
from scalesearch.core.schedule import Piecewise
from scalesearch.core.schedule_space import PiecewiseSpace
from scalesearch.core.space import BatchSizes, SearchSpace

POOLED_TRIALS = 15  # full-length ones, in the cost of each long search
SMALLER_OCTAVES, LARGER_OCTAVES = 4, 2  # of batch sizes on the curve, around the first hit
COSTLIER = 1.2  # times the best cost: larger batch sizes are no longer looked at
CURVE_CANDIDATES, CURVE_SPREAD = 13, 0.35
CURVE_RACE = ((1, 5), (3, 1))  # (further seeds, candidates kept)
CANDIDATES, SPREAD = 40, 0.15  # near each of the two best batch sizes
RACE = ((2, 24), (4, 10), (8, 4), (24, 1))
FEWEST_SEEDS = 96
CURVE_CAP = 2.0  # times the cost of the neighbour: a miss costs as much
CURVE_SEED, RACE_SEED, FIRST_FRESH_SEED = 20_000, 30_000, 40_000  # apart from those of regrets


@dataclass
class _Ledger:
    """What was spent on finding out."""

    runs: int = 0
    cost: float = 0.0
    started: float = field(default_factory=perf_counter)

    def pay(self, costs: Sequence[float]) -> None:
        self.runs += len(costs)
        self.cost += sum(costs)

    def say(self, text: str) -> None:
        sys.stderr.write(f"{perf_counter() - self.started:6.0f} s, {self.runs} runs: {text}\n")


@dataclass(frozen=True)
class _Found:
    """Parameters and what their runs cost; `math.inf` for a miss."""

    parameters: Parameters
    costs: tuple[float, ...]
    cap: float

    @property
    def mean(self) -> float:
        """With a miss as the cap."""
        return float(np.mean(np.minimum(self.costs, self.cap)))

    @property
    def hits(self) -> list[float]:
        return [c for c in self.costs if c < math.inf]


def make_truth(case: LiveCase, path: Path = TRUTHS) -> dict[str, Any]:
    """Find the optimum of a problem, and write it to the file of truths."""
    ledger = _Ledger()
    hits = _pooled_hits(case, ledger)
    if not hits:
        raise SystemExit(f"{case.name}: nothing in the expert's box of {POOLED_TRIALS} trials reached the target")
    curve = _curve(case, hits, ledger)
    best = _best(case, sorted(curve.values(), key=lambda f: f.mean)[:2], ledger)
    seeds = range(FIRST_FRESH_SEED, FIRST_FRESH_SEED + max(FEWEST_SEEDS, 2 * case.fresh_seeds))
    best = _measured(_Found(best.parameters, (), FULL_LENGTH * best.mean), case, seeds, ledger)
    ledger.say(f"best on fresh seeds: {best.mean:,.0f}")
    curve[best.parameters.global_batch_size] = best
    entry = {
        "fingerprint": case.fingerprint,
        "best": parameters_to_json(best.parameters),
        "mean_cost": round(best.mean, 1),
        "log_cost_sd": round(float(np.log(best.hits).std(ddof=1)), 4),
        "misses": round(1.0 - len(best.hits) / len(best.costs), 4),
        "runs": len(best.costs),
        "curve": [_row(case, curve[b]) for b in sorted(curve)],
        "made": {
            "date": datetime.now(UTC).date().isoformat(),
            "version": scalesearch.__version__,
            "commit": _commit(),
            "methods": _methods(case),
            "runs": ledger.runs,
            "full_runs": round(ledger.cost / best.mean),
        },
    }
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**stored, case.name: entry}, indent=1) + "\n", encoding="utf-8")
    return entry


def expert_problem(case: LiveCase, *, seed: int) -> Problem:
    """The expert's box, and its middle as the first guess."""
    box = case.expert
    space = SearchSpace(
        batch_sizes=BatchSizes(
            low=box.global_batch_size[0], high=box.global_batch_size[1], multiple_of=None, divisor=1
        ),
        learning_rate=Interval(*box.learning_rate),
        momentum=Interval(case.momentum, case.momentum) if case.momentum is not None else None,
        schedule=PiecewiseSpace(
            decays=case.decays,
            boundaries=Interval(*(share * box.max_examples for share in box.boundaries)),
            decay_factor=Interval(case.decay_factor, case.decay_factor),
        ),
    )
    middle = {a.name: math.sqrt(a.low * a.high) if a.log else 0.5 * (a.low + a.high) for a in space.axes()}
    guess = space.parameters({a.name: a.clip(middle[a.name]) for a in space.axes()})
    return Problem(space=space, max_examples=box.max_examples, first_guess=guess, seed=seed)


def _methods(case: LiveCase) -> list[str]:
    return ["tpe+cap+stop"] if case.held_out else ["tpe+cap+stop", "scaling"]


def _pooled_hits(case: LiveCase, ledger: _Ledger) -> list[TrialResult]:
    """The hits of long searches, the cheapest first."""
    hits: list[TrialResult] = []
    for seed, method in enumerate([*_methods(case), "tpe+cap+stop"]):
        posed = expert_problem(case, seed=seed)
        size = posed.first_guess.global_batch_size
        unit = case.cost_per_step(size) * posed.max_examples / size
        environment = Environment(case, posed, unit=unit, full_cost=unit, budgets=(POOLED_TRIALS,))
        METHODS[method].run(environment)
        ledger.pay(
            [case.cost_per_step(r.parameters.global_batch_size) * r.measurements[-1].step for r in environment.results]
        )
        found = sorted((r for r in environment.results if r.reached), key=environment.cost_to_target)
        hits += found
        ledger.say(f"{method}: {len(found)} hits" + (f", {environment.cost_to_target(found[0]):,.0f}" if found else ""))
    return sorted(hits, key=lambda r: r.reached.cost(case.minimize) if r.reached else math.inf)


def _curve(case: LiveCase, hits: Sequence[TrialResult], ledger: _Ledger) -> dict[int, _Found]:
    """The best parameters found by batch size, outwards from the best hit."""
    reached = hits[0].reached
    assert reached is not None
    first = hits[0].parameters.global_batch_size
    starts = [h.parameters for h in hits if h.parameters.global_batch_size == first][:3]
    curve = {first: _refined(case, first, starts, reached.cost(case.minimize), ledger)}
    for octave in range(1, SMALLER_OCTAVES + 1):
        _continue(case, curve, first >> octave, ledger)
    for octave in count(1):
        known = _continue(case, curve, first << octave, ledger)
        if octave >= LARGER_OCTAVES and (known is None or known.mean > COSTLIER * min(f.mean for f in curve.values())):
            return curve
    raise AssertionError


def _continue(case: LiveCase, curve: dict[int, _Found], batch: int, ledger: _Ledger) -> _Found | None:
    """Add a batch size, if it exists and anything there reaches the target, from its nearest neighbour."""
    if batch < 1:
        return None
    near = curve[min(curve, key=lambda b: abs(math.log2(b / batch)))]
    rate_factors = (batch / near.parameters.global_batch_size) ** np.array([0.0, 0.5, 1.0])
    starts = [_scaled(near.parameters, rate=float(f), batch=batch) for f in rate_factors]
    found = _refined(case, batch, starts, near.mean, ledger)
    if not found.hits:
        return None
    curve[batch] = found
    return found


def _refined(case: LiveCase, batch: int, starts: Sequence[Parameters], cost: float, ledger: _Ledger) -> _Found:
    random = np.random.default_rng((1, batch))
    near = [_changed(starts[i % len(starts)], random, CURVE_SPREAD) for i in range(CURVE_CANDIDATES)]
    found = _race(case, [*starts, *near], CURVE_RACE, cap=CURVE_CAP * cost, first_seed=CURVE_SEED, ledger=ledger)
    p = found.parameters
    ledger.say(f"batch {batch}: {found.mean:,.0f} at {p.learning_rate:.3g}, {p.schedule.boundaries}")
    return found


def _best(case: LiveCase, near: Sequence[_Found], ledger: _Ledger) -> _Found:
    random = np.random.default_rng(2)
    candidates = [f.parameters for f in near]
    candidates += [_changed(f.parameters, random, SPREAD) for f in near for _ in range(CANDIDATES)]
    found = _race(case, candidates, RACE, cap=FULL_LENGTH * near[0].mean, first_seed=RACE_SEED, ledger=ledger)
    ledger.say(f"best: {found.mean:,.0f} with {parameters_to_json(found.parameters)}")
    return found


def _race(
    case: LiveCase,
    candidates: Sequence[Parameters],
    rungs: Sequence[tuple[int, int]],
    *,
    cap: float,
    first_seed: int,
    ledger: _Ledger,
) -> _Found:
    """Successive halving on mean cost over all runs so far; every candidate is given the same seeds."""
    found = [_Found(p, (), cap) for p in candidates]
    for more, keep in rungs:
        seeds = range(first_seed, first_seed + more)
        found = sorted((_measured(f, case, seeds, ledger) for f in found), key=lambda f: f.mean)[:keep]
        first_seed += more
    return found[0]


def _measured(found: _Found, case: LiveCase, seeds: Sequence[int], ledger: _Ledger) -> _Found:
    """With the costs of further runs."""
    unit = found.cap / FULL_LENGTH
    regret = regrets(case, found.parameters, seeds, unit=unit)
    ledger.pay([(1.0 + r) * unit for r in regret])
    costs = (math.inf if r == MISS_REGRET else (1.0 + r) * unit for r in regret)
    return replace(found, costs=(*found.costs, *costs))


def _scaled(parameters: Parameters, *, rate: float, batch: int) -> Parameters:
    schedule = replace(parameters.schedule, learning_rate=parameters.learning_rate * rate)
    return replace(parameters, global_batch_size=batch, schedule=schedule)


def _changed(parameters: Parameters, random: np.random.Generator, log_sd: float) -> Parameters:
    """A learning rate and boundaries nearby."""
    schedule = replace(
        parameters.schedule, learning_rate=parameters.learning_rate * math.exp(random.normal(0.0, log_sd))
    )
    if isinstance(schedule, Piecewise):
        lengths = np.diff([0, *schedule.boundaries]) * np.exp(random.normal(0.0, log_sd, len(schedule.boundaries)))
        boundaries = accumulate(max(1, round(length)) for length in lengths)
        schedule = replace(schedule, boundaries=tuple(boundaries))
    return replace(parameters, schedule=schedule)


def _row(case: LiveCase, found: _Found) -> dict[str, Any]:
    steps = float(np.mean(found.hits)) / case.cost_per_step(found.parameters.global_batch_size)
    runs = {"steps": round(steps, 1), "misses": len(found.costs) - len(found.hits), "runs": len(found.costs)}
    return {**parameters_to_json(found.parameters), **runs}


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    return done.stdout.strip()
