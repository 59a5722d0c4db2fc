"""Exact second moments of SGD and heavy ball on a noisy quadratic model (Zhang et al. 2019, arXiv:1907.04164).

The loss is ½ Σᵢ hᵢ θᵢ². The gradient of a batch of B examples is hᵢ θᵢ + ξᵢ with Var ξᵢ = (cᵢ + m hᵢ² θᵢ²)/B, so that
the second moments of each mode follow an affine recursion, whose n-fold application has a closed form. Moments are
arrays of shape (…, modes, 1) for SGD (E θ²) and (…, modes, 3) for heavy ball (E θ², E θv, E v²).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Modes:
    """Eigendirections of the loss, each standing for `multiplicity` alike; arrays of shape (modes,).

    `gradient_variance` is cᵢ, `multiplicative` m of the module's formula; `initial` is E θᵢ² before the first step.
    """

    curvature: Floats
    multiplicity: Floats
    gradient_variance: Floats
    initial: Floats
    multiplicative: float = 0.0

    @cached_property
    def loss_weights(self) -> Floats:
        """What E θᵢ² contributes to the expected loss."""
        return 0.5 * self.multiplicity * self.curvature

    def loss(self, moments: Floats) -> Floats:
        """Expected loss of moments (…, modes, k): shape (…); infinite once moments have overflowed."""
        with np.errstate(over="ignore", invalid="ignore"):
            loss = moments[..., 0] @ self.loss_weights
        return np.where(loss >= 0.0, loss, np.inf)

    def initial_moments(self, *, heavy_ball: bool) -> Floats:
        """Moments before the first step: the velocity is zero."""
        moments = np.zeros((len(self.initial), 3 if heavy_ball else 1))
        moments[:, 0] = self.initial
        return moments


class Dynamics(Protocol):
    """Steps at constant learning rate; the learning rates have a shape (…), moments (…, modes, k)."""

    def leap(self, steps: Whole) -> Leap:
        """So many steps (…) as one affine map."""

    def advance(self, moments: Floats, steps: Whole) -> Floats:
        """The moments after so many steps (…)."""


class Leap(Protocol):
    """A fixed number of steps."""

    def __call__(self, moments: Floats) -> Floats: ...


def dynamics(modes: Modes, learning_rate: Floats, *, batch: float, momentum: float) -> Dynamics:
    """SGD, or with a momentum heavy ball: v ← μ v − η g, θ ← θ + v; learning rates of any shape (…)."""
    if momentum:
        return HeavyBall.of(modes, learning_rate, batch=batch, momentum=momentum)
    return Sgd(modes, learning_rate, batch=batch)


class Sgd:
    """E θ² ← (1 − 2ηh + η²h² (1 + m/B)) E θ² + η² c/B."""

    def __init__(self, modes: Modes, learning_rate: Floats, *, batch: float) -> None:
        step = np.multiply.outer(learning_rate, modes.curvature)
        change = step * (step * (1.0 + modes.multiplicative / batch) - 2.0)
        self._drive = np.multiply.outer(np.square(learning_rate), modes.gradient_variance / batch)
        # A mode that one step kills (gain 0) has a logarithm of −∞, which n = 0 would turn into NaN.
        self._log_gain = np.log1p(np.maximum(change, -1.0 + 1e-16))
        self._change = change

    def leap(self, steps: Whole) -> AffineModes:
        n = np.asarray(steps, dtype=float)[..., None]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            growth = np.expm1(n * self._log_gain)
            drive = np.where(self._change == 0.0, n * self._drive, growth * (self._drive / self._change))
        return AffineModes(1.0 + growth, drive)

    def advance(self, moments: Floats, steps: Whole) -> Floats:
        return self.leap(steps)(moments)


@dataclass(frozen=True)
class AffineModes:
    """E θ² ← gain · E θ² + drive, arrays (…, modes)."""

    gain: Floats
    drive: Floats

    def __call__(self, moments: Floats) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(self.gain[..., None] * moments + self.drive[..., None])


@dataclass(frozen=True)
class HeavyBall:
    """moments ← matrix · moments + drive, arrays (…, modes, 3, 3) and (…, modes, 3)."""

    matrix: Floats
    drive: Floats

    @classmethod
    def of(cls, modes: Modes, learning_rate: Floats, *, batch: float, momentum: float) -> HeavyBall:
        """One step."""
        step = np.multiply.outer(learning_rate, modes.curvature)
        keep, mu, noise = 1.0 - step, momentum, np.square(step) * modes.multiplicative / batch
        friction = np.full_like(step, mu**2)
        rows = (
            (keep**2 + noise, 2.0 * mu * keep, friction),
            (noise - keep * step, mu * (keep - step), friction),
            (step**2 + noise, -2.0 * mu * step, friction),
        )
        drive = np.multiply.outer(np.square(learning_rate), modes.gradient_variance / batch)
        return cls(
            matrix=np.stack([np.stack(row, axis=-1) for row in rows], axis=-2),
            drive=np.stack([drive] * 3, axis=-1),
        )

    def __call__(self, moments: Floats) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray((self.matrix @ moments[..., None])[..., 0] + self.drive)

    @cached_property
    def twice(self) -> HeavyBall:
        """Two of it; kept, as a trial asks for the same powers again and again."""
        with np.errstate(over="ignore", invalid="ignore"):
            return HeavyBall(self.matrix @ self.matrix, self(self.drive))

    def leap(self, steps: Whole) -> HeavyBall:
        identity = np.broadcast_to(np.eye(3), self.matrix.shape)
        result = HeavyBall(identity, np.zeros_like(self.drive))
        for power, chosen in self._powers_of(steps):
            pick = chosen[..., None, None]
            with np.errstate(over="ignore", invalid="ignore"):
                matrix = np.where(pick[..., None], power.matrix @ result.matrix, result.matrix)
            result = HeavyBall(matrix, np.where(pick, power(result.drive), result.drive))
        return result

    def advance(self, moments: Floats, steps: Whole) -> Floats:
        for power, chosen in self._powers_of(steps):
            moments = np.where(chosen[..., None, None], power(moments), moments)
        return moments

    def _powers_of(self, steps: Whole) -> list[tuple[HeavyBall, NDArray[np.bool_]]]:
        """The maps of 1, 2, 4, … steps, each with where `steps` contains it."""
        left, power, powers = np.asarray(steps, dtype=np.int64), self, []
        while np.any(left):
            chosen = (left & 1).astype(bool)
            if np.any(chosen):
                powers.append((power, chosen))
            left = left >> 1
            if np.any(left):
                power = power.twice
        return powers
