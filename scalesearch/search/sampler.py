"""Optuna's samplers by the names that study definitions use."""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np
import optuna

SamplerName = Literal["scaling", "tpe", "random", "qmc"]


def optuna_sampler(name: Literal["tpe", "random", "qmc"], *, seed: int, position: int) -> optuna.samplers.BaseSampler:
    """Optuna's sampler for the trial at `position` (from 0) in a study with `seed`.

    A fresh one for every trial, seeded by both: the points do not repeat when a study is continued, and are the same
    as if it had never stopped. The Sobol sequence keeps its seed, as its position is kept in the study.
    """
    trial_seed = int(np.random.SeedSequence((seed, position)).generate_state(1)[0])
    random = optuna.samplers.RandomSampler(seed=trial_seed)
    if name == "random":
        return random
    if name == "tpe":
        return optuna.samplers.TPESampler(seed=trial_seed)
    with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
        # Until a first trial has told it the space, it takes independent points.
        return optuna.samplers.QMCSampler(
            scramble=True, seed=seed, independent_sampler=random, warn_independent_sampling=False
        )
