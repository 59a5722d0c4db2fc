"""Samples of gradient noise between the steps of a run, within a share of their time.

A sample is taken apart from the steps, by a graph of its own and at a measurement, so that the update is the same bit for
bit with and without it, and a step costs what it costs. Its gradients are those of the examples that come next.
"""

from __future__ import annotations

from time import perf_counter

import tensorflow as tf

from scalesearch.core.noise_scale import GradientNoise, gradient_noise
from scalesearch.training.loop import TrainingLoop
from scalesearch.training.streams import ResidentStream, StreamedStream

_MOST_EXAMPLES = 256  # per replica at a time: much more tells little more, and costs
_MOST_SAMPLES = 4  # per measurement
_LEAST_SECONDS = 1e-6  # of a sample, whatever a clock says
_SHARE_BEFORE_COMPILING = 0.1  # of the seconds that a graph takes, must be allowed: a few moments do not pay for it


class NoiseSampler:
    """Samples the gradient noise of a loop's runs as often as `share_of_time` of their seconds in steps allows.

    Compiling its graph, once for a worker, comes beside that share. What does not fit into memory is not sampled.
    """

    def __init__(
        self, loop: TrainingLoop, stream: ResidentStream | StreamedStream, *, replicas: int, share_of_time: float
    ) -> None:
        self._loop = loop
        self._stream = stream
        self._replicas = replicas
        self._share_of_time = share_of_time
        self._allowed_seconds = 0.0
        self._seconds_per_sample: dict[int, float] = {}
        self._fits = True

    def sample(self, *, seed: int, step: int, position: int, share: int, step_seconds: float) -> GradientNoise | None:
        """A block at the present weights, if the `step_seconds` since the last call have earned one.

        Args:
            position: of the examples that come next, in the stream of `seed`.
            share: examples that one replica processes at a time.
        """
        self._allowed_seconds += self._share_of_time * step_seconds
        before_compiling = _SHARE_BEFORE_COMPILING * self._loop.compile_seconds
        if not self._fits or (self._allowed_seconds < before_compiling and not self._seconds_per_sample):
            return None
        try:
            return self._block(seed=seed, step=step, position=position, size=min(share, _MOST_EXAMPLES))
        except tf.errors.ResourceExhaustedError:
            self._fits = False
            return None

    def _block(self, *, seed: int, step: int, position: int, size: int) -> GradientNoise | None:
        examples = size * self._replicas * self._loop.noise_passes

        def squared_norms(number: int) -> tuple[float, float]:
            first = position + number * examples
            feed = self._stream.feed(seed=seed, micro_batch_size=size * self._replicas, position=first)
            return self._loop.squared_norms(feed(first, examples), step=step + number, share=size)

        if size not in self._seconds_per_sample:
            squared_norms(0)  # compiles
            begin = perf_counter()
            squared_norms(0)
            self._seconds_per_sample[size] = max(perf_counter() - begin, _LEAST_SECONDS)
        seconds = self._seconds_per_sample[size]
        # What short intervals could not use is not saved up for one long pause.
        self._allowed_seconds = min(self._allowed_seconds, _MOST_SAMPLES * seconds)
        count = int(self._allowed_seconds / seconds)
        if count < 1:  # less than none where the last samples took longer than they might, which has to be earned first
            return None
        begin = perf_counter()
        pairs = [squared_norms(number) for number in range(count)]
        taken = perf_counter() - begin
        self._allowed_seconds -= taken
        self._seconds_per_sample[size] = max(taken / count, _LEAST_SECONDS)
        return gradient_noise(pairs, small=size, big=examples)
