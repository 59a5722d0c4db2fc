"""Exact evaluation: the mean of each metric over every example of a split, summed in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from scalesearch.training.loop import per_example
from scalesearch.training.streams import resident, size_in_bytes
from scalesearch.workloads.workload import Split, Workload

_EXAMPLES_PER_FORWARD_PASS = 512  # on each replica


class Evaluator:
    """Loss and metrics of one model on one split.

    A split larger than `resident_bytes_limit` is brought to the devices in blocks of that size.
    """

    def __init__(
        self, strategy: Any, model: Any, workload: Workload, split: Split, *, resident_bytes_limit: int
    ) -> None:
        self._strategy = strategy
        self._model = model
        self._split = split
        self._functions = {**workload.metrics, "loss": workload.loss}
        self._workload = workload
        examples = max(1, len(split) * resident_bytes_limit // max(size_in_bytes(split), 1))
        self._block = min(examples, len(split))
        self._resident = resident(strategy, split) if self._block == len(split) else None
        self._sums = tf.function(self._sums_over, reduce_retracing=True)

    def __call__(self) -> dict[str, float]:
        """The mean of the loss and of each metric, by name."""
        total = np.zeros(len(self._functions))
        for (inputs, labels), count in self._blocks():
            total += self._sums(inputs, labels, tf.constant(count, tf.int64)).numpy()
        return dict(zip(self._functions, (total / len(self._split)).tolist(), strict=True))

    def _blocks(self) -> Iterator[tuple[Any, int]]:
        if self._resident is not None:
            yield self._resident, len(self._split)
            return
        for start in range(0, len(self._split), self._block):
            stop = min(start + self._block, len(self._split))
            part = Split(inputs=self._split.inputs[start:stop], labels=self._split.labels[start:stop])
            yield resident(self._strategy, part), stop - start

    def _sums_over(self, inputs: Any, labels: Any, count: Any) -> Any:
        # Slices of (nearly) equal size, so that no replica ever gets an empty one.
        replicas = self._strategy.num_replicas_in_sync
        passes = -(-count // (replicas * _EXAMPLES_PER_FORWARD_PASS))
        total = tf.zeros(len(self._functions), tf.float64)
        for number in tf.range(passes):
            sums = self._strategy.run(self._slice_sums, args=(inputs, labels, number, passes * replicas, count))
            total += self._strategy.reduce(tf.distribute.ReduceOp.SUM, sums, axis=None)
        return total

    def _slice_sums(self, inputs: Any, labels: Any, number: Any, slices: Any, count: Any) -> Any:
        context = tf.distribute.get_replica_context()
        index = number * context.num_replicas_in_sync + tf.cast(context.replica_id_in_sync_group, tf.int64)
        start, stop = index * count // slices, (index + 1) * count // slices
        labels = labels[start:stop]
        outputs = self._model(self._workload.prepare(inputs[start:stop]), training=False)
        values = [per_example(name, f(labels, outputs), self._workload) for name, f in self._functions.items()]
        return tf.stack([tf.reduce_sum(tf.cast(v, tf.float64)) for v in values])
