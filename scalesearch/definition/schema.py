"""The sections of a study definition. Every field is documented where it is declared."""

from __future__ import annotations

import importlib.util
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    field_validator,
    model_validator,
)

from scalesearch.core.budget import Budget
from scalesearch.core.quantities import Amount, parse_amount, parse_bytes, parse_seconds

Seconds = Annotated[float, BeforeValidator(parse_seconds), Field(gt=0)]
Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0)]
ExampleCount = Annotated[Amount, BeforeValidator(parse_amount), PlainSerializer(str)]
Factor = Annotated[float, Field(gt=0, le=1)]


class Section(BaseModel):
    """A TOML table: unknown keys are refused, values are of the type that is asked for and cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Bounds(Section):
    """`{ low = …, high = … }` with 0 < low ≤ high."""

    low: float = Field(gt=0)
    high: float = Field(gt=0)
    scale: Literal["log"] = "log"
    """How the interval is searched; documents itself, since these quantities are searched logarithmically."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"`low <= high` must hold, but got low = {self.low:g}, high = {self.high:g}")
        return self


class MomentumBounds(Section):
    """`{ low = 0.5, high = 0.999 }`, searched in log(1 − momentum) as in Shallue et al. 2018."""

    low: float = Field(ge=0, lt=1)
    high: float = Field(ge=0, lt=1)
    scale: Literal["reverse_log"] = "reverse_log"

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"`low <= high` must hold, but got low = {self.low:g}, high = {self.high:g}")
        return self


class BatchSizeBounds(Section):
    """`{ low = 8, high = 8192 }`: powers of two; with `multiple_of`, its multiples."""

    low: int = Field(ge=1)
    high: int = Field(ge=1)
    multiple_of: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"`low <= high` must hold, but got low = {self.low}, high = {self.high}")
        if self.multiple_of is None and (self.low & (self.low - 1) or self.high & (self.high - 1)):
            raise ValueError(
                f"without `multiple_of`, low and high must be powers of two, but got {self.low} and {self.high}"
            )
        return self


class AmountBounds(Section):
    """`{ low = "0.1 epochs", high = "20 epochs" }`: an interval of training examples."""

    low: ExampleCount
    high: ExampleCount


class WorkloadSection(Section):
    """What is trained."""

    name: str
    """A built-in workload (`scalesearch workloads` lists them) or `"package.module:name"` of your own."""
    optimizer: Literal["sgd", "momentum", "nesterov", "adam", "adamw", "workload"] = "momentum"
    """`workload` takes the optimizer that the workload itself builds."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the workload, for example `{ hidden_units = 512 }`."""


class ObjectiveSection(Section):
    """What counts as success, and what is to be small by then."""

    metric: str
    """`val/` and a metric of the workload, for example `val/classification_error`, or `val/loss`."""
    direction: Literal["minimize", "maximize"] | None = None
    """Whether less or more of the metric is better; by default what the workload says."""
    target: float | Literal["baseline"] | None = None
    """The value to become strictly better than; `"baseline"`: what the baseline holds at the end of a full-length
    trial. Not needed with `minimize = "metric"`."""
    minimize: Literal["seconds", "steps", "examples", "metric"] = "seconds"
    """Training seconds, optimizer steps or examples to target; or the metric itself at the end of `max_examples`
    (maximised if more of it is better)."""
    crossing: Literal["smoothed", "first"] = "smoothed"
    """Where the target counts as reached. `smoothed`: where the median of three evaluations is better than it, known one
    evaluation later; `first`: at the first evaluation that is, however lucky (Shallue et al. 2018)."""

    @model_validator(mode="after")
    def _target_fits_goal(self) -> Self:
        for key in ("target", "crossing"):
            if self.minimize == "metric" and key in self.model_fields_set:
                raise ValueError(f'with `minimize = "metric"` there is no target: remove `{key}`')
        if self.minimize != "metric" and self.target is None:
            raise ValueError(f'`minimize = "{self.minimize}"` needs a `target`')
        return self


KEYS_OF_SCHEDULES = {
    "piecewise": ("decays", "decay_factor", "boundaries"),
    "linear": ("decay_examples", "end_factor"),
}


