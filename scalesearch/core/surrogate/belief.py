"""All that a search believes after some trials: curves, noise, stability, and who leads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from scipy.special import ndtri

from scalesearch.core.parameters import Parameters
from scalesearch.core.prefix import trained_before
from scalesearch.core.results import Objective, Outcome, TrialResult
from scalesearch.core.surrogate.cost import MISS_FACTOR, Costs, Noise, predict_costs
from scalesearch.core.surrogate.loss_curves import Curve, LossCurves, equations_of
from scalesearch.core.surrogate.modes import Array
from scalesearch.core.surrogate.noise import estimate_noise
from scalesearch.core.surrogate.residual import Residual, fit_residual
from scalesearch.core.surrogate.scalar import Scalar
from scalesearch.core.surrogate.stability import Stability, log_point, stability_of
from scalesearch.core.surrogate.switch import Judge

MEMBERS = 10
CAP_FACTORS = (1.15, 2.5)
LEAST_MODEL_ERROR = 0.06  # of a predicted log cost, corrected by the residual
PRIOR_RUNS = 1.0  # how many runs the model's chance of a miss counts for
SUSPICIOUS_MISS = 0.1
NEARBY = (
    2.0,
    0.6,
)  # nats in batch size and in rate at which a run counts 60 % for the model of what is around the best
LEAST_TRUST = 0.1
# Nats of cost per nat of learning rate: of two that cost about the same, the lower rate leads. On real networks some of the
# runs at high rates take far longer, which the few repeats of a study seldom show. (What is tried is not held back so: where
# curves mislead, a search that shuns higher rates does not find out.)
CALM = 0.1
NOISY = 0.08  # standard deviation of log cost above which one run proves little


@dataclass(frozen=True)
class Incumbent:
    """The leading parameters. `cost` is the expected cost to target, the chance `miss` of missing it included.

    `log_error` is the standard deviation of the log of the mean cost of runs that reach the target.
    """

    parameters: Parameters
    cost: float
    miss: float
    runs: int
    log_error: float = 0.0

    @property
    def hit(self) -> float:
        """Expected cost of a run that reaches the target."""
        return self.cost / (1.0 + (MISS_FACTOR - 1.0) * self.miss)


@dataclass(frozen=True)
class Belief:
    """`model` is None while no run has shown anything. `scalar`, where there is one, is in charge instead of it.

    `misses_so_far` are those before the first hit, `misses_in_a_row` those since the last one.
    """

    objective: Objective
    max_examples: int
    cost_per_step: Callable[[int], float]
    stability: Stability
    model: LossCurves | None = None
    noise: Noise = field(default_factory=lambda: Noise(level=0.03, bias=0.0, log_cost=0.1))
    scalar: Scalar | None = None
    residual: Residual = field(default_factory=Residual)
    incumbent: Incumbent | None = None
    leaders: tuple[Incumbent, ...] = ()
    misses_so_far: int = 0
    misses_in_a_row: int = 0

    @property
    def model_in_charge(self) -> Literal["loss curves", "scalar"]:
        """Which model predicts costs (see `switch`)."""
        return "scalar" if self.scalar is not None else "loss curves"

    def attributed(self, why: str) -> str:
        """`why` a trial is run, with the model that proposes it if it is not the usual one."""
        return why if self.scalar is None else f"{why} ({self.model_in_charge} model)"

    @property
    def cap_factor(self) -> float:
        """How far beyond the incumbent's cost a trial may go before it cannot win: two standard deviations of a run."""
        return float(np.clip(np.exp(2.0 * self.noise.log_cost), *CAP_FACTORS))

    def expected_costs(self, candidates: Sequence[Parameters], *, cap: float) -> Costs:
        """Predicted costs of `candidates`, corrected by what was observed near them."""
        assert self.model is not None
        assert self.objective.target is not None
        if self.scalar is not None:
            costs = self.scalar.costs(
                candidates, cost_per_step=self.cost_per_step, cap=cap, max_examples=self.max_examples
            )
        else:
            costs = predict_costs(
                self.model,
                candidates,
                target=loss_of(self.objective.target, self.objective),
                noise=self.noise,
                cost_per_step=self.cost_per_step,
                cap=cap,
                max_examples=self.max_examples,
            )
        mean, _ = self.residual.at(candidates)
        return Costs(costs.hit * np.exp(mean), costs.miss)

    def gains(self, candidates: Sequence[Parameters], *, cap: float) -> tuple[Array, Array]:
        """Expected improvement over the incumbent's cost, and what a trial capped at `cap` would cost: (candidates,)."""
        assert self.incumbent is not None
        costs = self.expected_costs(candidates, cap=cap)
        _, deviation = self.residual.at(candidates)
        spread = np.exp(deviation * _antithetic(len(costs.hit))[:, None])
        gain = np.maximum(self.incumbent.cost - costs.expected() * spread, 0.0).mean(axis=0)
        trial = (costs.hit * (1.0 - costs.miss) + cap * costs.miss).mean(axis=0)
        return gain, trial

    def worth_repeating(self, incumbent: Incumbent) -> bool:
        """Whether the incumbent's only run may have been luck: noisy runs, or a plateau that grazes the target."""
        doubtful = incumbent.miss > SUSPICIOUS_MISS or self.noise.log_cost > NOISY
        return incumbent.runs == 1 and doubtful


