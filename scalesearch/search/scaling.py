"""`ScalingSampler`: the planner of `core.planner` as an Optuna sampler."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from scalesearch.core.axis import Axis
from scalesearch.core.parameters import Parameters
from scalesearch.core.proposal import Proposal
from scalesearch.core.results import Cost, Measurement, Objective, Outcome, Reached, TrialResult
from scalesearch.core.retune import AnyPlanner
from scalesearch.core.space import SearchSpace
from scalesearch.search.pruner import CAP
from scalesearch.search.records import PARAMETERS, WHY

PROPOSED = "parameters"  # user attribute
History = Callable[[optuna.Study], Sequence[TrialResult]]
_ASKING = Lock()  # threads ask one after another, so that each sees what the others were given


class ScalingSampler(BaseSampler):
    """Propose the trial that a planner expects to gain most from, per cost of finding out.

    Every trial gets the user attributes `cap`, the cost after which to stop it (None: run it in full; `CappingPruner`
    observes it), and `why`. In a script of your own, return the cost to target, report the metric at the examples seen,
    and prune what does not reach the target:

    ```python
    space = SearchSpace(
        batch_sizes=BatchSizes(low=16, high=1024, multiple_of=None, divisor=1),
        learning_rate=Interval(1e-3, 1.0),
        momentum=None,
        schedule=ConstantSpace(),
    )
    goal = Objective(metric="loss", direction="minimize", target=0.1, minimize="examples")
    planner = Planner(space=space, objective=goal, max_examples=100_000)
    study = optuna.create_study(sampler=ScalingSampler(planner), pruner=CappingPruner())

    def objective(trial):
        parameters = suggest(trial, space)
        for examples, loss in training(parameters):
            if loss < 0.1:
                return examples
            trial.report(loss, step=examples)
            if trial.should_prune():
                break
        raise optuna.TrialPruned()
    ```

    Several trials may be asked for before the first is told, also by threads (`n_jobs`): those that are running are
    accounted for. Only processes that ask within the same moment may get the same trial.

    Args:
        planner: what to search, and for what: a `Planner` for the optimum, a `CurvePlanner` for every batch size.
        history: the finished trials of a study; by default read from what the script reported.
    """

    def __init__(self, planner: AnyPlanner, *, history: History | None = None) -> None:
        self._planner = planner
        self._history = history or (lambda study: reported_trials(study, planner))
        self._independent = RandomSampler(seed=planner.seed)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All axes of the planner's space."""
        return distributions(self._planner.space)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The planner's proposal, unless the trial was queued with its parameters."""
        if "fixed_params" in trial.system_attrs:
            return {}
        with _ASKING:
            proposal = self._planner.propose(self._history(study), self._pending(study, trial))
            _keep(study, trial, proposal)
        # Where the edge rule has widened the space, beyond the given one.
        within = self._planner.space.reaching(proposal.parameters)
        return dict(within.coordinates(proposal.parameters))

    def _pending(self, study: optuna.Study, trial: FrozenTrial) -> list[Parameters]:
        """The parameters of the other trials that are running, as far as they have any yet."""
        running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        others = (_parameters(t, self._planner.space) for t in running if t.number != trial.number)
        return [parameters for parameters in others if parameters is not None]

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Parameters that are not the planner's are drawn at random. Raises ValueError for what the script cuts off."""
        if param_name in distributions(self._planner.space) and _is_proposed(trial):
            raise ValueError(
                f"the space was widened, and the {param_name} that is proposed lies beyond {param_distribution}: ask for "
                "parameters with `suggest(trial, space)`, or leave the planner's `limits` out"
            )
        return self._independent.sample_independent(study, trial, param_name, param_distribution)


def suggest(trial: optuna.Trial, space: SearchSpace) -> Any:
    """The parameters of a trial of `space`, in natural units (`core.parameters.Parameters`).

    Where `ScalingSampler` has widened the space, they may lie beyond `space`.
    """
    if isinstance(trial, optuna.Trial) and isinstance(trial.study.sampler, ScalingSampler):
        _ = trial.relative_params  # makes the sampler propose
    proposed = _kept(trial.user_attrs) if _is_proposed(trial) else None
    within = space if proposed is None else space.reaching(proposed)
    for name, distribution in distributions(within).items():
        if isinstance(distribution, IntDistribution):
            trial.suggest_int(name, distribution.low, distribution.high, log=distribution.log)
        elif isinstance(distribution, FloatDistribution):
            trial.suggest_float(name, distribution.low, distribution.high, log=distribution.log)
    return proposed or space.parameters(trial.params)


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """The axes of a space as Optuna distributions."""
    return {axis.name: _distribution(axis) for axis in space.axes()}


