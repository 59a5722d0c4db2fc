"""Optuna's samplers by the names that study definitions use."""

from __future__ import annotations

from typing import Literal

import numpy as np
import optuna

SamplerName = Literal["tpe", "random", "qmc"]


def sampler(name: SamplerName, *, seed: int, trial_number: int) -> optuna.samplers.BaseSampler:
    """The sampler for trial `trial_number` of a study with `seed`.

    A fresh one for every trial, seeded by both: the points do not repeat when a study is continued, and are the same
    as if it had never stopped. The Sobol sequence keeps its seed, as its position is kept in the study.
    """
    if name == "qmc":
        # Independent sampling can only occur in the very first trial, before the space is known.
        return optuna.samplers.QMCSampler(scramble=True, seed=seed, warn_independent_sampling=False)
    trial_seed = int(np.random.SeedSequence((seed, trial_number)).generate_state(1)[0])
    if name == "random":
        return optuna.samplers.RandomSampler(seed=trial_seed)
    return optuna.samplers.TPESampler(seed=trial_seed)