def believe(
    results: Sequence[TrialResult],
    *,
    objective: Objective,
    max_examples: int,
    cost_per_step: Callable[[int], float],
    seed: int,
) -> Belief:
    """Fit everything to `results`, without those that were interrupted."""
    results = [r for r in results if r.outcome is not Outcome.INTERRUPTED]
    losses = [losses_of(r, objective) for r in results]
    stability = stability_of(results, losses, max_examples=max_examples)
    curve_of_each = _stable_curves(results, losses, stability)
    curves = [c for c in curve_of_each if c is not None]
    hits = [r for r in results if r.reached is not None]
    belief = Belief(objective, max_examples, cost_per_step, stability)
    misses = sum(r.outcome in (Outcome.CAPPED, Outcome.EXHAUSTED) and not hits for r in results)
    if not curves or objective.target is None:
        return belief
    target = loss_of(objective.target, objective)
    initial = float(
        np.median([loss_of(r.measurements[0].metrics[objective.metric], objective) for r in results if r.measurements])
    )
    trust = _nearness([r.parameters for r in results], _best_so_far(results, losses, cost_per_step))
    rates = max(np.exp(e) * max_examples / np.exp(b) for b, e in (stability.stable or stability.unstable))
    equations = equations_of(
        curves,
        initial_loss=initial,
        target=target,
        longest=float(rates),
        trust=trust[[c is not None for c in curve_of_each]],
    )
    model = equations.ensemble(MEMBERS, np.random.default_rng((seed, len(results), 7)))
    noise = estimate_noise(results, losses, trust, model=model, target=target, rule=objective.crossing)
    belief = replace(belief, model=model, noise=noise, misses_so_far=misses)
    if not hits:
        return belief
    judge = Judge(
        equations=equations,
        target=target,
        max_examples=max_examples,
        cost_per_step=cost_per_step,
        stability=stability,
        noise=noise,
    )
    belief = replace(belief, scalar=judge.takes_over(results, losses, curve_of_each, members=MEMBERS))
    residual = fit_residual(results, cost_per_step=cost_per_step, belief_costs=belief.expected_costs, noise=noise)
    belief = replace(belief, residual=residual)
    ranked = rank(results, belief)
    last_hit = max(i for i, r in enumerate(results) if r.reached is not None)
    return replace(belief, incumbent=ranked[0], leaders=tuple(ranked[:4]), misses_in_a_row=len(results) - 1 - last_hit)


def loss_of(value: float, objective: Objective) -> float:
    """A metric as a positive number of which less is better."""
    return max(value if objective.direction == "minimize" else 1.0 - value, 1e-12)


def cost_to_target(result: TrialResult, cost_per_step: Callable[[int], float]) -> float | None:
    """Steps to target at the usual cost of a step, rather than at what the steps of this run happened to cost."""
    if result.reached is None:
        return None
    return result.reached.steps * cost_per_step(result.parameters.global_batch_size)


def losses_of(result: TrialResult, objective: Objective) -> Array:
    """Of a trial's evaluations after the one before training."""
    return np.array([loss_of(m.metrics[objective.metric], objective) for m in result.measurements[1:]])


