"""One point of the search space, in natural units."""

from __future__ import annotations

from dataclasses import dataclass

from scalesearch.core.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """What a training run is given.

    `global_batch_size` is the examples per optimizer step over all replicas; each replica takes
    global_batch_size / replicas / accumulation of them at a time. `momentum` is None for optimizers without one
    (for Adam it is β1).
    """

    global_batch_size: int
    schedule: Schedule
    momentum: float | None = None
    accumulation: int = 1

    @property
    def learning_rate(self) -> float:
        """The learning rate that the schedule starts with."""
        return self.schedule.learning_rate

    @property
    def effective_learning_rate(self) -> float:
        """learning rate / (1 − momentum) (Shallue et al. 2018, §2.2)."""
        return self.learning_rate / (1.0 - (self.momentum or 0.0))

    def per_replica_batch_size(self, replicas: int) -> int:
        """Examples that one replica processes at a time."""
        return self.global_batch_size // replicas // self.accumulation
