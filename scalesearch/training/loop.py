"""The compiled training loop: K optimizer steps over all replicas in one call.

What changes between trials (learning rates, momentum, batch size, number of micro-batches, seed) is a tensor. There
are two graphs: one for steps of a single micro-batch and one for any number of them.

The loss is the sum over a replica's share divided by the *global* batch size, so the sum over micro-batches and
replicas is the exact mean. All that depends on how a step is cut into shares follows two rules, which make N replicas
equal to one replica that accumulates N micro-batches:

- A random layer draws from (its seed, number of the share in the run).
- A floating-point state (the moving statistics of a batch normalisation) becomes the mean over the shares of what each
  would have made of it. Replicas keep their own until the call ends, as the mean of updates that are linear in the
  state (moving averages) is the update by the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import tensorflow as tf

from scalesearch.errors import WorkloadError
from scalesearch.training.optimizers import DeviceOptimizer
from scalesearch.training.streams import ResidentStream, StreamedStream
from scalesearch.workloads.workload import Workload

_DRAWS_PER_SHARE = 16  # a random layer may be called this often in one forward pass


class TrainingLoop:
    """The training steps of one model and one optimizer."""

    def __init__(
        self,
        strategy: Any,
        model: Any,
        optimizer: DeviceOptimizer,
        workload: Workload,
        stream: ResidentStream | StreamedStream,
    ) -> None:
        self._strategy = strategy
        self._replicas = strategy.num_replicas_in_sync
        self._model = model
        self._optimizer = optimizer
        self._workload = workload
        self._stream = stream
        self._variables = model.trainable_variables
        states = [v.value for v in model.non_trainable_variables]
        self._states = states
        self._statistics = [s for s in states if s.dtype.is_floating]
        self._random_states = [v.value for v in model.non_trainable_variables if v.name == "seed_generator_state"]
        number = tf.TensorSpec([], tf.int64)
        signature = [stream.signature, tf.TensorSpec([None], tf.float32), number, number, number]
        self._single = tf.function(self._single_steps, input_signature=signature)
        self._accumulated = tf.function(self._accumulated_steps, input_signature=signature)
        self._fetched = tf.function(self._fetch_only, input_signature=[stream.signature, number, number])
        self._noise = tf.function(self._squared_norms, input_signature=[stream.signature, number, number])
        self._warm: set[tuple[Any, int]] = set()
        self.compile_seconds = 0.0  # the longest that a graph of steps has taken
        self._sums: list[Any] = []
        self._statistics_before: list[Any] = []
        self._statistics_sums: list[Any] = []

    @property
    def variables(self) -> list[Any]:
        """All that a run of steps leaves to the next one: the model's variables, then the optimizer's."""
        return [*self._model.variables, *self._optimizer.variables]

    def warm_up(self, *, share: int, micro_batches: int) -> None:
        """Trace, compile and tune what steps of these micro-batches need; the weights change, call `reset` or `restore` next."""
        graph = self._graph(micro_batches)
        if (graph, share) not in self._warm:
            size = share * self._replicas
            chunk = self._stream.feed(seed=0, micro_batch_size=size)(0, size)
            begin = perf_counter()
            graph(chunk, np.zeros(1, np.float32), 0, share, 1)
            self.compile_seconds = max(self.compile_seconds, perf_counter() - begin)
            self._warm.add((graph, share))

    def reset(self, initial_values: Sequence[Any], *, momentum: float | None) -> None:
        """Start anew from these values of the model's variables."""
        for variable, value in zip(self._model.variables, initial_values, strict=True):
            variable.assign(value)
        self._optimizer.reset(momentum)

    def restore(self, values: Sequence[Any], *, momentum: float | None) -> None:
        """Go on from these values of `variables`."""
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(value)
        self._optimizer.set_momentum(momentum)

    def run(self, chunk: tuple[Any, ...], rates: Any, *, first_step: int, share: int, micro_batches: int) -> float:
        """Take len(rates) steps of `micro_batches` micro-batches; return the sum of the steps' mean losses."""
        return float(self._graph(micro_batches)(chunk, rates, first_step, share, micro_batches))

    def fetch(self, chunk: tuple[Any, ...], *, share: int, micro_batches: int) -> None:
        """Fetch, prepare and augment the inputs of so many micro-batches, and no more."""
        self._fetched(chunk, share, micro_batches).numpy()

    @property
    def noise_passes(self) -> int:
        """Micro-batches that `squared_norms` takes: two gradients at least, from replicas or from passes."""
        return 1 if self._replicas > 1 else 2

    def squared_norms(self, chunk: tuple[Any, ...], *, step: int, share: int) -> tuple[float, float]:
        """Mean squared norm of the gradients of `share` examples each, and that of all of the chunk's examples.

        All variables keep their values; random layers draw as in this step and the next.
        """
        of_shares, of_all = self._noise(chunk, step, share)
        return float(of_shares), float(of_all)

    def _graph(self, micro_batches: int) -> Any:
        if micro_batches == 1:
            return self._single
        if not self._sums:
            self._create_accumulators()
        return self._accumulated

    def _single_steps(self, chunk: Any, rates: Any, first_step: Any, share: Any, micro_batches: Any) -> Any:
        loss = tf.zeros((), tf.float64)
        for i in tf.range(tf.size(rates, tf.int64)):
            batch = self._stream.micro_batch(chunk, i, share)
            loss += self._on_replicas(self._step, batch, rates[i], first_step + i, share, micro_batches)
        self._average_statistics()
        return loss

    def _accumulated_steps(self, chunk: Any, rates: Any, first_step: Any, share: Any, micro_batches: Any) -> Any:
        loss = tf.zeros((), tf.float64)
        self._strategy.run(self._begin_accumulation)
        for i in tf.range(tf.size(rates, tf.int64)):
            for m in tf.range(micro_batches):
                number = i * micro_batches + m
                batch = self._stream.micro_batch(chunk, number, share)
                number += first_step * micro_batches
                self._strategy.run(self._accumulate, args=(batch, number, share, micro_batches))
            loss += self._on_replicas(self._finish_step, rates[i], micro_batches)
        self._average_statistics()
        return loss

    def _fetch_only(self, chunk: Any, share: Any, micro_batches: Any) -> Any:
        total = tf.zeros((), tf.float32)
        for i in tf.range(micro_batches):
            batch = self._stream.micro_batch(chunk, i, share)
            total += tf.cast(self._on_replicas(self._touch, batch), tf.float32)
        return total

    def _squared_norms(self, chunk: Any, step: Any, share: Any) -> Any:
        batches = [self._stream.micro_batch(chunk, tf.constant(m, tf.int64), share) for m in range(self.noise_passes)]
        norms = self._strategy.run(self._norms_of_shares, args=(batches, step, share))
        return [self._strategy.experimental_local_results(norm)[0] for norm in norms]

    def _on_replicas(self, step: Any, *args: Any) -> Any:
        """Run a step that returns the same loss on every replica."""
        return tf.cast(self._strategy.experimental_local_results(self._strategy.run(step, args=args))[0], tf.float64)

    # What follows runs on each replica.

    def _step(self, batch: Any, rate: Any, number: Any, share: Any, micro_batches: Any) -> Any:
        return self._apply(self._gradients(batch, number, share, micro_batches), rate)

    def _gradients(self, batch: Any, number: Any, share: Any, micro_batches: Any) -> list[Any]:
        """The share's part of the global gradient (times the loss scale) and of the loss."""
        self._seed_random_layers(number)
        inputs, labels = self._inputs_and_labels(batch)
        shares = tf.cast(self._replicas * micro_batches, tf.float32)
        with tf.GradientTape() as tape:
            outputs = self._model(inputs, training=True)
            losses = per_example("loss", self._workload.loss(labels, outputs), self._workload)
            loss = tf.reduce_sum(tf.cast(losses, tf.float32)) / (tf.cast(share, tf.float32) * shares)
            objective = tf.add_n([loss, *(tf.cast(term, tf.float32) / shares for term in self._model.losses)])
            objective = self._optimizer.scale_loss(objective)
        gradients = tape.gradient(
            objective, [v.value for v in self._variables], unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return [*(tf.convert_to_tensor(g) for g in gradients), loss]

    def _inputs_and_labels(self, batch: Any) -> tuple[Any, Any]:
        inputs, labels, uniforms = self._stream.examples(batch)
        inputs = self._workload.prepare(inputs)
        if self._workload.augmentation is not None:
            inputs = self._workload.augmentation.apply(inputs, uniforms)
        return inputs, labels

    def _touch(self, batch: Any) -> Any:
        """A number that takes all of a share's inputs to compute."""
        inputs, labels = self._inputs_and_labels(batch)
        return sum(tf.reduce_sum(tf.cast(part, tf.float32)) for part in (*tf.nest.flatten(inputs), labels))

    def _apply(self, gradients_and_loss: list[Any], rate: Any) -> Any:
        summed = gradients_and_loss
        if self._replicas > 1:
            summed = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, summed)
        self._optimizer.apply(summed[:-1], self._variables, learning_rate=rate)
        return summed[-1]

    def _norms_of_shares(self, batches: list[Any], step: Any, share: Any) -> Any:
        before = [tf.identity(state) for state in self._states]
        # Each is a share's part of the mean, as the shares are as many.
        passes = [self._gradients(b, step + m, share, len(batches))[:-1] for m, b in enumerate(batches)]
        for state, value in zip(self._states, before, strict=True):
            state.assign(value)
        total = [tf.add_n(parts) for parts in zip(*passes, strict=True)]
        of_shares = tf.add_n([_squared_norm(gradients) for gradients in passes])
        if self._replicas > 1:
            context = tf.distribute.get_replica_context()
            *total, of_shares = context.all_reduce(tf.distribute.ReduceOp.SUM, [*total, of_shares])
        loss_scale = tf.cast(self._optimizer.scale_loss(tf.ones(())), tf.float64) ** 2
        shares = self._replicas * len(batches)
        return shares * of_shares / loss_scale, _squared_norm(total) / loss_scale

    def _begin_accumulation(self) -> None:
        for total in (*self._sums, *self._statistics_sums):
            total.assign(tf.zeros_like(total))
        for before, statistic in zip(self._statistics_before, self._statistics, strict=True):
            before.assign(statistic)

    def _accumulate(self, batch: Any, number: Any, share: Any, micro_batches: Any) -> None:
        for total, part in zip(self._sums, self._gradients(batch, number, share, micro_batches), strict=True):
            total.assign_add(part)
        for statistic, before, total in self._accumulated_statistics():
            total.assign_add(statistic)
            statistic.assign(before)

    def _finish_step(self, rate: Any, micro_batches: Any) -> Any:
        loss = self._apply([tf.identity(total) for total in self._sums], rate)
        for statistic, _, total in self._accumulated_statistics():
            statistic.assign(total / tf.cast(micro_batches, total.dtype))
        self._begin_accumulation()
        return loss

    def _accumulated_statistics(self) -> Any:
        return zip(self._statistics, self._statistics_before, self._statistics_sums, strict=True)

    def _seed_random_layers(self, number: Any) -> None:
        replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int64)
        share_number = number * self._replicas + replica
        for state in self._random_states:
            draw = tf.cast(share_number * _DRAWS_PER_SHARE, state.dtype)
            state.assign(tf.stack([state[0], draw]))

    # What follows runs for all replicas together.

    def _average_statistics(self) -> None:
        if self._replicas > 1 and self._statistics:
            self._strategy.run(self._assign_mean_statistics)

    def _assign_mean_statistics(self) -> None:
        values = [tf.identity(s) for s in self._statistics]
        means = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, values)
        for statistic, mean in zip(self._statistics, means, strict=True):
            statistic.assign(mean)

    def _create_accumulators(self) -> None:
        with self._strategy.scope():
            self._sums = [_per_replica_zeros(v.shape, v.dtype) for v in self._variables]
            self._sums.append(_per_replica_zeros([], "float32"))
            self._statistics_before = [_per_replica_zeros(s.shape, s.dtype) for s in self._statistics]
            self._statistics_sums = [_per_replica_zeros(s.shape, s.dtype) for s in self._statistics]


def per_example(name: str, values: Any, workload: Workload) -> Any:
    """`values` if they are one per example, shape (n,); WorkloadError otherwise."""
    if values.shape.rank != 1:
        raise WorkloadError(
            f"`{workload.name}`: {name} must return one value per example, shape (n,), but its shape is {values.shape}"
        )
    return values


def _squared_norm(tensors: Sequence[Any]) -> Any:
    return tf.add_n([tf.cast(tf.reduce_sum(tf.square(tf.cast(t, tf.float32))), tf.float64) for t in tensors])


def _per_replica_zeros(shape: Any, dtype: Any) -> Any:
    return tf.Variable(tf.zeros(shape, dtype), trainable=False, aggregation=tf.VariableAggregation.NONE)
