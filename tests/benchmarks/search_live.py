"""Real workloads for the benchmark of the search: trained by our engine, paid for in examples and steps."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import os
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search_kept import kept
from search_truth import Truth, regrets, truth

import scalesearch
from scalesearch.core.evaluation import EvaluationPlan
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Goal, Measurement, Objective
from scalesearch.core.schedule import Constant, Piecewise, Schedule
from scalesearch.core.simulate import Optimum

if TYPE_CHECKING:
    from scalesearch.training.engine import MirroredTrainer

PROBLEMS = Path(__file__).with_name("search_live.toml")
TRUTHS = Path(__file__).with_name("search_live_truth.json")

_PACKAGE = Path(scalesearch.__file__).parent
# What a run depends on, besides its problem.
_SOURCES = [
    *sorted(_PACKAGE.glob("training/*.py")),
    *sorted(_PACKAGE.glob("workloads/*.py")),
    *(_PACKAGE / "core" / f"{name}.py" for name in ("evaluation", "results", "schedule", "stopping")),
    *(Path(__file__).with_name(f"search_{name}.py") for name in ("live_workloads", "workloads")),
]
_DIGEST = hashlib.sha256(b"".join(p.read_bytes() for p in _SOURCES)).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Expert:
    """A narrow box that holds the optimum. Boundaries are shares of `max_examples`, the length of a trial."""

    max_examples: int
    global_batch_size: tuple[int, int]
    learning_rate: tuple[float, float]
    boundaries: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class LiveCase:
    """A real workload and how it is searched; the keys of search_live.toml, which says what they mean."""

    name: str
    optimizer: str
    metric: str
    target: float
    step_examples: int
    expert: Expert
    workload: str = ""
    options: tuple[tuple[str, Any], ...] = ()
    momentum: float | None = None
    decays: int = 2
    decay_factor: float = 0.1
    fresh_seeds: int = 8
    held_out: bool = False

    minimize: Goal = "seconds"  # those of `step_seconds`

    @property
    def objective(self) -> Objective:
        return Objective(metric=self.metric, direction="minimize", target=self.target, minimize=self.minimize)

    @property
    def train_examples(self) -> int:
        return self._trainer()[1]

    @property
    def fingerprint(self) -> str:
        """Of all that a run's cost to target depends on, except for the code."""
        free = ("expert", "fresh_seeds", "held_out")
        others = [(f.name, getattr(self, f.name)) for f in dataclasses.fields(self) if f.name not in free]
        return hashlib.sha256(repr((others, self.objective.crossing)).encode()).hexdigest()[:16]

    def cost_per_step(self, batch: int) -> float:
        return float(self.step_examples + batch)

    step_seconds = cost_per_step

    def train(self, parameters: Parameters, *, seed: int, plan: EvaluationPlan) -> Iterator[Measurement]:
        """Measurements whose seconds are those of `step_seconds`."""
        trainer, _ = self._trainer()
        measured = trainer.train(parameters, seed=seed, plan=plan)
        return priced(measured, self.step_seconds(parameters.global_batch_size))

    def _trainer(self) -> tuple[MirroredTrainer, int]:
        return _trainer(self.workload, self.options, self.optimizer)


def priced(measured: Iterable[Measurement], step_seconds: float) -> Iterator[Measurement]:
    """The same measurements, as if each step had taken `step_seconds` and nothing else any time."""
    for now in measured:
        seconds = now.step * step_seconds
        yield replace(now, train_seconds=seconds, elapsed_seconds=seconds)


