"""Trials that begin as earlier ones did and decay elsewhere: only what is new of them has to be trained.

What they share is read from the record alone, never from what snapshots there are: a trial without its snapshot trains the
same anew, and a search that is continued proposes what it would have proposed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalesearch.core.parameters import Parameters
from scalesearch.core.prefix import last_common_step, seed_to_share, shared_steps
from scalesearch.core.results import TrialResult
from scalesearch.core.schedule_space import PiecewiseSpace
from scalesearch.core.space import SearchSpace

DRAWN = 60  # for each run
SPREAD = 0.4  # of a moved boundary, in nats
MOST = 3  # of one run: they all have its luck
LATEST = 0.9  # of the steps after which a run reached the target: what shares more of it shows the same again


@dataclass(frozen=True, kw_only=True)
class Forks:
    """Forks of the runs in `results`, with decay boundaries within the space."""

    space: SearchSpace
    results: Sequence[TrialResult]
    max_examples: int

    def draw(self, runs: Sequence[Parameters], rng: np.random.Generator) -> dict[Parameters, int]:
        """Forks of `runs`, and the steps that each saves; none in a space without boundaries."""
        if not isinstance(self.space.schedule, PiecewiseSpace):
            return {}
        open_runs = [run for run in runs if self._forked(run) < MOST]
        drawn = dict.fromkeys(self._moved(run, self.space.schedule, rng) for run in open_runs for _ in range(DRAWN))
        saved = {parameters: self.saved_steps(parameters) for parameters in drawn}
        return {parameters: steps for parameters, steps in saved.items() if steps}

    def saved_steps(self, parameters: Parameters) -> int:
        """How many steps of a trial have been trained; 0 if all that it could show was seen on the way."""
        earlier = [(r.parameters, r.seed) for r in self.results]
        seed = seed_to_share(parameters, earlier, max_examples=self.max_examples)
        trained = [r for r in self.results if r.seed == seed]
        for result in trained:
            if result.reached and shared_steps(result.parameters, parameters) > LATEST * result.reached.steps:
                return 0
        return max((last_common_step(r, parameters) for r in trained), default=0)

    def _forked(self, run: Parameters) -> int:
        """How many trials go on from one with the batch size and the rate of `run`: they have one seed."""
        seeds = Counter(r.seed for r in self.results if shared_steps(r.parameters, run) > 0)
        return max(seeds.values(), default=1) - 1

    def _moved(self, run: Parameters, space: PiecewiseSpace, rng: np.random.Generator) -> Parameters:
        """The same run up to one of its boundaries; that one and all later ones are moved."""
        at = space.coordinates(run.schedule)
        boundaries = [axis for axis in space.axes() if axis.name.startswith("decay_boundary")]
        for axis in boundaries[int(rng.integers(len(boundaries))) :]:
            step = SPREAD * rng.normal()
            at[axis.name] = axis.clip(at[axis.name] * np.exp(step) if axis.log else at[axis.name] + 0.5 * step)
        # Exactly the rate of the run: coordinates may round it.
        schedule = replace(space.schedule(run.learning_rate, at), learning_rate=run.learning_rate)
        return replace(run, schedule=schedule)
