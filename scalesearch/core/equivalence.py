"""Whether N replicas train as one does, and if not, which part of the workload is why.

The same steps are run on one replica and on N. Where they differ, they are run again with suspected parts of the workload
neutralised: first all, then all but one, so that each part that makes a difference by itself is found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# Relative to the update that the steps made. Rounding makes less than 1e-5 with plain gradients; what has another
# cause, more than 1e-2.
TOLERANCE = 1e-3


class Part(StrEnum):
    """A part of a workload that can depend on how the global batch is divided."""

    STATISTICS = "statistics"
    RANDOM = "random"
    OWN_LAYERS = "own layers"
    AUGMENTATION = "augmentation"
    LOSS = "loss"
    CLIPPING = "clipping"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckedRun:
    """A few steps on some number of replicas.

    `initial` and `final` are the trainable weights, `losses` the mean loss of each step; `parts` are those that the
    workload has, with what stands for them, such as the names of layers.
    """

    data_digest: str
    initial: tuple[Array, ...]
    final: tuple[Array, ...]
    losses: tuple[float, ...]
    parts: dict[Part, str]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How far two runs are apart: in the weights, relative to the update; in the loss, relative to it."""

    weights: float
    loss: float

    @property
    def agrees(self) -> bool:
        """Whether it is no more than rounding."""
        return self.weights <= TOLERANCE and self.loss <= TOLERANCE  # NaN does not agree


def difference(one: CheckedRun, other: CheckedRun) -> Difference:
    """Of two runs from the same initial weights, the first of which is the yardstick."""
    update = _norm([a - b for a, b in zip(one.final, one.initial, strict=True)])
    apart = _norm([a - b for a, b in zip(one.final, other.final, strict=True)])
    losses = np.array(one.losses), np.array(other.losses)
    scale = np.maximum(np.abs(losses[0]), 1e-12)
    return Difference(
        weights=apart / update if update > 0 else (0.0 if apart == 0 else float("inf")),
        loss=float(np.max(np.abs(losses[0] - losses[1]) / scale)),
    )


def same_start(one: CheckedRun, other: CheckedRun) -> bool:
    """Whether two runs began with the same weights."""
    return all(np.array_equal(a, b) for a, b in zip(one.initial, other.initial, strict=True))


def _norm(arrays: Sequence[Array]) -> float:
    return float(np.sqrt(sum(float(np.sum(np.square(a, dtype=np.float64))) for a in arrays)))


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a check of N replicas against one has found.

    Args:
        replicas, global_batch_size, learning_rate, steps: what was run.
        difference: of the workload as it is.
        same_data, same_start: whether both processes had the same examples in the same order, and the same initial weights.
        repeated: N replicas run twice; None as below.
        accumulated: N replicas and one that accumulates N micro-batches, which divides the batch in the same way.
        without_any: with all parts neutralised.
        with_one: with that part alone as it is, for each part of the workload.
        parts: what stands for each of them.

    What was not run, as there was nothing to explain any more, is None or empty.
    """

    replicas: int
    global_batch_size: int
    learning_rate: float
    steps: int
    difference: Difference
    same_data: bool = True
    same_start: bool = True
    repeated: Difference | None = None
    accumulated: Difference | None = None
    without_any: Difference | None = None
    with_one: Mapping[Part, Difference] = field(default_factory=dict)
    parts: Mapping[Part, str] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """Whether N replicas train as one does."""
        return self.same_data and self.same_start and self.difference.agrees

    @property
    def causes(self) -> tuple[Part, ...]:
        """The parts each of which makes a difference by itself, while there is none without them."""
        if self.without_any is None or not self.without_any.agrees:
            return ()
        return tuple(part for part, found in self.with_one.items() if not found.agrees)
