"""How the learning rate acts at different batch sizes: e · B^q, with an exponent q that the learning curves tell.

Under SGD a rate acts alike at every batch size (q = 0). Adam divides by the size of the gradient, most of which is noise at
small batches, so that its rates act like SGD's times √B there (q = 0.5; Malladi et al. 2022). One set of modes can follow
runs at many batch sizes only with the right exponent, and then far better than with another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalesearch.core.parameters import Parameters
from scalesearch.core.surrogate.loss_curves import Curve, fit_loss_curves
from scalesearch.core.surrogate.modes import Array, runs_of

EXPONENTS = (-0.5, -0.25, 0.25, 0.5, 0.75, 1.0)
CLEARLY = 0.75  # of the misfit with exponent 0
LEAST_SIZES = 3
MOST_CURVES = 50  # the latest
NEAR_TARGET = 0.4  # log distance to the target at which a point weighs half


@dataclass(frozen=True)
class RateMap:
    """Between rates as they are set and as they act: the latter are those that would act alike at batch size 1."""

    exponent: float = 0.0

    def acting(self, parameters: Parameters) -> Parameters:
        """`parameters` with the rate that acts."""
        return self._scaled(parameters, self.exponent)

    def as_set(self, parameters: Parameters) -> Parameters:
        """The inverse of `acting`, but for rounding."""
        return self._scaled(parameters, -self.exponent)

    def _scaled(self, parameters: Parameters, exponent: float) -> Parameters:
        if exponent == 0.0:
            return parameters
        rate = parameters.learning_rate * parameters.global_batch_size**exponent
        return replace(parameters, schedule=replace(parameters.schedule, learning_rate=rate))


def fit_rate_map(curves: Sequence[Curve], *, initial_loss: float, target: float, max_examples: int) -> RateMap:
    """The map under which one set of modes follows all curves clearly best; without one, rates act as they are set."""
    if len({c.parameters.global_batch_size for c in curves}) < LEAST_SIZES:
        return RateMap()

    def misfit(rates: RateMap) -> float:
        acting = [replace(c, parameters=rates.acting(c.parameters)) for c in curves[-MOST_CURVES:]]
        return _misfit(acting, initial_loss=initial_loss, target=target, max_examples=max_examples)

    misfits = {exponent: misfit(RateMap(exponent)) for exponent in EXPONENTS}
    best = min(misfits, key=misfits.__getitem__)
    return RateMap(best) if misfits[best] < CLEARLY * misfit(RateMap()) else RateMap()


def _misfit(curves: Sequence[Curve], *, initial_loss: float, target: float, max_examples: int) -> float:
    """Root mean square of log(fitted / measured loss), near the target above all."""
    points = [c.parameters for c in curves]
    longest = max(p.effective_learning_rate * max_examples / p.global_batch_size for p in points)
    model = fit_loss_curves(
        curves, initial_loss=initial_loss, target=target, longest=longest, members=1, rng=np.random.default_rng(0)
    )
    fitted = [model.predict(runs_of([c.parameters]), c.steps[None])[0, 0] for c in curves]
    return float(np.sqrt(np.mean([_squared_error(c, f, target) for c, f in zip(curves, fitted, strict=True)])))


def _squared_error(curve: Curve, fitted: Array, target: float) -> float:
    near = 1.0 + np.maximum(np.log(curve.losses / target), 0.0) / NEAR_TARGET
    return float(np.average(np.log(fitted / curve.losses) ** 2, weights=near**-2.0))
