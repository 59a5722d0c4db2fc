"""Examples per second of the training engine beside `model.fit`, under the same strategy, model and batch.

    python tests/benchmarks/engine.py [--quick]

Each case runs in a process of its own, in which both sides take turns (A B A B …): the engine has its turn whenever an
epoch of one long call of fit ends, so that what a call of fit costs before its first step counts nowhere. The tables
show medians, and the median of the ratios of neighbours with their range. The data are random. Run it on an otherwise
idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

EVERY = 100  # steps between evaluations
VALIDATION_EXAMPLES = 5_000
TRAIN_EXAMPLES = 51_200  # EVERY steps of the largest batch


@dataclass(frozen=True)
class Case:
    """What is compared."""

    model: str
    replicas: int
    global_batch_size: int

    @property
    def is_conv(self) -> bool:
        """Whether a step takes so long that a few turns must do."""
        return self.model in ("simple_cnn", "resnet_8")


CASES = (
    Case("softmax", 1, 64),
    Case("mlp_1024", 1, 8),
    Case("mlp_1024", 1, 64),
    Case("mlp_1024", 1, 512),
    Case("mlp_1024", 2, 8),
    Case("mlp_1024", 2, 64),
    Case("mlp_1024", 2, 512),
    Case("simple_cnn", 1, 64),
    Case("simple_cnn", 1, 512),
    Case("resnet_8", 1, 64),
)
QUICK_CASES = (Case("softmax", 1, 64), Case("mlp_1024", 1, 64), Case("mlp_1024", 2, 64))


def main() -> None:
    """Run one process per case, and print what they found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few cases, few turns: does it run?")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)  # what a child process measures
    options = parser.parse_args()
    cases = QUICK_CASES if options.quick else CASES
    if options.case is not None:
        sys.stdout.write(json.dumps(measure(cases[options.case], quick=options.quick)))
        return
    rows: list[dict[str, Any]] = []
    for number, case in enumerate(cases):
        sys.stderr.write(f"measuring {number + 1} of {len(cases)}: {case}\n")
        rows += measure_in_child(number, quick=options.quick)
        show(
            rows[-3:] if rows[-1]["kind"] == "trials" else rows[-2:]
        )  # a long run that is broken off has shown something
    show(rows)


def measure_in_child(number: int, *, quick: bool) -> list[dict[str, Any]]:
    """Measure a case in a process of its own.

    Under MirroredStrategy on CPUs a call of fit crashes now and then as it starts, when it drops a data iterator whose
    threads still run (TensorFlow 2.21, also without any code of ours): then the case is measured again.
    """
    command = [sys.executable, __file__, "--case", str(number), *(["--quick"] if quick else [])]
    for _ in range(5):
        child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if child.returncode != -signal.SIGSEGV:
            break
    child.check_returncode()
    rows: list[dict[str, Any]] = json.loads(child.stdout)
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """Print the tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=120)
    for kind, title in (("epoch", "inside an epoch"), ("evaluations", f"with an evaluation every {EVERY} steps")):
        table = Table("model", "replicas", "batch", "fit", "engine", "ratio", "range", title=f"examples/s {title}")
        for row in (row for row in rows if row["kind"] == kind):
            ratios = [engine / fit for fit, engine in zip(row["fit"], row["engine"], strict=True)]
            table.add_row(
                row["model"],
                str(row["replicas"]),
                str(row["global_batch_size"]),
                f"{statistics.median(row['fit']):,.0f}",
                f"{statistics.median(row['engine']):,.0f}",
                f"× {statistics.median(ratios):.2f}",
                f"{min(ratios):.2f}–{max(ratios):.2f}",
            )
        console.print(table)
    for row in (row for row in rows if row["kind"] == "trials"):
        growth = row["last_mb"] / row["first_mb"] - 1
        console.print(
            f"{row['trials']} trials of {row['model']}, {row['replicas']} replicas: memory {row['first_mb']:.0f} MB "
            f"after {row['settled']}, {row['last_mb']:.0f} MB after all ({growth:+.1%}); set-up and first evaluation "
            f"{row['median_seconds']:.3f} s (median), {row['max_seconds']:.3f} s (largest)"
        )


def measure(case: Case, *, quick: bool) -> list[dict[str, Any]]:
    """Let both sides take turns; one row of speeds inside an epoch, one with evaluations, one of many trials."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from scalesearch.training.devices import configure_devices

    turns, seconds = (2, 1.0) if quick else (3 if case.global_batch_size * case.is_conv >= 512 else 5, 3.0)
    pair = Pair(case, configure_devices(case.replicas))
    rows: list[dict[str, Any]] = [
        {"kind": "epoch", **vars(case), **pair.inside_an_epoch(turns, seconds)},
        {"kind": "evaluations", **vars(case), **pair.with_evaluations(turns)},
    ]
    if case.model == "mlp_1024" and case.global_batch_size == 64:
        rows.append({"kind": "trials", **vars(case), **pair.trials(20 if quick else 100)})
    return rows


