"""Trains a workload on one or several replicas: a training run is a generator of measurements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from scalesearch.core.evaluation import EvaluationPlan
from scalesearch.core.noise_scale import GradientNoise
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Measurement
from scalesearch.core.schedule import rates
from scalesearch.errors import OutOfMemory, StudyError
from scalesearch.training.checkpoints import Snapshot
from scalesearch.training.evaluation import Evaluator
from scalesearch.training.loop import TrainingLoop
from scalesearch.training.models import build_model, initial_values
from scalesearch.training.noise import NoiseSampler
from scalesearch.training.optimizers import DeviceOptimizer
from scalesearch.training.stopwatch import Stopwatch
from scalesearch.training.streams import Feed, open_stream
from scalesearch.workloads.workload import Data, Workload

GIB = 2**30
_EXAMPLES_PER_CALL = 2**20  # bounds the indices and uniforms that one call of the loop is given


class MirroredTrainer:
    """Trains one workload with one optimizer on fixed devices, trial after trial.

    Built once per worker; its graphs and variables are used again by every trial. The same parameters, seed and data
    give the same weights, up to the rounding of sums, for any number of devices and any accumulation (see `loop`
    for batch normalisation and random layers).

    Args:
        optimizer: one of `optimizers.OPTIMIZERS`.
        devices: one per replica, as `configure_devices` returns them.
        resident_bytes_limit: a split up to this size is held on every device; a larger one is streamed.
        noise_share: the share of the time of steps in which the gradient noise is sampled besides; 0 for never.
    """

    def __init__(
        self,
        workload: Workload,
        data: Data,
        *,
        optimizer: str,
        devices: Sequence[str],
        resident_bytes_limit: int = 2 * GIB,
        noise_share: float = 0.015,
    ) -> None:
        self._workload = workload
        self._data = data
        self._optimizer_name = optimizer
        self._devices = tuple(devices)
        self._noise_share = noise_share
        self._strategy = _mirrored_strategy(devices)
        with self._strategy.scope():
            self._model = build_model(workload, data.train, seed=0)
        augmentation = workload.augmentation
        self._stream = open_stream(
            self._strategy,
            data.train,
            random_numbers=augmentation.random_numbers if augmentation else 0,
            resident_bytes_limit=resident_bytes_limit,
        )
        self._evaluators = {
            name: Evaluator(self._strategy, self._model, workload, split, resident_bytes_limit=resident_bytes_limit)
            for name, split in (("validation", data.validation), ("test", data.test))
            if split is not None
        }
        self._loop: TrainingLoop | None = None
        self._noise: NoiseSampler | None = None
        self._loop_momentum: float | None = None
        self._initial_seed: int | None = None
        self._initial_values: list[Any] = []
        self._current: _Run | None = None

    @property
    def replicas(self) -> int:
        """The number of replicas that a global batch is divided over."""
        return int(self._strategy.num_replicas_in_sync)

    @property
    def workload(self) -> Workload:
        """What it trains."""
        return self._workload

    @property
    def data(self) -> Data:
        """The splits it trains on and evaluates."""
        return self._data

    @property
    def optimizer_name(self) -> str:
        """The optimizer it trains with."""
        return self._optimizer_name

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of its replicas."""
        return self._devices

    @property
    def model(self) -> Any:
        """The Keras model, with the weights of the running trial, or of the last one."""
        return self._model

    def train(
        self, parameters: Parameters, *, seed: int, plan: EvaluationPlan, start: Snapshot | None = None
    ) -> Iterator[Measurement]:
        """Train from the initial weights of `seed`; yield a measurement at step 0 and at each step of the plan.

        With `start`, go on from that snapshot instead; the first measurement is the one after the snapshot's. On the
        same machine and as many replicas, with the same accumulation, all is bit for bit as in an uninterrupted run
        (GPUs: as far as their operations are deterministic).

        `train_loss` is the workload's loss, without the model's regularisers. To stop the run, close the generator.
        Time between its `next` calls counts nowhere.

        Raises:
            StudyError: the global batch is not divisible by replicas × accumulation.
            SnapshotError: a run with these parameters and this seed does not pass through `start`.
            OutOfMemory: a step did not fit on a device; the trainer can be used again.
            RuntimeError: another run of this trainer has been started, which ended this one.
        """
        share = self._share(parameters)
        if start is not None:
            start.check_on_the_way(parameters, seed=seed)
        self._current = run = _Run(parameters, seed, share, start)
        with run.elapsed, _out_of_memory(parameters, share):
            loop, feed = self._set_up(run, start)
            now = start.measurement if start is not None else self._measure(run, step=0, train_loss=math.nan)
        run.measurement = now
        if start is None:
            yield now
        while (until := plan.next_step([now], global_batch_size=parameters.global_batch_size)) is not None:
            if self._current is not run:
                raise RuntimeError("another run of this trainer has been started; this one cannot go on")
            run.measurement = None
            with run.elapsed, _out_of_memory(parameters, share):
                before = run.training.seconds
                with run.training:
                    loss = _advance(loop, feed, run, now.step, until)
                noise = self._sample_noise(run, step=until, step_seconds=run.training.seconds - before)
                now = self._measure(run, step=until, train_loss=loss, noise=noise)
            run.measurement = now
            yield now

    def steps(self, parameters: Parameters, *, seed: int) -> Steps:
        """Training from the initial weights of `seed`, step by step and without evaluations; compiled on return.

        Raises as `train` does.
        """
        self._current = run = _Run(parameters, seed, self._share(parameters), None)
        with _out_of_memory(parameters, run.share):
            return Steps(*self._set_up(run, None), run)

    def snapshot(self) -> Snapshot:
        """The state of the running trial, or of the last one, at the measurement that it yielded last.

        Raises:
            RuntimeError: there is none: nothing has run, or the run has failed within a step.
        """
        run, loop = self._current, self._loop
        if run is None or loop is None or run.measurement is None:
            raise RuntimeError("a snapshot can be taken of a run that has just yielded a measurement only")
        return Snapshot(
            parameters=run.parameters,
            seed=run.seed,
            replicas=self.replicas,
            measurement=run.measurement,
            values=tuple(variable.numpy() for variable in loop.variables),
        )

    def evaluate(self, split: Literal["validation", "test"]) -> dict[str, float]:
        """Loss and metrics of the running trial, or of the last one, over every example of `split`.

        Names are `val/loss`, `val/…` or `test/loss`, `test/…`; without a test split there are none.
        """
        prefix = {"validation": "val", "test": "test"}[split]
        evaluator = self._evaluators.get(split)
        return {f"{prefix}/{name}": value for name, value in evaluator().items()} if evaluator else {}

    def _share(self, parameters: Parameters) -> int:
        """Examples that one replica processes at a time."""
        batch, shares = parameters.global_batch_size, self.replicas * parameters.accumulation
        if batch < 1 or batch % shares:
            near = sorted({max(batch // shares, 1) * shares, (batch // shares + 1) * shares})
            raise StudyError(
                f"`global_batch_size % (replicas × accumulation) == 0` must hold, but got {batch} with {self.replicas} "
                f"replicas × {parameters.accumulation}; nearest: {' or '.join(map(str, near))}"
            )
        return parameters.per_replica_batch_size(self.replicas)

    def _set_up(self, run: _Run, start: Snapshot | None) -> tuple[TrainingLoop, Feed]:
        momentum = run.parameters.momentum
        loop = self._loop_for(momentum)
        loop.warm_up(share=run.share, micro_batches=run.parameters.accumulation)
        if start is None:
            position = 0
            loop.reset(self._initial_values_of(run.seed), momentum=momentum)
        else:
            position = start.measurement.examples
            start.check_fits(loop.variables)
            loop.restore(start.values, momentum=momentum)
        return loop, self._stream.feed(seed=run.seed, micro_batch_size=run.share * self.replicas, position=position)

    def _initial_values_of(self, seed: int) -> list[Any]:
        if seed != self._initial_seed:
            self._initial_values = initial_values(self._workload, self._data.train, seed=seed)
            self._initial_seed = seed
        return self._initial_values

    def _loop_for(self, momentum: float | None) -> TrainingLoop:
        """The compiled loop; only the optimizer of a workload, whose momentum is a number, needs a new one at times."""
        rebuild = self._optimizer_name == "workload" and momentum != self._loop_momentum
        if self._loop is None or rebuild:
            with self._strategy.scope():
                optimizer = DeviceOptimizer(self._optimizer_name, self._model, self._workload, momentum=momentum)
            self._loop = TrainingLoop(self._strategy, self._model, optimizer, self._workload, self._stream)
            self._noise = NoiseSampler(
                self._loop, self._stream, replicas=self.replicas, share_of_time=self._noise_share
            )
            self._loop_momentum = momentum
        return self._loop

    def _sample_noise(self, run: _Run, *, step: int, step_seconds: float) -> GradientNoise | None:
        if self._noise is None:
            return None
        position = step * run.parameters.global_batch_size
        return self._noise.sample(
            seed=run.seed, step=step, position=position, share=run.share, step_seconds=step_seconds
        )

    def _measure(self, run: _Run, *, step: int, train_loss: float, noise: GradientNoise | None = None) -> Measurement:
        metrics = self.evaluate("validation")
        return Measurement(
            step=step,
            examples=step * run.parameters.global_batch_size,
            train_seconds=run.training.seconds,
            elapsed_seconds=run.elapsed.seconds,
            train_loss=train_loss,
            metrics=metrics,
            noise=noise,
        )


class Steps:
    """The optimizer steps of one run, for measuring them."""

    def __init__(self, loop: TrainingLoop, feed: Feed, run: _Run) -> None:
        self._loop = loop
        self._feed = feed
        self._run = run
        self._taken = 0

    def take(self, count: int) -> float:
        """Take `count` steps; return their mean loss."""
        first, self._taken = self._taken, self._taken + count
        with _out_of_memory(self._run.parameters, self._run.share):
            return _advance(self._loop, self._feed, self._run, first, self._taken)

    def fetch(self, count: int) -> None:
        """Fetch, prepare and augment the examples of the next `count` steps, and do no more with them."""
        parameters, micro_batches = self._run.parameters, count * self._run.parameters.accumulation
        first, self._taken = self._taken, self._taken + count
        chunk = self._feed(first * parameters.global_batch_size, count * parameters.global_batch_size)
        with _out_of_memory(parameters, self._run.share):
            self._loop.fetch(chunk, share=self._run.share, micro_batches=micro_batches)


class _Run:
    """What one call of `train` has to remember. `measurement` is None while the state is not that of a measurement."""

    def __init__(self, parameters: Parameters, seed: int, share: int, start: Snapshot | None) -> None:
        self.parameters = parameters
        self.seed = seed
        self.share = share
        self.elapsed = Stopwatch(start.measurement.elapsed_seconds if start is not None else 0.0)
        self.training = Stopwatch(start.measurement.train_seconds if start is not None else 0.0)
        self.measurement: Measurement | None = None


def _advance(loop: TrainingLoop, feed: Feed, run: _Run, step: int, until: int) -> float:
    """Take the steps from `step` to `until`; return their mean loss."""
    batch = run.parameters.global_batch_size
    steps_per_call = max(1, _EXAMPLES_PER_CALL // batch)
    total = 0.0
    for first in range(step, until, steps_per_call):
        starts = np.arange(first, min(first + steps_per_call, until)) * batch
        total += loop.run(
            feed(first * batch, len(starts) * batch),
            rates(run.parameters.schedule, starts).astype(np.float32),
            first_step=first,
            share=run.share,
            micro_batches=run.parameters.accumulation,
        )
    return total / (until - step)


def _mirrored_strategy(devices: Sequence[str]) -> Any:
    if any("GPU" in device for device in devices):
        return tf.distribute.MirroredStrategy(devices)
    # The default for CPUs, a ring of collectives, is slower, and a process can use it with one replica count only.
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=tf.distribute.ReductionToOneDevice())


@contextmanager
def _out_of_memory(parameters: Parameters, share: int) -> Iterator[None]:
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise OutOfMemory(
            f"a global batch of {parameters.global_batch_size} ({share} examples per replica at a time) does not fit "
            "in the memory of its device; a larger `accumulation` needs less"
        ) from error
