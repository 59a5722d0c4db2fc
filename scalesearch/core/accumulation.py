"""In how many micro-batches a replica takes its share of a global batch, so that it fits in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class AsFewAsFit:
    """As few micro-batches as fit, with `largest_share` examples on a replica at a time; None: all fits, as far as is known.

    With `only_measured`, batches that do not fit at once are trained to learn of their steps, but not recommended.
    """

    replicas: int
    largest_share: int | None = None
    only_measured: bool = False

    def at(self, global_batch_size: int) -> int:
        """Micro-batches per replica and step."""
        if self.largest_share is None:
            return 1
        return micro_batches_that_fit(global_batch_size, replicas=self.replicas, largest_share=self.largest_share)

    def limited_to(self, share: int) -> AsFewAsFit:
        """With no more than `share` examples on a replica at a time."""
        return replace(self, largest_share=min(share, self.largest_share or share))


Accumulation = int | AsFewAsFit
"""Always so many micro-batches, or as few as fit."""


def micro_batches_that_fit(global_batch_size: int, *, replicas: int, largest_share: int) -> int:
    """The least number of equal micro-batches per replica whose examples fit; every size fits one by one."""
    share = global_batch_size // replicas
    return next((n for n in range(max(-(-share // largest_share), 1), share) if share % n == 0), max(share, 1))
