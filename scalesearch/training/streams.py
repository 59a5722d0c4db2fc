"""Feeds the training loop with micro-batches in the order of `data`: from the devices' memory, or through tf.data.

A micro-batch is the next share × replicas examples of the stream; replica r takes the r-th share of it. A stream is
used in two places: `feed` on the host says which examples a call of the loop gets, `micro_batch` and `examples` in
the compiled loop fetch them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import tensorflow as tf

from scalesearch.training.data import stream_indices, stream_uniforms
from scalesearch.workloads.workload import Split

Feed = Callable[[int, int], tuple[Any, ...]]
"""(position, count) -> what the compiled loop is given for the `count` examples from `position` on."""


class ResidentStream:
    """All examples lie on every device in their raw type; the loop is given indices and gathers."""

    def __init__(self, strategy: Any, split: Split, *, random_numbers: int) -> None:
        self._strategy = strategy
        self._random_numbers = random_numbers
        self._n = len(split)
        self._table = resident(strategy, split)
        self.signature = (tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, random_numbers], tf.float32))

    def feed(self, *, seed: int, micro_batch_size: int, position: int = 0) -> Feed:
        """The stream of `seed` from `position` on."""
        del micro_batch_size, position

        def chunk(position: int, count: int) -> tuple[Any, ...]:
            return (
                tf.constant(stream_indices(seed, position, count, self._n)),
                tf.constant(stream_uniforms(seed, position, count, self._random_numbers)),
            )

        return chunk

    def micro_batch(self, chunk: tuple[Any, ...], number: Any, share: Any) -> Any:
        """Micro-batch `number` of the chunk, in shares of `share` examples per replica."""
        first = number * share * self._strategy.num_replicas_in_sync
        return (*self._table, *_shares(self._strategy, chunk, first, share))

    def examples(self, batch: Any) -> tuple[Any, Any, Any]:
        """Inputs, labels and uniforms of a replica's share."""
        inputs, labels, indices, uniforms = batch
        return tf.gather(inputs, indices), tf.gather(labels, indices), uniforms


class StreamedStream:
    """The host reads the examples (from a np.memmap for example) ahead of the loop, through tf.data."""

    def __init__(self, strategy: Any, split: Split, *, random_numbers: int) -> None:
        self._strategy = strategy
        self._split = split
        self._random_numbers = random_numbers
        self._element_spec = (
            tf.TensorSpec([None, *split.inputs.shape[1:]], split.inputs.dtype),
            tf.TensorSpec([None, *split.labels.shape[1:]], split.labels.dtype),
            tf.TensorSpec([None, random_numbers], tf.float32),
        )
        self.signature = (tf.data.IteratorSpec(self._element_spec),)

    def feed(self, *, seed: int, micro_batch_size: int, position: int = 0) -> Feed:
        """The stream of `seed` from `position` on; its chunks must be asked for in order."""

        def micro_batches() -> Iterator[tuple[Any, ...]]:
            for start in count(position, micro_batch_size):
                indices = stream_indices(seed, start, micro_batch_size, len(self._split))
                uniforms = stream_uniforms(seed, start, micro_batch_size, self._random_numbers)
                yield self._split.inputs[indices], self._split.labels[indices], uniforms

        with tf.device("/device:CPU:0"):
            data = tf.data.Dataset.from_generator(micro_batches, output_signature=self._element_spec)
            iterator = iter(data.prefetch(2))
        return lambda position, examples: (iterator,)

    def micro_batch(self, chunk: tuple[Any, ...], number: Any, share: Any) -> Any:
        """The next micro-batch, in shares of `share` examples per replica."""
        del number
        [iterator] = chunk
        return _shares(self._strategy, next(iterator), tf.zeros((), tf.int64), share)

    def examples(self, batch: Any) -> tuple[Any, Any, Any]:
        """Inputs, labels and uniforms of a replica's share."""
        inputs, labels, uniforms = batch
        return inputs, labels, uniforms


def open_stream(
    strategy: Any, split: Split, *, random_numbers: int, resident_bytes_limit: int
) -> ResidentStream | StreamedStream:
    """A resident stream if the split is no larger than the limit (bytes per device), a streamed one otherwise."""
    fits = size_in_bytes(split) <= resident_bytes_limit
    return (ResidentStream if fits else StreamedStream)(strategy, split, random_numbers=random_numbers)


def size_in_bytes(split: Split) -> int:
    """Bytes of inputs and labels in their raw type."""
    return split.inputs.nbytes + split.labels.nbytes


def resident(strategy: Any, split: Split) -> tuple[Any, Any]:
    """Inputs and labels with a copy on each GPU; replicas on the CPU share one."""
    copies: dict[str, tuple[Any, Any]] = {}

    def copy_of(context: Any) -> tuple[Any, Any]:
        device = strategy.extended.worker_devices[context.replica_id_in_sync_group]
        memory = device if "GPU" in device else "/device:CPU:0"
        if memory not in copies:
            with tf.device(memory):
                copies[memory] = tf.constant(split.inputs), tf.constant(split.labels)
        return copies[memory]

    return strategy.experimental_distribute_values_from_function(copy_of)


def _shares(strategy: Any, values: tuple[Any, ...], first: Any, share: Any) -> Any:
    def share_of(context: Any) -> tuple[Any, ...]:
        start = first + context.replica_id_in_sync_group * share
        return tuple(value[start : start + share] for value in values)

    with tf.device("/device:CPU:0"):  # so that each GPU is sent its own share only
        return strategy.experimental_distribute_values_from_function(share_of)
