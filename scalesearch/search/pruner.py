"""Adaptive capping: a trial that has already cost more than the best finished one cannot win."""

from __future__ import annotations

from collections.abc import Callable

import optuna
from optuna.pruners import BasePruner
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

CAP = "cap"  # user attribute of a trial


def last_reported_step(trial: FrozenTrial) -> float:
    """The step of the trial's last report, or 0 before the first."""
    return float(trial.last_step or 0)


def incumbent_cost(study: optuna.Study) -> float | None:
    """The lowest value of a complete and feasible trial, or None without one."""
    if study.direction != StudyDirection.MINIMIZE:
        raise ValueError("capping needs a study that minimises a cost, but this one maximises")
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    feasible = (t.value for t in complete if t.value is not None and all(v <= 0 for v in t.constraints.values()))
    return min(feasible, default=None)


class CappingPruner(BasePruner):
    """Stop a trial once it has cost more than the cheapest trial that reached the target, or than its own cap.

    The cap is what `ScalingSampler` gives a trial, in the unit that the study minimises. It may exceed the incumbent's
    cost, so that an unlucky run of better parameters can end.

    For studies that minimise a cost to target: a trial that reaches the target returns its cost, one that does not is
    pruned or violates a constraint. By default the cost so far is the step of `trial.report`, so report in the unit
    that the study minimises:

    ```python
    def objective(trial):
        learning_rate = trial.suggest_float("learning_rate", 1e-3, 1.0, log=True)
        for examples, error in training(learning_rate):
            if error < 0.1:
                return examples
            trial.report(error, step=examples)
            if trial.should_prune():
                raise optuna.TrialPruned()
        raise optuna.TrialPruned()

    study = optuna.create_study(pruner=CappingPruner())
    ```

    Args:
        margin: how much more than the incumbent a trial may cost, as a factor (≥ 1).
        cost: the cost so far of a running trial, in the unit of the study's values.
    """

    def __init__(self, *, margin: float = 1.0, cost: Callable[[FrozenTrial], float] = last_reported_step) -> None:
        if margin < 1.0:
            raise ValueError(f"`margin >= 1` must hold, but got {margin}")
        self._margin = margin
        self._cost = cost

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Whether `trial` has cost more than its cap or, without one, than `margin` times the incumbent."""
        if CAP in trial.user_attrs:
            cap = trial.user_attrs[CAP]
            return cap is not None and self._cost(trial) > cap
        return self.is_beaten(self._cost(trial), by=incumbent_cost(study))

    def is_beaten(self, cost: float, *, by: float | None) -> bool:
        """Whether a trial that has cost so much can no longer win against an incumbent (None: there is none)."""
        return by is not None and cost > self._margin * by