class ScheduleSection(Section):
    """The shape of the learning rate over the run."""

    kind: Literal["constant", "piecewise", "linear"] = "constant"
    decays: int = Field(default=1, ge=0, le=3)
    """piecewise: how many decay boundaries."""
    decay_factor: Factor | Bounds = 0.1
    """piecewise: the rate is multiplied by this at every boundary."""
    boundaries: AmountBounds | None = None
    """piecewise: where boundaries may lie. One past `max_examples` is no decay."""
    decay_examples: AmountBounds | ExampleCount | None = None
    """linear: over how many examples the rate falls."""
    end_factor: Annotated[float, Field(ge=0, le=1)] | Bounds = Field(default_factory=lambda: Bounds(low=1e-4, high=0.1))
    """linear: the final rate over the initial one."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind == "piecewise" and self.decays > 0 and self.boundaries is None:
            raise ValueError('`kind = "piecewise"` needs `boundaries = { low = …, high = … }`')
        if self.kind == "linear" and self.decay_examples is None:
            raise ValueError('`kind = "linear"` needs `decay_examples`')
        return self

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        """Refuse what would be ignored, such as boundaries without a kind."""
        for kind, keys in KEYS_OF_SCHEDULES.items():
            for key in keys:
                if kind != self.kind and key in self.model_fields_set:
                    raise ValueError(f'`{key}` is of `kind = "{kind}"`, but the kind is "{self.kind}"')
        return self


class SearchSection(Section):
    """Where to search, for what, and with what."""

    aim: Literal["optimum", "curve"] = "optimum"
    """`optimum`: the parameters of least cost to target. `curve`: steps to target at every batch size, with the best
    parameters at each; the optimum comes with it, for several times the budget."""
    global_batch_size: BatchSizeBounds
    """Examples per optimizer step over all replicas. Sizes that the replicas cannot share equally are left out."""
    learning_rate: Bounds
    momentum: Annotated[float, Field(ge=0, lt=1)] | MomentumBounds | None = None
    """Fixed or searched; for Adam it is β1. By default 0.9 for optimizers that have one."""
    schedule: ScheduleSection = Field(default_factory=ScheduleSection)
    sampler: Literal["scaling", "tpe", "random", "qmc", "cmaes"] = "scaling"
    """scalesearch's own, a model of learning curves; or Optuna's multivariate TPE, random search, a scrambled Sobol
    sequence, or CMA-ES (needs the extra `[cmaes]`). A study that minimises its metric has no cost to target to model:
    there, `scaling` means TPE."""

    @model_validator(mode="after")
    def _sampler_fits_aim(self) -> Self:
        if self.aim == "curve" and self.sampler != "scaling":
            raise ValueError(
                f'`aim = "curve"` needs `sampler = "scaling"`, but got `sampler = "{self.sampler}"`: only scaling can plan '
                'over all batch sizes; use it, or `aim = "optimum"`'
            )
        return self

    @field_validator("sampler", mode="after")
    @classmethod
    def _installed(cls, value: str) -> str:
        if value == "cmaes" and importlib.util.find_spec("cmaes") is None:
            raise ValueError(
                "needs the package cmaes, which is not installed: run pip install 'scalesearch[cmaes]', or cmaes itself"
            )
        return value


class BaselineSection(Section):
    """What you run today: tried first, and what the recommendation is compared with."""

    global_batch_size: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    momentum: float | None = Field(default=None, ge=0, lt=1)
    boundaries: Annotated[tuple[ExampleCount, ...], Field(strict=False)] = ()
    """Decay boundaries, for example `["5 epochs", "8 epochs"]` or `["50 %", "75 %"]` (of `max_examples`)."""
    decay_factor: Factor = 0.1
    decay_examples: ExampleCount | None = None
    """For a baseline with linear decay, together with `end_factor`."""
    end_factor: float | None = Field(default=None, ge=0, le=1)

    @model_validator(mode="after")
    def _one_schedule(self) -> Self:
        if (self.decay_examples is None) != (self.end_factor is None):
            raise ValueError("`decay_examples` and `end_factor` describe one linear decay: give both or neither")
        if self.decay_examples is not None and self.boundaries:
            raise ValueError("give either `boundaries` or a linear decay, not both")
        return self


class TrialSection(Section):
    """One training run."""

    max_examples: ExampleCount
    """Full length of a trial, for example `"20 epochs"`; in examples or epochs."""
    first_evaluation: ExampleCount = Amount(0.1, "epochs")
    """Where the first evaluation lies (besides the one before training)."""
    evaluation_ratio: float = Field(default=1.05, gt=1.0, le=2.0)
    """Examples at one evaluation over those at the one before it, near the target and after a decay."""

    @field_validator("max_examples", mode="after")
    @classmethod
    def _absolute(cls, value: Amount) -> Amount:
        if value.unit == "%":
            raise ValueError('percentages are of `max_examples` itself: give it as "20 epochs" or "5e6 examples"')
        return value


class BudgetSection(Section):
    """What the study may spend in all; the first limit to run out ends it. At least one is needed."""

    examples: float | None = Field(default=None, gt=0)
    """Training examples over all trials."""
    epochs: float | None = Field(default=None, gt=0)
    device_time: Seconds | None = None
    """Time on devices, each replica counted, for example `"2h"`."""
    wall_clock: Seconds | None = None
    """Time that the study runs, for example `"10m"`."""
    trials: int | None = Field(default=None, ge=1)

    def budget(self) -> Budget:
        """The same as a core `Budget`."""
        return Budget(
            examples=self.examples,
            epochs=self.epochs,
            device_seconds=self.device_time,
            wall_clock_seconds=self.wall_clock,
            trials=self.trials,
        )


class RunSection(Section):
    """On what it runs."""

    replicas: Annotated[int, Field(ge=1)] | Literal["all"] = "all"
    """Devices per trial. `"all"`: every visible GPU; without GPUs, one CPU replica."""
    accumulation: Annotated[int, Field(ge=1)] | Literal["auto", "measure"] = 1
    """Micro-batches per replica and step: their gradients are accumulated, for batches that do not fit at once. `"auto"`: as
    few as fit, at each batch size. `"measure"`, for `aim = "curve"`: the same, but larger batches than fit at once are only
    measured, and not recommended."""
    seed: int = Field(default=0, ge=0)
    no_progress_limit: Seconds = 900.0
    """A worker that reports nothing for so long is replaced, and its trial ends as CRASHED."""
    snapshots_limit: Bytes = 4 * 2**30
    """What the snapshots of finished trials may take on disk, for example `"4 GiB"`: trials that differ in later decays
    only go on from them. Of more, those are removed that were not used for longest; with 0, none is kept."""


class StudyDefinition(Section):
    """A study as its TOML file describes it."""

    name: str | None = None
    """Name of the study; by default the file's name. The number of replicas is appended to it."""
    workload: WorkloadSection
    objective: ObjectiveSection
    search: SearchSection
    baseline: BaselineSection | None = None
    trial: TrialSection
    budget: BudgetSection = Field(default_factory=BudgetSection)
    run: RunSection = Field(default_factory=RunSection)

    @model_validator(mode="after")
    def _baseline_for_target(self) -> Self:
        if self.objective.target == "baseline" and self.baseline is None:
            raise ValueError('`objective.target = "baseline"` needs a [baseline] section')
        return self

    @model_validator(mode="after")
    def _measured_for_curve(self) -> Self:
        if self.run.accumulation == "measure" and self.search.aim != "curve":
            raise ValueError(
                '`run.accumulation = "measure"` is for `search.aim = "curve"`: a search for the optimum would spend its '
                'budget on batches that it may not recommend; use "auto" if it may'
            )
        return self

    @model_validator(mode="after")
    def _target_for_curve(self) -> Self:
        if self.search.aim == "curve" and self.objective.minimize == "metric":
            raise ValueError(
                '`search.aim = "curve"` measures steps to target, but with `objective.minimize = "metric"` there is no '
                'target: minimize "seconds", "steps" or "examples"'
            )
        return self

    def fingerprint(self) -> dict[str, Any]:
        """All that must not change while a study is continued, flat: {dotted key: value}.

        Left out: the budget, which may grow; the name, which says which study is continued; the replicas, as "all"
        may be what was a number, so that the number in use has to be compared; the aim, as what was measured for one
        serves the other; what only guards the run or saves time; and the rule of the crossing where nothing is crossed.
        """
        without_target = {"crossing"} if self.objective.minimize == "metric" else set()
        dump = self.model_dump(
            mode="json",
            exclude={
                "budget": True,
                "name": True,
                "objective": without_target,
                "search": {"aim"},
                "run": {"replicas", "no_progress_limit", "snapshots_limit"},
            },
        )
        return _flat(dump)


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    parts = (_flat(v, f"{prefix}.{k}" if prefix else str(k)) for k, v in value.items())
    return {k: v for part in parts for k, v in part.items()}