def curve_of(result: TrialResult, losses: Array, earlier: Sequence[TrialResult] = ()) -> Curve | None:
    """The curve of a result, of which it may have had a part in common with `earlier` ones; None if it shows nothing."""
    if result.outcome is Outcome.DIVERGED or len(losses) < 2:
        return None
    steps = np.array([m.step for m in result.measurements[1:]], dtype=float)
    usable = np.isfinite(losses)
    if usable.sum() < 2:
        return None
    return Curve(result.parameters, steps[usable], losses[usable], known=trained_before(result, earlier))


def rank(results: Sequence[TrialResult], belief: Belief) -> list[Incumbent]:
    """Parameters that reached the target, by expected cost.

    The model, corrected by what was seen nearby, and the runs themselves are weighed by their errors: where the model is
    right, a single lucky run does not lead; where it is wrong, runs that repeat their result do.
    """
    runs_at = defaultdict(list)
    for result in results:
        runs_at[result.parameters].append(result)
    points = [p for p, runs in runs_at.items() if any(r.reached for r in runs)]
    costs = [[c for r in runs_at[p] if (c := cost_to_target(r, belief.cost_per_step)) is not None] for p in points]
    predicted = belief.expected_costs(points, cap=3.0 * min(min(c) for c in costs))
    log_model = np.log(predicted.hit.mean(axis=0))
    log_seen = np.array([np.mean(np.log(c)) for c in costs])
    count = np.array([len(c) for c in costs])
    run_variance = belief.noise.log_cost**2
    excess = np.mean((log_seen - log_model) ** 2 - run_variance / count)
    model_variance = max(LEAST_MODEL_ERROR**2, float(excess))
    seen = model_variance / (model_variance + run_variance / count)
    hits = np.exp(seen * log_seen + (1.0 - seen) * log_model)
    ranked = []
    for i, point in enumerate(points):
        runs = len(runs_at[point])
        miss = (PRIOR_RUNS * predicted.miss[:, i].mean() + runs - count[i]) / (PRIOR_RUNS + runs)
        cost = hits[i] * (1.0 + (MISS_FACTOR - 1.0) * miss)
        log_error = np.sqrt(seen[i] * run_variance / count[i])  # of the two weighed by their errors
        ranked.append(Incumbent(point, float(cost), float(miss), runs, float(log_error)))
    return sorted(ranked, key=lambda leader: compared_cost(leader, luck=belief.noise.log_cost))


def compared_cost(leader: Incumbent, *, luck: float) -> float:
    """By which leaders are ranked: whoever has won only once must be better by `luck`, that of a typical run, to lead."""
    doubt = 1.0 + luck * (leader.runs == 1)
    return float(leader.cost * doubt * leader.parameters.effective_learning_rate**CALM)


def _stable_curves(results: Sequence[TrialResult], losses: Sequence[Array], stability: Stability) -> list[Curve | None]:
    """What each result shows the model: no run at a rate that is too high, unless there is no other."""
    curves = [curve_of(r, loss, results[:i]) for i, (r, loss) in enumerate(zip(results, losses, strict=True))]
    stable = [c if c is not None and log_point(c.parameters) not in stability.unstable else None for c in curves]
    return stable if any(c is not None for c in stable) else curves


def _best_so_far(
    results: Sequence[TrialResult], losses: Sequence[Array], cost_per_step: Callable[[int], float]
) -> Parameters:
    """Those of the cheapest hit or, before the first, of the lowest loss."""
    if hits := [r for r in results if r.reached is not None]:
        return min(hits, key=lambda r: cost_to_target(r, cost_per_step) or np.inf).parameters
    last = [
        float(np.median(curve[-3:])) if len(curve) and np.isfinite(curve[-3:]).all() else np.inf for curve in losses
    ]
    return results[int(np.argmin(last))].parameters


def _nearness(parameters: Sequence[Parameters], best: Parameters) -> Array:
    """How much each run counts for the model: on real networks, runs at other rates follow other modes."""
    points = np.array([log_point(p) for p in parameters])
    away = (points - np.array(log_point(best))) / NEARBY
    return np.asarray(np.maximum(np.exp(-0.5 * (away**2).sum(axis=1)), LEAST_TRUST))


def _antithetic(count: int) -> Array:
    quantiles = np.asarray(ndtri((np.arange(count) + 0.5) / count))
    return quantiles[np.random.default_rng(0).permutation(count)]