def reported_trials(study: optuna.Study, planner: AnyPlanner) -> list[TrialResult]:
    """The finished trials of a script that reports the metric at the examples seen and returns the cost to target."""
    finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL))
    measured = ((t, _parameters(t, planner.space)) for t in finished)
    return [_reported(t, parameters, planner) for t, parameters in measured if parameters is not None]


def _parameters(trial: FrozenTrial, space: SearchSpace) -> Parameters | None:
    """As they were proposed or, of a queued trial, as its coordinates say; None if it has none yet."""
    if (kept := _kept(trial.user_attrs)) is not None:
        return kept
    return space.parameters(trial.params) if {axis.name for axis in space.axes()} <= trial.params.keys() else None


def _is_proposed(trial: optuna.Trial | FrozenTrial) -> bool:
    """Whether the sampler proposed it, or one that it repeats."""
    return WHY in trial.user_attrs


def _kept(attributes: Mapping[str, Any]) -> Parameters | None:
    return PARAMETERS.validate_python(attributes[PROPOSED]) if PROPOSED in attributes else None


def _reported(trial: FrozenTrial, parameters: Parameters, planner: AnyPlanner) -> TrialResult:
    size = parameters.global_batch_size
    per_step = planner.cost_per_step([])(size)
    reached = _reached(trial, size, per_step, planner.objective)
    reports = dict(trial.intermediate_values)
    if reached is not None and planner.objective.target is not None:
        reports.setdefault(max(1, round(reached.examples)), planner.objective.target)
    measurements = tuple(
        Measurement(
            step=max(1, round(examples / size)) if examples else 0,
            examples=examples,
            train_seconds=examples / size * per_step,
            elapsed_seconds=examples / size * per_step,
            train_loss=value,
            metrics={planner.objective.metric: value},
        )
        for examples, value in sorted(reports.items())
    )
    if measurements and measurements[0].step > 0:  # the planner takes the first measurement as the one before training
        measurements = (_at_start(measurements[0]), *measurements)
    return TrialResult(
        number=trial.number,
        parameters=parameters,
        seed=trial.number,  # as good as any: a script's runs are taken for independent
        outcome=_outcome(trial, measurements, reached),
        reason="",
        cost=Cost(examples=measurements[-1].examples if measurements else 0),
        reached=reached,
        measurements=measurements,
        why=trial.user_attrs.get(WHY, ""),
    )


def _outcome(trial: FrozenTrial, measurements: Sequence[Measurement], reached: Reached | None) -> Outcome:
    if reached is not None:
        return Outcome.REACHED
    if not all(math.isfinite(m.train_loss) for m in measurements):
        return Outcome.DIVERGED
    return Outcome.CRASHED if trial.state is TrialState.FAIL else Outcome.CAPPED


def _at_start(first: Measurement) -> Measurement:
    return Measurement(
        step=0,
        examples=0,
        train_seconds=0.0,
        elapsed_seconds=0.0,
        train_loss=first.train_loss,
        metrics=first.metrics,
    )


def _reached(trial: FrozenTrial, size: int, per_step: float, objective: Objective) -> Reached | None:
    if trial.state is not TrialState.COMPLETE or trial.value is None or any(v > 0 for v in trial.constraints.values()):
        return None
    steps = trial.value / per_step
    return Reached(
        steps=steps,
        examples=steps * size,
        seconds=trial.value if objective.minimize == "seconds" else steps,
        evaluation_step=math.ceil(steps),
        evaluation_examples=math.ceil(steps) * size,
    )


def _keep(study: optuna.Study, trial: FrozenTrial, proposal: Proposal) -> None:
    # Exactly the point that is meant: its coordinates, rounded, may be another one, which would not count as a repeat.
    exact = PARAMETERS.dump_python(proposal.parameters, mode="json")
    attributes = {CAP: proposal.cap, WHY: proposal.why, PROPOSED: exact}
    for key, value in attributes.items():
        study._storage.set_trial_user_attr(trial._trial_id, key, value)
        trial.set_user_attr(key, value)  # the copy that the script and its pruner see


def _distribution(axis: Axis) -> BaseDistribution:
    if axis.integer:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return FloatDistribution(axis.low, axis.high, log=axis.log)