class Pair:
    """The same workload for both sides."""

    def __init__(self, case: Case, devices: tuple[str, ...]) -> None:
        import keras
        import tensorflow as tf

        from scalesearch.training.engine import MirroredTrainer
        from scalesearch.workloads.classification import cross_entropy
        from scalesearch.workloads.workload import Workload

        self.batch = case.global_batch_size
        self.data = random_data((32, 32, 3) if case.model == "resnet_8" else (28, 28, 1))
        workload = Workload(
            name=case.model,
            load_data=lambda: self.data,
            build_model=lambda: build_model(case.model),
            loss=cross_entropy,
            metrics={},
            prepare=lambda inputs: tf.cast(inputs, tf.float32) / 255.0,
        )
        self.trainer = MirroredTrainer(workload, self.data, optimizer="momentum", devices=devices)
        strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops=tf.distribute.ReductionToOneDevice())
        with strategy.scope():
            self.model = build_model(case.model)
            self.model.compile(
                optimizer=keras.optimizers.SGD(0.01, momentum=0.9),
                loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            )
        self.train, self.validation = (
            (split.inputs.astype("float32") / 255, split.labels) for split in (self.data.train, self.data.validation)
        )

    def inside_an_epoch(self, turns: int, seconds: float) -> dict[str, list[float]]:
        """Examples per second of steps only: of fit, from the end of an epoch's first step to the end of its last."""
        self._train(steps=20, every=20)
        speed = self._engine_speed(20)
        steps = max(20, min(int(speed * seconds / self.batch), 1000, TRAIN_EXAMPLES // self.batch))
        clock = self._fit(turns, steps, lambda: self._engine_speed(steps))
        fit = [(steps - 1) * self.batch / (last - first) for first, last in clock.batches]
        return {"fit": fit[1:], "engine": clock.engine[1:]}

    def with_evaluations(self, turns: int) -> dict[str, list[float]]:
        """Examples per second where each EVERY steps are followed by an evaluation."""

        def engine() -> float:
            first, last = self._train(steps=EVERY, every=EVERY)
            return float(last.examples / (last.elapsed_seconds - first.elapsed_seconds))

        clock = self._fit(turns, EVERY, engine, validation_data=self.validation, validation_batch_size=512)
        return {"fit": [EVERY * self.batch / s for s in clock.epochs[1:]], "engine": clock.engine[1:]}

    def _engine_speed(self, steps: int) -> float:
        last = self._train(steps=steps, every=steps)[-1]
        return float(last.examples / last.train_seconds)

    def _fit(self, turns: int, steps: int, engine: Callable[[], float], **options: Any) -> Any:
        """One epoch of `steps` steps to warm up, then one for each turn."""
        clock = turn_taking(engine)
        inputs, labels = (array[: steps * self.batch] for array in self.train)
        self.model.fit(inputs, labels, batch_size=self.batch, epochs=turns + 1, verbose=0, callbacks=[clock], **options)
        return clock

    def trials(self, count: int) -> dict[str, Any]:
        """Memory and set-up time over many trials of 20 steps, each with a seed of its own."""
        settled = count // 10
        set_up, memory = [], []
        for seed in range(count):
            set_up.append(self._train(steps=20, every=20, seed=seed)[0].elapsed_seconds)
            memory.append(resident_mb())
        return {
            "trials": count,
            "settled": settled,
            "first_mb": memory[settled - 1],
            "last_mb": memory[-1],
            "median_seconds": statistics.median(set_up),
            "max_seconds": max(set_up),
        }

    def _train(self, *, steps: int, every: int, seed: int = 0) -> list[Any]:
        from scalesearch.core.evaluation import EvaluationPlan
        from scalesearch.core.parameters import Parameters
        from scalesearch.core.results import Objective
        from scalesearch.core.schedule import Constant

        plan = EvaluationPlan(
            objective=Objective(metric="val/loss", direction="minimize", target=None, minimize="metric"),
            boundaries=(),
            first_examples=every * self.batch,
            max_interval_examples=every * self.batch,
            end_examples=steps * self.batch,
            ratio=1e9,
        )
        schedule = Constant(learning_rate=0.01)
        parameters = Parameters(global_batch_size=self.batch, schedule=schedule, momentum=0.9)
        return list(self.trainer.train(parameters, seed=seed, plan=plan))


def turn_taking(engine: Callable[[], float]) -> Any:
    """A Keras callback that times fit and lets the engine have its turn after each epoch."""
    import keras

    class TurnTaking(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.batches: list[tuple[float, float]] = []  # when an epoch's first and last step ended
            self.epochs: list[float] = []  # seconds of an epoch, its evaluation included
            self.engine: list[float] = []

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._begin = perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            now = perf_counter()
            if batch == 0:
                self.batches.append((now, now))
            self.batches[-1] = (self.batches[-1][0], now)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.epochs.append(perf_counter() - self._begin)
            self.engine.append(engine())

    return TurnTaking()


def build_model(name: str) -> Any:
    """The model of a case; outputs logits of 10 classes."""
    from scalesearch.workloads.models import mlp, simple_cnn

    if name == "softmax":
        return mlp((28, 28, 1), hidden_units=1, hidden_layers=0)
    if name == "mlp_1024":
        return mlp((28, 28, 1), hidden_units=1024, hidden_layers=1)
    if name == "simple_cnn":
        return simple_cnn((28, 28, 1), dropout=0.0)
    return resnet_8((32, 32, 3))


def resnet_8(input_shape: tuple[int, ...]) -> Any:
    """A residual network of 8 layers (one block for each of 16, 32 and 64 channels) with batch normalisation."""
    import keras
    from keras import layers

    def convolution(x: Any, channels: int, *, kernel: int = 3, stride: int = 1) -> Any:
        x = layers.Conv2D(channels, kernel, strides=stride, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    inputs = keras.Input(input_shape)
    x = layers.ReLU()(convolution(inputs, 16))
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        shortcut = x if stride == 1 else convolution(x, channels, kernel=1, stride=stride)
        x = layers.ReLU()(convolution(x, channels, stride=stride))
        x = layers.ReLU()(layers.Add()([convolution(x, channels), shortcut]))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def random_data(input_shape: tuple[int, ...]) -> Any:
    """Random images of 10 classes."""
    import numpy as np

    from scalesearch.workloads.workload import Data, Split

    random = np.random.default_rng(0)

    def split(count: int) -> Split:
        inputs = random.integers(0, 256, (count, *input_shape), dtype=np.uint8)
        return Split(inputs=inputs, labels=random.integers(0, 10, count, dtype=np.int32))

    return Data(train=split(TRAIN_EXAMPLES), validation=split(VALIDATION_EXAMPLES))


def resident_mb() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    main()