def live_cases(names: Sequence[str], path: Path = PROBLEMS) -> list[LiveCase]:
    """These problems of a file in the format of search_live.toml."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    if unknown := [n for n in names if n not in tables]:
        raise SystemExit(f"{path.name} has no {', '.join(unknown)}; it has {', '.join(tables)}")
    return [_case(name, tables[name], source=f"{path.name}: {name}") for name in names]


def _case(name: str, table: dict[str, Any], *, source: str) -> LiveCase:
    _check_keys(LiveCase, {"name", "minimize"}, table, source)
    _check_keys(Expert, set(), table["expert"], f"{source}.expert")
    box: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in table.pop("expert").items()}
    options = tuple(sorted(table.pop("options", {}).items()))
    return LiveCase(**{"name": name, "workload": name, "options": options, **table, "expert": Expert(**box)})


def _check_keys(kind: Any, internal: set[str], table: Mapping[str, Any], source: str) -> None:
    fields = {f.name: f for f in dataclasses.fields(kind) if f.name not in internal}
    for key in table:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            raise SystemExit(f"{source}: unknown key `{key}`" + (f": did you mean `{near[0]}`?" if near else ""))
    for field in fields.values():
        if field.default is dataclasses.MISSING and field.name not in table:
            raise SystemExit(f"{source}: `{field.name}` is missing")


@lru_cache(maxsize=4)
def _trainer(workload: str, options: tuple[tuple[str, Any], ...], optimizer: str) -> tuple[MirroredTrainer, int]:
    """A trainer that all trials and studies of this process use again, and the number of its training examples."""
    # Read by TensorFlow as it starts. One thread: the other cores are busy, and sums do not depend on how they are cut.
    os.environ.update(TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="1", TF_CPP_MIN_LOG_LEVEL="2")
    import tensorflow as tf

    from scalesearch.training.engine import MirroredTrainer
    from scalesearch.workloads import load_workload

    tf.config.set_visible_devices([], "GPU")
    made = load_workload(workload, dict(options))
    data = made.load_data()
    return MirroredTrainer(made, data, optimizer=optimizer, devices=["/device:CPU:0"]), len(data.train)


@truth.register
def stored_truth(case: LiveCase, path: Path = TRUTHS) -> Truth:
    """What `--make-truth` found."""
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if case.name not in stored:
        raise SystemExit(f"{path.name} has no {case.name}: run `search.py --make-truth {case.name}` once")
    found = stored[case.name]
    if found["fingerprint"] != case.fingerprint:
        raise SystemExit(
            f"{path.name}: {case.name} was made for another problem than that of {PROBLEMS.name}: "
            f"run `search.py --make-truth {case.name}` again"
        )
    return truth_from_json(case, found)


def truth_from_json(case: LiveCase, found: Mapping[str, Any]) -> Truth:
    """The truth of an entry of the file."""
    curve = {o.parameters.global_batch_size: o for o in (_optimum(case, row) for row in found["curve"])}
    return Truth(
        critical_batch=min(o.examples for o in curve.values()) / min(o.steps for o in curve.values()),
        curve=curve,
        best=parameters_from_json(case, found["best"]),
        unit=found["mean_cost"],
        misses=found["misses"],
        log_cost_sd=found["log_cost_sd"],
    )


def _optimum(case: LiveCase, row: Mapping[str, Any]) -> Optimum:
    parameters = parameters_from_json(case, row)
    seconds = row["steps"] * case.step_seconds(parameters.global_batch_size)
    return Optimum(parameters=parameters, steps=row["steps"], seconds=seconds)


def parameters_from_json(case: LiveCase, row: Mapping[str, Any]) -> Parameters:
    """Parameters from `global_batch_size`, `learning_rate` and `boundaries`."""
    rate, boundaries = row["learning_rate"], tuple(row["boundaries"])
    schedule: Schedule = Constant(learning_rate=rate)
    if boundaries:
        schedule = Piecewise(learning_rate=rate, decay_factor=case.decay_factor, boundaries=boundaries)
    return Parameters(global_batch_size=row["global_batch_size"], schedule=schedule, momentum=case.momentum)


def parameters_to_json(parameters: Parameters) -> dict[str, Any]:
    """The reverse."""
    return {
        "global_batch_size": parameters.global_batch_size,
        "learning_rate": float(f"{parameters.learning_rate:.4g}"),
        "boundaries": list(parameters.schedule.boundaries),
    }


@regrets.register
def _(case: LiveCase, parameters: Parameters, seeds: Sequence[int], *, unit: float) -> list[float]:
    """The same, each run kept in the temporary folder, as methods often recommend what they have before."""
    return [_kept_regret(case, parameters, seed, unit=unit) for seed in seeds]


def _kept_regret(case: LiveCase, parameters: Parameters, seed: int, *, unit: float) -> float:
    key = hashlib.sha256(f"{_DIGEST} {case.fingerprint} {parameters!r} {seed} {unit}".encode()).hexdigest()[:24]

    def find_out() -> str:
        [regret] = regrets.dispatch(object)(case, parameters, [seed], unit=unit)
        return repr(regret)

    return float(kept(Path(tempfile.gettempdir()) / "scalesearch-live-runs" / key, find_out))
