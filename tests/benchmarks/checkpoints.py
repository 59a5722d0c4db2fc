"""What it takes to save and restore a trial's state: Simple CNN with momentum on random data.

    python tests/benchmarks/checkpoints.py [--folder FOLDER]

Saving is taking the snapshot and writing its file, restoring is reading the file and setting a warm trainer to it.
Each replica count has a process of its own. Medians and ranges of some turns; run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

REPLICAS = (1, 2)
TURNS = 15
BATCH = 64
MAX_SAVE_MS, MAX_RESTORE_MS, MAX_RATIO = 250, 500, 1.1


def main() -> None:
    """Measure each replica count in a process of its own, and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure")
    parser.add_argument("--replicas", type=int, help=argparse.SUPPRESS)  # what a child process measures
    options = parser.parse_args()
    if options.replicas is not None:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            sys.stdout.write("\n".join(measure(options.replicas, Path(folder) / "snapshot.safetensors")) + "\n")
        return
    for replicas in REPLICAS:
        command = [sys.executable, __file__, "--folder", str(options.folder), "--replicas", str(replicas)]
        subprocess.run(command, check=True)


def measure(replicas: int, path: Path) -> list[str]:
    """Save and restore in turn; one line for each figure."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from scalesearch.training.checkpoints import Fingerprint, Snapshot, data_digest, load, save

    trainer, data = simple_cnn_trainer(replicas)
    seconds: dict[str, list[float]] = {name: [] for name in ("digest", "snapshot", "write", "read", "set")}

    def timed(name: str, action: Callable[[], Any]) -> Any:
        started = perf_counter()
        result = action()
        seconds[name].append(perf_counter() - started)
        return result

    train(trainer, steps=3)
    for _ in range(TURNS):
        digest = timed("digest", lambda: data_digest(data))
        fingerprint = Fingerprint(workload="simple_cnn", options={}, optimizer="momentum", data=digest)
        taken: Snapshot = timed("snapshot", trainer.snapshot)
        timed("write", lambda taken=taken, fingerprint=fingerprint: save(taken, path, fingerprint=fingerprint))
        found = timed("read", lambda fingerprint=fingerprint: load(path, fingerprint=fingerprint))
        timed("set", lambda found=found: train(trainer, steps=3, start=found))
    raw, size = sum(value.nbytes for value in taken.values), path.stat().st_size
    save_ms = [1e3 * sum(turn) for turn in zip(seconds["snapshot"], seconds["write"], strict=True)]
    restore_ms = [1e3 * sum(turn) for turn in zip(seconds["read"], seconds["set"], strict=True)]
    parts = ", ".join(f"{name} {1e3 * statistics.median(turns):.0f} ms" for name, turns in seconds.items())
    return [
        f"Simple CNN with momentum, {replicas} replica(s), {TURNS} turns",
        f"  save     {figure(save_ms)}, must be ≤ {MAX_SAVE_MS} ms",
        f"  restore  {figure(restore_ms)}, must be ≤ {MAX_RESTORE_MS} ms",
        f"  size     {size / 1e6:.2f} MB, × {size / raw:.4f} of the raw bytes, must be ≤ × {MAX_RATIO}",
        f"  parts    {parts} (the digest of {data.train.inputs.nbytes / 1e6:.0f} MB of inputs is once per worker)",
        f"  going on from the file {'equals' if goes_on_equally(trainer, found) else 'DIFFERS FROM'} the uninterrupted run",
    ]


def figure(milliseconds: list[float]) -> str:
    """Median and range."""
    return f"{statistics.median(milliseconds):.0f} ms ({min(milliseconds):.0f}–{max(milliseconds):.0f})"


def goes_on_equally(trainer: Any, snapshot: Any) -> bool:
    """Whether ten more steps from the snapshot and ten more steps of an uninterrupted run give the same state."""
    ends = []
    for start in (None, snapshot):
        train(trainer, steps=13, start=start)
        ends.append([value.tobytes() for value in trainer.snapshot().values])
    return ends[0] == ends[1]


def simple_cnn_trainer(replicas: int) -> tuple[Any, Any]:
    """A trainer of Simple CNN on random data of the size of Fashion-MNIST's, and these data."""
    import numpy as np
    import tensorflow as tf

    from scalesearch.training.devices import configure_devices
    from scalesearch.training.engine import MirroredTrainer
    from scalesearch.workloads.classification import cross_entropy
    from scalesearch.workloads.models import simple_cnn
    from scalesearch.workloads.workload import Data, Split, Workload

    random = np.random.default_rng(0)

    def split(count: int) -> Split:
        inputs = random.integers(0, 256, (count, 28, 28, 1), dtype=np.uint8)
        return Split(inputs=inputs, labels=random.integers(0, 10, count, dtype=np.int32))

    data = Data(train=split(55_000), validation=split(100))
    workload = Workload(
        name="simple_cnn",
        load_data=lambda: data,
        build_model=lambda: simple_cnn((28, 28, 1), dropout=0.4),
        loss=cross_entropy,
        metrics={},
        prepare=lambda inputs: tf.cast(inputs, tf.float32) / 255.0,
    )
    return MirroredTrainer(workload, data, optimizer="momentum", devices=configure_devices(replicas)), data


def train(trainer: Any, *, steps: int, start: Any = None) -> None:
    """Train until `steps` steps are done, with a measurement after every third."""
    from scalesearch.core.evaluation import EvaluationPlan
    from scalesearch.core.parameters import Parameters
    from scalesearch.core.results import Objective
    from scalesearch.core.schedule import Constant

    plan = EvaluationPlan(
        objective=Objective(metric="val/loss", direction="minimize", target=None, minimize="metric"),
        boundaries=(),
        first_examples=3 * BATCH,
        max_interval_examples=3 * BATCH,
        end_examples=steps * BATCH,
    )
    parameters = Parameters(global_batch_size=BATCH, schedule=Constant(learning_rate=0.01), momentum=0.9)
    for _ in trainer.train(parameters, seed=0, plan=plan, start=start):
        pass


if __name__ == "__main__":
    main()
