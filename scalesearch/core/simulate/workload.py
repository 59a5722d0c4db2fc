"""A simulated workload: every way in which it may differ from the plain noisy quadratic model is an option."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args, get_type_hints

import numpy as np

from scalesearch.core.results import Goal, Objective
from scalesearch.core.simulate.quadratic import Floats, Modes
from scalesearch.errors import WorkloadError

EXACT_MODES = 12  # the largest curvatures stand for themselves, the others are binned
LOSS = "val/loss"


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """Curvatures hᵢ = i^−`exponent` for i = 1 … `dimension`, in about `modes` bins of equal width in log i.

    `initial_exponent`: E θᵢ² = i^−`initial_exponent` before the first step.
    """

    dimension: int = 1000
    exponent: float = 1.0
    initial_exponent: float = 0.0
    modes: int = 90


@dataclass(frozen=True, kw_only=True)
class GradientNoise:
    """Variance of one example's gradient: `variance` · hᵢ^`exponent` + `multiplicative` · hᵢ² θᵢ².

    The multiplicative part limits the learning rate to 2 / (hᵢ (1 + `multiplicative`/B)), by a slow divergence.
    """

    variance: float = 10.0
    exponent: float = 1.0
    multiplicative: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SaturatingMetric:
    """A metric `name` = `floor` + `scale` · (L / (L + `half`))^`power` of the loss L, as error rates saturate."""

    name: str = "val/error"
    floor: float = 0.02
    scale: float = 0.9
    half: float = 1.5
    power: float = 0.7

    def of_loss(self, loss: float) -> float:
        """The metric at a loss; saturated at an infinite one."""
        if loss == 0.0:
            return self.floor
        return float(self.floor + self.scale * (1.0 / (1.0 + self.half / loss)) ** self.power)

    def loss_at(self, value: float) -> float:
        """The loss at which the metric is `value`."""
        share = ((value - self.floor) / self.scale) ** (1.0 / self.power)
        return float(self.half * share / (1.0 - share))


@dataclass(frozen=True, kw_only=True)
class LearningRateMap:
    """The learning rate that acts, at the start: `scale` · lr^`exponent` · (B / `reference_batch`)^`batch_exponent`.

    Later rates keep their ratio to that at the start, so that a decay by 0.1 is one by 0.1. `batch_exponent` 0.5 with
    `exponent` 1 makes the best learning rate behave as Adam's does.
    """

    scale: float = 1.0
    exponent: float = 1.0
    batch_exponent: float = 0.0
    reference_batch: float = 64.0

    def __call__(self, learning_rate: Any, batch: float) -> Any:
        """The acting learning rate (a number or an array)."""
        return self._factor(batch) * learning_rate**self.exponent

    def inverse(self, acting: Any, batch: float) -> Any:
        """The learning rate that acts as `acting`."""
        return (acting / self._factor(batch)) ** (1.0 / self.exponent)

    def _factor(self, batch: float) -> float:
        return float(self.scale * (batch / self.reference_batch) ** self.batch_exponent)


@dataclass(frozen=True, kw_only=True)
class Sharpening:
    """All curvatures grow by 1 + (`factor` − 1) τ / (τ + `time`) at an unchanged loss, with τ = Σ η / (1 − μ).

    With noise in proportion to the curvature that is a learning rate that grows by as much.
    """

    factor: float = 1.0
    time: float = 100.0

    def at(self, tau: Floats) -> Floats:
        """The growth at `tau`."""
        return np.asarray(1.0 + (self.factor - 1.0) * tau / (tau + self.time))


@dataclass(frozen=True, kw_only=True)
class RunNoise:
    """Standard deviations of logarithms, each with median one: how fast a run learns, its level, each evaluation."""

    speed: float = 0.04
    level: float = 0.015
    evaluation: float = 0.01


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of a step: `base_seconds` · f(B / `saturation_batch`) + `sync_seconds`.

    `shape` "kinked": f(x) = max(1, x), devices that are idle below saturation; "affine": f(x) = 1 + x.
    """

    base_seconds: float = 1.0
    saturation_batch: float = 256.0
    sync_seconds: float = 0.1
    shape: Literal["kinked", "affine"] = "kinked"

    def __call__(self, batch: float) -> float:
        """Seconds of one step."""
        load = batch / self.saturation_batch
        factor = max(1.0, load) if self.shape == "kinked" else 1.0 + load
        return self.base_seconds * factor + self.sync_seconds


