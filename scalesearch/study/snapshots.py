"""The snapshots of a study's trials: which are kept, and where a trial goes on.

A trial goes on from the deepest snapshot of a run with its seed that it passes through: an interrupted one from its own
last one, a new one that differs from an earlier trial in later decays only from one of that trial's (a fork). What there
is to go on from changes nothing but what a trial costs.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalesearch.core.evaluation import EvaluationPlan
from scalesearch.core.prefix import common_measurements
from scalesearch.core.results import Measurement, Outcome, TrialResult
from scalesearch.execution.messages import Saved
from scalesearch.search.queue import OpenTrial
from scalesearch.study.snapshot_times import Forking, Overhead, SnapshotTimes

FORKED = (Outcome.REACHED, Outcome.CAPPED, Outcome.EXHAUSTED)
_FILE = re.compile(r"trial-(\d+)-step-(\d+)\.safetensors")


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """Where a trial goes on: the file, and the measurements up to it, which are those of trial `number`."""

    path: Path
    number: int
    measurements: tuple[Measurement, ...]


class SnapshotFolder:
    """The newest snapshot of each trial that is running or interrupted and, with `forks`, some of every trial's.

    A trial and its repeats are one and the same run, so they have their files in common, by the number of the first of
    them, the origin. The worker writes the files; a driver has to hold the study's lease.
    """

    def __init__(self, path: Path, *, forks: Forking | None = None) -> None:
        self._path = path
        self._forks = forks
        self._overhead = Overhead()
        self._origin: int | None = None
        self._times: SnapshotTimes | None = None
        self._lasting: set[Path] = set()
        self._interrupted: frozenset[int] = frozenset()
        self._failing = False

    def sweep(self, *, keep: Collection[int]) -> None:
        """Remove what drivers and workers that were killed have left, but for the trials of the origins `keep`."""
        self._interrupted = frozenset(keep)
        for path in list(self._path.glob("*")):
            if not (file := _FILE.fullmatch(path.name)) or not (self._forks or int(file[1]) in keep):
                path.unlink()

    def trial_started(self, trial: OpenTrial, plan: EvaluationPlan, goes_on: Continuation | None) -> None:
        """The snapshots that are asked for from now on are of that trial."""
        self._origin = trial.origin
        self._lasting = {path for (origin, _), path in self._files().items() if self._forks and origin == trial.origin}
        since = goes_on.measurements[-1] if goes_on else None
        self._times = SnapshotTimes(trial.parameters, plan, since=since, forks=self._forks, overhead=self._overhead)

    def due(self, now: Measurement) -> Path | None:
        """The file for a snapshot at this measurement, if one is worth its time."""
        path, times = self.at(now), self._times
        assert times is not None
        is_due = times.due(now)
        to_fork = times.is_fork(now)
        if path is None or not (is_due or to_fork):
            return None
        times.ask(now, to_fork=to_fork)
        if to_fork:
            self._lasting.add(path)
        return path

    def at(self, now: Measurement) -> Path | None:
        """The file for a snapshot at this measurement, if there is anything to keep."""
        return self._path / f"trial-{self._origin}-step-{now.step}.safetensors" if now.step else None

    def written(self, saved: Saved) -> str | None:
        """Take note of what became of a snapshot; a sentence if it failed and the one before it did not."""
        assert self._times is not None
        self._times.asked = False
        self._overhead.took(saved.seconds)
        failed_before, self._failing = self._failing, bool(saved.problem)
        if saved.problem:
            return None if failed_before else saved.problem
        self._remove_all_but({saved.path} | self._lasting)
        self._evict()
        return None

    def continuation(
        self, trial: OpenTrial, results: Sequence[TrialResult], plan: EvaluationPlan
    ) -> Continuation | None:
        """Where a trial goes on: the deepest snapshot of a run with its seed on its way, as far as the records reach."""
        deepest: Continuation | None = None
        same_seed = [r for r in results if r.seed == trial.seed]
        files = self._files() if same_seed else {}
        for result in same_seed:
            repeats = [r.number for r in same_seed if r.parameters == result.parameters]
            measured = result.measurements
            count = common_measurements(measured, of=result.parameters, by=trial.parameters, plan=plan)
            for i in range(len(deepest.measurements) if deepest else 0, count):
                paths = (files.get((number, measured[i].step)) for number in repeats)
                if path := next(filter(None, paths), None):
                    deepest = Continuation(path=path, number=result.number, measurements=measured[: i + 1])
        if deepest is not None:
            deepest.path.touch()
        return deepest

    def refused(self, path: Path | None) -> None:
        """Remove the file that the running trial could not go on from, and its own: it begins anew."""
        if path is not None:
            path.unlink(missing_ok=True)
        self._remove_all_but(set())

    def trial_ended(self, outcome: Outcome) -> None:
        """Of the running trial, keep what others may fork from; all of it, if it was interrupted."""
        assert self._origin is not None
        if outcome is Outcome.INTERRUPTED:
            self._interrupted |= {self._origin}
            return
        self._interrupted -= {self._origin}
        self._remove_all_but(self._lasting if outcome in FORKED else set())
        self._origin = None
        self._evict()
        with contextlib.suppress(OSError):  # others are in it, or there never was one
            self._path.rmdir()

    def _remove_all_but(self, kept: Collection[Path]) -> None:
        """Of the running trial's files."""
        for path in list(self._path.glob(f"trial-{self._origin}-*")):
            if path not in kept:
                path.unlink(missing_ok=True)

    def _evict(self) -> None:
        """Remove those used longest ago, until the others keep within the limit; never what an unfinished trial needs."""
        if self._forks is None:
            return
        files = [(path.stat(), origin, path) for (origin, _), path in self._files().items()]
        excess = sum(stat.st_size for stat, _, _ in files) - self._forks.limit_bytes
        for stat, origin, path in sorted(files, key=lambda file: file[0].st_mtime_ns):
            if excess <= 0:
                return
            if origin != self._origin and origin not in self._interrupted:
                path.unlink(missing_ok=True)
                excess -= stat.st_size

    def _files(self) -> dict[tuple[int, int], Path]:
        """By the origin and the step."""
        found = ((_FILE.fullmatch(path.name), path) for path in self._path.glob("trial-*"))
        return {(int(file[1]), int(file[2])): path for file, path in found if file}
