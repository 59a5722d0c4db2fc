"""Which model is in charge: the loss curves, unless what they forecast of the latest trials was clearly worse.

Each model forecasts a trial from the trials before it, so neither is judged by what it was fitted to. Only trials of new
parameters after the first hit are judged: of parameters that have been run, any model knows the cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from scalesearch.core.results import Outcome, TrialResult
from scalesearch.core.surrogate.cost import Costs, Noise, predict_costs
from scalesearch.core.surrogate.loss_curves import Curve, Equations
from scalesearch.core.surrogate.modes import Array
from scalesearch.core.surrogate.scalar import Scalar, fit_scalar
from scalesearch.core.surrogate.stability import Stability

JUDGED = 6  # the latest trials
LEAST_JUDGED = 4
MISS = 0.2  # nats, or twice the noise of a run
MORE_MISSES = 2
LARGEST = 1.4  # nats: also a hit that was said to be out of reach, or the other way round


@dataclass(frozen=True, kw_only=True)
class Judge:
    """What both models are fitted with; `equations` are of all curves."""

    equations: Equations
    target: float
    max_examples: float
    cost_per_step: Callable[[int], float]
    stability: Stability
    noise: Noise

    def takes_over(
        self, results: Sequence[TrialResult], losses: Sequence[Array], curves: Sequence[Curve | None], *, members: int
    ) -> Scalar | None:
        """The scalar model, if it is to take over; `curves` are None for runs that no curve is fitted to."""
        judged = _judged(results)[-JUDGED:]
        if len(judged) < LEAST_JUDGED:
            return None
        misses = self._misses(self._errors_of_curves(results, curves, judged))
        if misses < MORE_MISSES:
            return None
        scalar = self._scalar(results, losses, members=members)
        errors = []
        for i in judged:
            before = self._scalar(results[:i], losses[:i], members=1, start=scalar)
            errors.append(self._error(results[i], self._costs(before, results[i])))
        return scalar if misses >= self._misses(errors) + MORE_MISSES else None

    def _misses(self, errors: Sequence[float]) -> int:
        return sum(e > max(MISS, 2.0 * self.noise.log_cost) for e in errors)

    def _scalar(
        self, results: Sequence[TrialResult], losses: Sequence[Array], *, members: int, start: Scalar | None = None
    ) -> Scalar:
        return fit_scalar(
            results,
            losses,
            target=self.target,
            stability=self.stability,
            noise=self.noise,
            members=members,
            start=start,
        )

    def _errors_of_curves(
        self, results: Sequence[TrialResult], curves: Sequence[Curve | None], judged: Sequence[int]
    ) -> list[float]:
        errors = []
        for i in judged:
            model = self.equations.beginning(sum(c is not None for c in curves[:i]))
            costs = predict_costs(
                model,
                [results[i].parameters],
                target=self.target,
                noise=self.noise,
                cost_per_step=self.cost_per_step,
                cap=self._most(results[i]),
                max_examples=self.max_examples,
            )
            errors.append(self._error(results[i], costs))
        return errors

    def _costs(self, model: Scalar, result: TrialResult) -> Costs:
        return model.costs(
            [result.parameters],
            cost_per_step=self.cost_per_step,
            cap=self._most(result),
            max_examples=self.max_examples,
        )

    def _error(self, result: TrialResult, forecast: Costs) -> float:
        return forecast_error(self._spent(result), forecast, reached=result.reached is not None)

    def _spent(self, result: TrialResult) -> float:
        last = max(result.measurements[-1].step, result.ruled_out_steps or 0.0)
        steps = result.reached.steps if result.reached else last
        return steps * self.cost_per_step(result.parameters.global_batch_size)

    def _most(self, result: TrialResult) -> float:
        return float(np.exp(LARGEST)) * self._spent(result)


def forecast_error(spent: float, forecast: Costs, *, reached: bool) -> float:
    """Nats between forecast and cost; of a run without a hit, by how much it was promised too soon."""
    error = np.log(spent / forecast.hit.mean())
    if forecast.miss.mean() > 0.5:
        error = -LARGEST
    return float(min(abs(error) if reached else max(error, 0.0), LARGEST))


def _judged(results: Sequence[TrialResult]) -> list[int]:
    """Trials that tell how good a forecast was."""
    known, judged, hit = set(), [], False
    for i, result in enumerate(results):
        tells = result.reached is not None or result.outcome in (Outcome.CAPPED, Outcome.EXHAUSTED)
        tells = tells and bool(result.measurements) and result.measurements[-1].step > 0
        if hit and tells and result.parameters not in known:
            judged.append(i)
        hit = hit or result.reached is not None
        known.add(result.parameters)
    return judged