@dataclass(frozen=True, kw_only=True)
class SimulatedWorkload:
    """A noisy quadratic model that trains as a real workload does.

    Args:
        target: value of the metric to reach.
        metric: the metric of the target, as a function of the loss; None: the loss itself, `val/loss`.
        train_examples: examples in an epoch. Nothing else depends on it: no example is seen twice.
    """

    target: float
    spectrum: Spectrum = field(default_factory=Spectrum)
    gradient_noise: GradientNoise = field(default_factory=GradientNoise)
    metric: SaturatingMetric | None = None
    learning_rate: LearningRateMap = field(default_factory=LearningRateMap)
    sharpening: Sharpening = field(default_factory=Sharpening)
    run_noise: RunNoise = field(default_factory=RunNoise)
    step_time: StepTime = field(default_factory=StepTime)
    train_examples: int = 50_000

    @property
    def metric_name(self) -> str:
        """The metric that the target is about."""
        return self.metric.name if self.metric else LOSS

    def objective(self, minimize: Goal) -> Objective:
        """Reach the target at the least cost."""
        return Objective(metric=self.metric_name, direction="minimize", target=self.target, minimize=minimize)

    def metric_of_loss(self, loss: float) -> float:
        """The metric of the target at a loss."""
        return self.metric.of_loss(loss) if self.metric else loss

    def loss_at(self, metric: float) -> float:
        """The loss at which the metric of the target has a value."""
        return self.metric.loss_at(metric) if self.metric else metric

    @cached_property
    def modes(self) -> Modes:
        """The eigendirections, binned."""
        spectrum, noise = self.spectrum, self.gradient_noise
        index = np.arange(1, spectrum.dimension + 1, dtype=float)
        curvature, initial = index**-spectrum.exponent, index**-spectrum.initial_exponent
        exact = min(EXACT_MODES, spectrum.dimension)
        edges = np.geomspace(exact, spectrum.dimension, max(spectrum.modes - exact, 0) + 1)
        starts = np.unique([*range(exact), *np.round(edges).astype(int)])
        starts = starts[starts < spectrum.dimension]
        multiplicity = np.add.reduceat(np.ones_like(index), starts)
        mean_curvature = np.add.reduceat(curvature, starts) / multiplicity
        return Modes(
            curvature=mean_curvature,
            multiplicity=multiplicity,
            gradient_variance=noise.variance * mean_curvature**noise.exponent,
            # Weighted, so that the loss before the first step is exact.
            initial=np.add.reduceat(curvature * initial, starts) / (multiplicity * mean_curvature),
            multiplicative=noise.multiplicative,
        )

    @cached_property
    def initial_loss(self) -> float:
        """The expected loss before the first step."""
        return float(self.modes.loss(self.modes.initial_moments(heavy_ball=False)))


def workload_from_table(table: Mapping[str, Any], *, source: str) -> SimulatedWorkload:
    """A workload from a TOML table with the options as keys, those of its parts in tables of their own.

    Raises:
        WorkloadError: an unknown or missing key, or a value of a wrong type; `source` is what the message calls it.
    """
    workload: SimulatedWorkload = _from_table(SimulatedWorkload, table, source)
    return workload


def _from_table(kind: Any, table: Mapping[str, Any], source: str) -> Any:
    fields = {f.name: f for f in dataclasses.fields(kind)}
    hints = get_type_hints(kind)
    for key in table:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            hint = f"did you mean `{near[0]}`?" if near else "known here: " + ", ".join(f"`{k}`" for k in fields)
            raise WorkloadError(f"{source}: unknown key `{key}`: {hint}")
    required = [n for n, f in fields.items() if f.default is f.default_factory is dataclasses.MISSING]
    for name in required:
        if name not in table:
            raise WorkloadError(f"{source}: `{name}` is missing")
    return kind(**{key: _value(hints[key], value, f"{source}.{key}") for key, value in table.items()})


def _value(hint: Any, value: Any, source: str) -> Any:
    options = [o for o in get_args(hint) or (hint,) if o is not type(None)]
    if dataclasses.is_dataclass(options[0]):
        if not isinstance(value, Mapping):
            raise WorkloadError(f"{source} = {value!r}: must be a table")
        return _from_table(options[0], value, source)
    if isinstance(options[0], str):
        if value not in options:
            raise WorkloadError(f"{source} = {value!r}: must be one of {', '.join(options)}")
        return value
    kinds = (int, float) if options[0] is float else (options[0],)
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise WorkloadError(f"{source} = {value!r}: must be of type {options[0].__name__}")
    return options[0](value)
