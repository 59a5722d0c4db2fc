"""Optuna's samplers by the names that study definitions use."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

SamplerName = Literal["scaling", "tpe", "random", "qmc", "cmaes"]


def optuna_sampler(
    name: Literal["tpe", "random", "qmc", "cmaes"], *, seed: int, position: int
) -> optuna.samplers.BaseSampler:
    """Optuna's sampler for the trial at `position` (from 0) in a study with `seed`.

    A fresh one for every trial, seeded by both: the points do not repeat when a study is continued, and are the same
    as if it had never stopped. The Sobol sequence keeps its seed, as its position is kept in the study; so does the
    state of CMA-ES.
    """
    trial_seed = int(np.random.SeedSequence((seed, position)).generate_state(1)[0])
    random = optuna.samplers.RandomSampler(seed=trial_seed)
    if name == "random":
        return random
    if name == "tpe":
        return optuna.samplers.TPESampler(seed=trial_seed)
    if name == "cmaes":
        return _CmaEs(seed=trial_seed, position=position, independent_sampler=random)
    with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
        # Until a first trial has told it the space, it takes independent points.
        return optuna.samplers.QMCSampler(
            scramble=True, seed=seed, independent_sampler=random, warn_independent_sampling=False
        )


class _CmaEs(optuna.samplers.CmaEsSampler):
    """CMA-ES over the trials that reached the target, of which each generation needs a few.

    Optuna draws from the trial's number too, which an interrupted trial shifts: the position takes its place.
    """

    def __init__(self, *, seed: int, position: int, independent_sampler: optuna.samplers.BaseSampler) -> None:
        super().__init__(seed=seed, independent_sampler=independent_sampler, warn_independent_sampling=False)
        self._position = position

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        placed = copy.copy(trial)
        placed.number = self._position
        return super().sample_relative(study, placed, search_space)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """No warning that constraints are ignored: only pruned trials have one, and those are too."""
