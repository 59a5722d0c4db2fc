"""Our search without one of its parts: what is each of them worth?

The parts have no switches: an ablation replaces functions of the search while a study of it runs, and puts them back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
from search_environment import Environment
from search_scaling import scaling

from scalesearch.core import planner
from scalesearch.core.planner import Planner
from scalesearch.core.proposal import Proposal
from scalesearch.core.range_trials import RANGE, RangeTrials
from scalesearch.core.results import TrialResult
from scalesearch.core.surrogate import belief, loss_curves
from scalesearch.core.surrogate.belief import Belief, Incumbent
from scalesearch.core.surrogate.cost import Costs, Noise
from scalesearch.core.surrogate.modes import Array
from scalesearch.core.surrogate.residual import Residual
from scalesearch.core.surrogate.stability import Stability
from scalesearch.core.surrogate.switch import Judge

Make = Callable[[Any], Any]


@dataclass(frozen=True)
class Ablation:
    """What is left out, by replacing attributes of modules and classes: (owner, attribute, what is made of the original)."""

    about: str
    replacements: tuple[tuple[Any, str, Make], ...] = ()
    confirms: bool = True

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Everything is put back in the end, whatever happens."""
        with ExitStack() as stack:
            for owner, name, make in self.replacements:
                stack.enter_context(patch.object(owner, name, make(getattr(owner, name))))
            yield


def ablated(environment: Environment, *, ablation: Ablation) -> None:
    """Our search without a part of it."""
    with ablation.applied():
        scaling(environment, confirms=ablation.confirms)


def _always(value: Any) -> Make:
    return lambda original: lambda *given, **named: value


def _constant(value: Any) -> Make:
    return lambda original: value


def _by_curves_of_hits(believe: Callable[..., Belief]) -> Callable[..., Belief]:
    def believe_less(results: Sequence[TrialResult], **named: Any) -> Belief:
        if any(r.reached for r in results):
            results = [r if r.reached else _without_curve(r) for r in results]
        return believe(results, **named)

    return believe_less


def _without_curve(result: TrialResult) -> TrialResult:
    return replace(result, measurements=(*result.measurements[:1], *result.measurements[1:][-1:]))


def _by_stable_runs(log_limit: Callable[[Stability, Array], Array]) -> Callable[[Stability, Array], Array]:
    return lambda stability, log_batch: log_limit(replace(stability, unstable=()), log_batch)


def _without_opinion(noise_share: Any) -> Callable[..., tuple[Array, Array]]:
    return lambda row, share: (np.zeros((len(row), len(row))), np.zeros(len(row)))


def _for_free(expected: Callable[..., Array]) -> Callable[..., Array]:
    return lambda costs, **named: expected(costs, miss_factor=1.0)


def _without_doubt(rank: Callable[..., list[Incumbent]]) -> Callable[..., list[Incumbent]]:
    return lambda *given, **named: sorted(rank(*given, **named), key=lambda i: belief.compared_cost(i, luck=0.0))


def _of_full_length(propose: Callable[..., Proposal]) -> Callable[..., Proposal]:
    def propose_uncapped(*given: Any, **named: Any) -> Proposal:
        proposal = propose(*given, **named)
        return proposal if proposal.why == RANGE else replace(proposal, cap=None)

    return propose_uncapped


ABLATIONS = {
    "range": Ablation(
        "no range trials: begins with a run of some length at the first guess's rate",
        ((RangeTrials, "next", _always(None)),),
    ),
    "stability": Ablation(
        "an unstable run forbids nothing: rates up to 1.6 times what was stable are candidates",
        ((Stability, "log_limit", _by_stable_runs),),
    ),
    "curves": Ablation(
        "from the first hit on, only the last loss of runs that missed is known, not their curves",
        ((planner, "believe", _by_curves_of_hits),),
    ),
    "opinions": Ablation(
        "the ensemble's members hold no opinions on how much of the loss is noise",
        ((loss_curves, "_noise_share", _without_opinion),),
    ),
    "scalar": Ablation(
        "the loss curves stay in charge, however wrong their forecasts",
        ((Judge, "takes_over", _always(None)),),
    ),
    "misses": Ablation(
        "a miss costs no more than a hit",
        ((Costs, "expected", _for_free), (belief, "MISS_FACTOR", _constant(1.0))),
    ),
    "residual": Ablation(
        "predictions are not corrected by what was observed nearby",
        ((belief, "fit_residual", _always(Residual())),),
    ),
    "repeats": Ablation(
        "a leader that won once is neither repeated nor doubted",
        ((Belief, "worth_repeating", _always(False)), (belief, "rank", _without_doubt)),
    ),
    "calm": Ablation(
        "of equal costs, the one at the lower learning rate is not preferred",
        ((belief, "CALM", _constant(0.0)),),
    ),
    "cap": Ablation(
        "trials run their full length, but for range trials",
        ((Planner, "propose", _of_full_length),),
    ),
    "stop": Ablation(
        "no trial is stopped because its curve, carried on, misses the target",
        ((Planner, "should_stop", _always(False)),),
    ),
    "per-cost": Ablation(
        "expected improvement, whatever the trial costs",
        ((planner, "COST_EXPONENT", _constant(0.0)),),
    ),
    "confirmation": Ablation("no part of the budget is kept for repeats of the leaders", confirms=False),
    "noise": Ablation(
        "the noise of runs is not estimated but 10 % of the cost",
        ((belief, "estimate_noise", _always(Noise(level=0.03, bias=0.0, log_cost=0.1))),),
    ),
}
