"""Measures seconds per step at a range of batch sizes, and the largest batch that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from scipy.stats import t as student

from scalesearch.core.parameters import Parameters
from scalesearch.core.profile import ProfilePoint, Tried
from scalesearch.core.schedule import Constant
from scalesearch.errors import OutOfMemory
from scalesearch.training.engine import MirroredTrainer, Steps
from scalesearch.training.memory import bounded_memory, forget_peak_bytes, peak_bytes

BLOCK_SECONDS = 0.03
LEAST_BLOCKS = 5
INPUT_BLOCKS = 5
CONFIDENCE = 0.95
GRANULARITY = 16  # the largest batch that fits is found to within 1/16 of itself


def largest_that_fits(
    trainer: MirroredTrainer,
    *,
    smallest: int,
    largest: int,
    too_large: int | None = None,
    momentum: float | None = None,
    limit_seconds: float = float("inf"),
) -> Iterator[Tried]:
    """Try per-replica batch sizes by taking a step: doubling from `smallest` up to `largest`, then bisecting.

    Running out of memory is an answer, and leaves the trainer as it was. Where the process dies of it all the same, the
    size that was announced last does not fit: go on with it as `too_large`. Nothing is begun that is likely to end after
    `limit_seconds`, which count from the end of the first step, as the first one compiles.
    """
    fits, ceiling = 0, min(too_large if too_large is not None else largest + 1, largest + 1)
    size, last_seconds, started = min(smallest, ceiling - 1), 0.0, None
    while fits < size < ceiling:
        if started is not None and perf_counter() - started + 2 * last_seconds > limit_seconds:
            return
        yield Tried(per_replica_batch_size=size)
        begun = perf_counter()
        fitted = _fits(trainer, size, momentum)
        seconds = perf_counter() - begun
        yield Tried(per_replica_batch_size=size, fits=fitted, seconds=seconds)
        last_seconds, started = (seconds, started) if started is not None else (0.0, perf_counter())
        fits, ceiling = (size, ceiling) if fitted else (fits, size)
        if not fits:
            size = size // 2
        elif 2 * fits < ceiling:
            size = 2 * fits
        elif ceiling == largest + 1:
            size = largest
        elif ceiling - fits > max(1, fits // GRANULARITY):
            size = (fits + ceiling) // 2
        else:
            return


def measure_steps(
    trainer: MirroredTrainer,
    *,
    sizes: Sequence[int],
    accumulations: Sequence[int] = (),
    momentum: float | None = None,
    precision: float,
    limit_seconds: float,
) -> Iterator[ProfilePoint]:
    """Time the steps of each per-replica batch size; a point is yielded anew each time it is known better.

    Blocks of steps go round the sizes in turn, so that a machine whose speed drifts is as fast or as slow for each. A
    size is done when its interval is within ± `precision`; all are when the time, compilation apart, is up. What is left
    of it after the sizes goes to `accumulations`, each measured at the size in the middle.
    """
    started = perf_counter()

    def left() -> float:
        return limit_seconds - (perf_counter() - started)

    clocks: list[_Clock] = []
    middle = sorted(sizes)[len(sizes) // 2]
    for size, accumulation in [(size, 1) for size in _ends_first(sizes)] + [(middle, a) for a in accumulations]:
        if len(clocks) >= 2 and left() < limit_seconds / 2:
            break
        compiles = not clocks or accumulation > 1 == clocks[-1].accumulation
        begun = perf_counter()
        clocks.append(_Clock.begin(trainer, size, accumulation, momentum))
        started += perf_counter() - begun if compiles else 0.0
        yield clocks[-1].point(trainer.replicas)
    while going := [c for c in clocks if not c.is_within(precision) and c.block_seconds < left()]:
        for clock in going:
            if clock.block_seconds < left():
                clock.time_a_block()
                yield clock.point(trainer.replicas)


def median_interval(seconds: Sequence[float]) -> tuple[float, float]:
    """95 % confidence interval of the median, by its standard error under robustly estimated normal noise."""
    median = float(np.median(seconds))
    if len(seconds) < 2:
        return 0.0, 2.0 * median
    deviation = 1.4826 * float(np.median(np.abs(np.asarray(seconds) - median)))
    half = 1.2533 * deviation / np.sqrt(len(seconds)) * student.ppf((1 + CONFIDENCE) / 2, len(seconds) - 1)
    return max(median - float(half), 0.0), median + float(half)


@dataclass
class _Clock:
    """The blocks of steps timed at one size."""

    steps: Steps
    size: int
    accumulation: int
    per_block: int
    memory_bytes: int | None
    seconds: list[float] = field(default_factory=list)
    input_seconds: list[float] = field(default_factory=list)

    @staticmethod
    def begin(trainer: MirroredTrainer, size: int, accumulation: int, momentum: float | None) -> _Clock:
        """Warm up, and time a first block."""
        forget_peak_bytes(trainer.devices[0])
        steps = trainer.steps(_parameters(trainer, size, accumulation, momentum), seed=0)
        per_block = max(1, round(BLOCK_SECONDS / _seconds_of(lambda: steps.take(1))))
        steps.fetch(1)
        clock = _Clock(steps, size, accumulation, per_block, peak_bytes(trainer.devices[0]))
        clock.time_a_block()
        return clock

    @property
    def block_seconds(self) -> float:
        """How long the next block is likely to take."""
        return self.seconds[-1] * self.per_block

    def time_a_block(self) -> None:
        self.seconds.append(_seconds_of(lambda: self.steps.take(self.per_block)) / self.per_block)
        if len(self.input_seconds) < INPUT_BLOCKS:
            self.input_seconds.append(_seconds_of(lambda: self.steps.fetch(self.per_block)) / self.per_block)

    def is_within(self, precision: float) -> bool:
        low, high = median_interval(self.seconds)
        return len(self.seconds) >= LEAST_BLOCKS and high - low <= 2 * precision * float(np.median(self.seconds))

    def point(self, replicas: int) -> ProfilePoint:
        median = float(np.median(self.seconds))
        fastest, tenth, fifth, *quartiles = np.percentile(self.seconds, (0, 10, 20, 25, 75))
        return ProfilePoint(
            replicas=replicas,
            per_replica_batch_size=self.size,
            accumulation=self.accumulation,
            step_seconds=median,
            interval=median_interval(self.seconds),
            undisturbed_seconds=float(tenth),
            undisturbed_error=float((fifth - fastest) / (2.0 * tenth)),
            spread=float(quartiles[1] - quartiles[0]) / median,
            blocks=len(self.seconds),
            steps=len(self.seconds) * self.per_block,
            input_share=min(min(self.input_seconds) / float(fastest), 1.0),
            memory_bytes=self.memory_bytes,
        )


def _seconds_of(work: Callable[[], object]) -> float:
    started = perf_counter()
    work()
    return perf_counter() - started


def _ends_first(sizes: Sequence[int]) -> list[int]:
    """The smallest, the largest, then what halves the gaps: so that a few sizes span the range if time is short."""
    ascending = sorted(sizes)
    order = [0, len(ascending) - 1][: len(ascending)]
    gaps = [(0, len(ascending) - 1)]
    while gaps:
        low, high = gaps.pop(0)
        middle = (low + high) // 2
        if low < middle < high:
            order.append(middle)
            gaps += [(low, middle), (middle, high)]
    return [ascending[i] for i in order]


def _parameters(trainer: MirroredTrainer, size: int, accumulation: int, momentum: float | None) -> Parameters:
    return Parameters(
        global_batch_size=size * trainer.replicas * accumulation,
        schedule=Constant(learning_rate=0.0),  # weights that grow until they overflow would change the speed
        momentum=momentum,
        accumulation=accumulation,
    )


def _fits(trainer: MirroredTrainer, size: int, momentum: float | None) -> bool:
    try:
        with bounded_memory(trainer.devices[0]):
            trainer.steps(_parameters(trainer, size, 1, momentum), seed=0).take(1)
    except OutOfMemory:
        return False
    return True
