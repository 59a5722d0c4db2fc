"""What the snapshots of a normal study cost: the same trial with and without them, in turn, by a worker of its own.

    python tests/benchmarks/snapshot_overhead.py [--workload fashion_mnist/mlp] [--turns 5] [--epochs 4]

Snapshots are taken and kept as in a study whose trials may fork; overhead is that of the medians of wall time and of the
worker's processor time, which other programs on the machine disturb less. It must be at most 2 %.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from scalesearch.core.evaluation import EvaluationPlan
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Objective, Outcome
from scalesearch.core.schedule import Piecewise
from scalesearch.execution.local import LocalExecutor
from scalesearch.execution.messages import Ended, Measured, TrialRequest, WorkerSetup
from scalesearch.search.queue import OpenTrial
from scalesearch.study import Forking, SnapshotFolder

BATCH = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="fashion_mnist/mlp")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        setup = WorkerSetup(workload=options.workload, options={}, optimizer="momentum", replicas=1)
        executor = LocalExecutor(setup, log_path=Path(folder) / "log", no_progress_seconds=900.0)
        try:
            epoch = executor.start().train_examples
            turns = list(measure(executor, Path(folder), options.epochs * epoch, epoch, options.turns))
        finally:
            executor.close()
    for i, name in enumerate(("wall time", "processor time")):
        without, with_them = (statistics.median(t[i] for t in turns if t[2] is taken) for taken in (False, True))
        sys.stdout.write(f"{name}: {without:.2f} s without, {with_them:.2f} s with: {with_them / without - 1:+.1%}\n")
    sys.stdout.write(f"snapshots of each trial: {[t[3] for t in turns if t[2]]}; they say that they took ")
    sys.stdout.write(f"{statistics.median(t[4] / t[0] for t in turns if t[2]):.2%} of it\n")


def measure(
    executor: LocalExecutor, folder: Path, examples: int, epoch: int, turns: int
) -> Iterator[tuple[float, float, bool, int, float]]:
    """Of each trial: wall and processor seconds, whether snapshots were taken, how many, and what they say they took."""
    schedule = Piecewise(learning_rate=0.02, decay_factor=0.1, boundaries=(int(0.6 * examples), int(0.9 * examples)))
    parameters = Parameters(global_batch_size=BATCH, schedule=schedule, momentum=0.9)
    plan = EvaluationPlan(
        objective=Objective(metric="val/loss", direction="minimize", target=None, minimize="metric"),
        boundaries=schedule.boundaries,
        first_examples=epoch // 10,
        max_interval_examples=epoch,
        end_examples=examples,
    )
    snapshots = SnapshotFolder(folder / "s", forks=Forking(decays=2, max_examples=examples, limit_bytes=2**30))
    for number in count():
        taken = number % 2 == 0
        if number > 2 * turns:
            return
        trial = OpenTrial(number=number, parameters=parameters, seed=0, is_baseline=False)
        snapshots.trial_started(trial, plan, None)
        started, before = time.perf_counter(), processor_seconds()
        executor.submit(TrialRequest(number=number, parameters=parameters, seed=0, plan=plan))
        saved, seconds = 0, 0.0
        while True:
            event = executor.next_event(timeout_seconds=1.0)
            if event is not None and event.saved is not None:
                snapshots.written(event.saved)
                saved, seconds = saved + 1, seconds + event.saved.seconds
            if isinstance(event, Measured):
                executor.proceed(snapshot=snapshots.due(event.measurement) if taken else None)
            elif isinstance(event, Ended):
                break
        snapshots.trial_ended(Outcome.EXHAUSTED)
        if number:  # the first one compiles
            yield time.perf_counter() - started, processor_seconds() - before, taken, saved, seconds


def processor_seconds() -> float:
    """Of the worker, user and system."""
    (worker,) = multiprocessing.active_children()
    fields = Path(f"/proc/{worker.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
