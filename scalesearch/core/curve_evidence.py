"""What the trials of a curve study tell: at which rates they acted, and what to believe of all batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalesearch.core.results import Objective, TrialResult
from scalesearch.core.surrogate.belief import Belief, believe, curve_of, loss_of, losses_of
from scalesearch.core.surrogate.rate_map import RateMap, fit_rate_map


@dataclass(frozen=True)
class Evidence:
    """Results with the rates at which they acted, the map to these, and the belief that follows.

    Costs of the belief are in units of rough steps to target at each batch size.
    """

    results: tuple[TrialResult, ...]
    rates: RateMap
    belief: Belief


def weigh(results: Sequence[TrialResult], *, objective: Objective, max_examples: int, seed: int) -> Evidence:
    """What follows from `results`, of which at least one has reached the target."""
    rates = rate_map_of(results, objective, max_examples=max_examples)
    acting = tuple(replace(r, parameters=rates.acting(r.parameters)) for r in results)
    reference = _reference_steps(results)
    belief = believe(
        acting,
        objective=objective,
        max_examples=max_examples,
        cost_per_step=lambda size: 1.0 / reference(size),
        seed=seed,
    )
    return Evidence(acting, rates, belief)


def rate_map_of(results: Sequence[TrialResult], objective: Objective, *, max_examples: int) -> RateMap:
    """How rates act at different batch sizes, as the learning curves of all runs that did not diverge tell it."""
    assert objective.target is not None
    pairs = [(r, losses_of(r, objective)) for r in results]
    curves = [c for r, losses in pairs if (c := curve_of(r, losses)) is not None]
    initial = [loss_of(r.measurements[0].metrics[objective.metric], objective) for r in results if r.measurements]
    return fit_rate_map(
        curves,
        initial_loss=float(np.median(initial)),
        target=loss_of(objective.target, objective),
        max_examples=max_examples,
    )


def _reference_steps(results: Sequence[TrialResult]) -> Callable[[int], float]:
    """Roughly the steps to target at any batch size: between those seen, and beyond them half as steep as perfect scaling."""
    best: dict[int, float] = {}
    for result in results:
        if result.reached is not None:
            size = result.parameters.global_batch_size
            best[size] = min(result.reached.steps, best.get(size, np.inf))
    seen = sorted(best)
    log_sizes, log_steps = np.log(seen), np.log([best[s] for s in seen])

    def steps(size: int) -> float:
        inside = float(np.interp(np.log(size), log_sizes, log_steps))
        beyond = np.log(size) - np.clip(np.log(size), log_sizes[0], log_sizes[-1])
        return float(np.exp(inside - 0.5 * beyond))

    return steps
