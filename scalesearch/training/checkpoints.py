"""A trial's full state, and the files that keep it.

All that a trial's future depends on is in its variables, its parameters, its seed and the measurement it has come to.
The learning rate and the order of the data follow from the step; sums (of the loss, of micro-batches) start anew
after each measurement.

A file is in the safetensors format, which holds arrays and text and no code. Its metadata are:

- `format` and `version`,
- `content`: all but the arrays, and the fingerprint of workload and data, as JSON,
- `checksum`: the SHA-256 of the content and the arrays.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from scalesearch.core.noise_scale import GradientNoise
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Measurement
from scalesearch.core.schedule import rates
from scalesearch.errors import SnapshotError
from scalesearch.workloads.workload import Data

Array = np.ndarray[Any, Any]

FORMAT = "scalesearch snapshot"
VERSION = 1
BYTES_READ_PER_ARRAY = 64 * 2**20  # of a data set, for its fingerprint

_PARAMETERS = TypeAdapter(Parameters)
_NOISE: TypeAdapter[GradientNoise | None] = TypeAdapter(GradientNoise | None)


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """What a snapshot's workload and data must equal. `data` is the `data_digest`."""

    workload: str
    options: Mapping[str, Any]
    optimizer: str
    data: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """The state of a training run just after a measurement.

    `values` are those of the loop's variables in their order, as the first replica holds them: at a measurement all
    replicas hold the same (but for what the next step sets anew). `path` is the file it was loaded from.
    """

    parameters: Parameters
    seed: int
    replicas: int
    measurement: Measurement
    values: tuple[Array, ...]
    path: Path | None = None

    def check_on_the_way(self, parameters: Parameters, *, seed: int) -> None:
        """Raise SnapshotError unless a run with these parameters and this seed passes through this state.

        Accumulation and the number of replicas may differ: they are how a step is computed, not what it computes.
        """
        mine, step = self.parameters, self.measurement.step
        for name, found, wanted in (
            ("seed", self.seed, seed),
            ("global_batch_size", mine.global_batch_size, parameters.global_batch_size),
            ("momentum", mine.momentum, parameters.momentum),
        ):
            if found != wanted:
                raise SnapshotError(f"{self._name} is of a run with `{name}` {found}, which cannot go on with {wanted}")
        starts = np.arange(step) * mine.global_batch_size
        differ = np.flatnonzero(rates(mine.schedule, starts) != rates(parameters.schedule, starts))
        if len(differ):
            raise SnapshotError(
                f"{self._name} is after {step} steps, but the learning rates of {mine.schedule} and "
                f"{parameters.schedule} differ from step {differ[0]} on; start from a snapshot before it"
            )

    def check_fits(self, variables: Sequence[Any]) -> None:
        """Raise SnapshotError unless there is one value of the right shape and type for each variable."""
        if len(self.values) != len(variables):
            raise self._misfit(f"it holds {len(self.values)} variables, they have {len(variables)}")
        for variable, value in zip(variables, self.values, strict=True):
            found, wanted = (f"{v.dtype}{list(v.shape)}" for v in (value, variable))
            if found != wanted:
                raise self._misfit(f"{variable.path} is {found} in it, but {wanted} here")

    def _misfit(self, how: str) -> SnapshotError:
        return SnapshotError(
            f"{self._name} does not fit the model and its optimizer: {how}. The workload's code has changed since"
        )

    @property
    def _name(self) -> str:
        return "the snapshot" if self.path is None else f"snapshot {self.path}"


def data_digest(data: Data) -> str:
    """The SHA-256 of all splits; of large arrays, of evenly spaced examples, at most `BYTES_READ_PER_ARRAY`."""
    digest = hashlib.sha256()
    for name, split in (("train", data.train), ("validation", data.validation), ("test", data.test)):
        for array in (split.inputs, split.labels) if split is not None else ():
            every = max(1, -(-array.nbytes // BYTES_READ_PER_ARRAY))
            digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array[::every]).data)
    return digest.hexdigest()


def save(snapshot: Snapshot, path: Path, *, fingerprint: Fingerprint) -> None:
    """Write a snapshot; `path` holds the whole of it or what it held before, whenever the machine stops.

    Raises:
        SnapshotError: the file cannot be written, on a full disk for example.
    """
    content = json.dumps(
        {
            "fingerprint": asdict(fingerprint),
            "parameters": _PARAMETERS.dump_python(snapshot.parameters, mode="json"),
            "seed": snapshot.seed,
            "replicas": snapshot.replicas,
            "measurement": asdict(snapshot.measurement),
        }
    )
    values = {f"{i:05}": np.asarray(value, order="C") for i, value in enumerate(snapshot.values)}
    checksum = _checksum(content, values)
    metadata = {"format": FORMAT, "version": str(VERSION), "content": content, "checksum": checksum}
    _write_atomically(path, to_safetensors(values, metadata=metadata))


def load(path: Path, *, fingerprint: Fingerprint) -> Snapshot:
    """Read what `save` has written for the workload and data of `fingerprint`.

    Raises:
        SnapshotError: the file is missing, damaged, not a snapshot, of another version, or of another workload.
    """
    metadata, values = _read(path)
    content = metadata["content"]
    if _checksum(content, values) != metadata["checksum"]:
        raise SnapshotError(f"snapshot {path} is damaged: its content does not match its checksum")
    fields = json.loads(content)
    measurement = fields["measurement"]
    _check_fingerprint(path, found=fields["fingerprint"], wanted=json.loads(json.dumps(asdict(fingerprint))))
    return Snapshot(
        parameters=_PARAMETERS.validate_python(fields["parameters"]),
        seed=fields["seed"],
        replicas=fields["replicas"],
        measurement=Measurement(**measurement | {"noise": _NOISE.validate_python(measurement.get("noise"))}),
        values=tuple(values.values()),
        path=path,
    )


def _read(path: Path) -> tuple[dict[str, str], dict[str, Array]]:
    """Metadata and values of a file that says that it is a snapshot of this version."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            _check_format(path, metadata)
            return metadata, {name: file.get_tensor(name) for name in sorted(file.keys())}
    except OSError as error:
        raise SnapshotError(f"snapshot {path} cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise SnapshotError(f"{path} is damaged, or no snapshot: {error}") from error


def _check_format(path: Path, metadata: Mapping[str, str]) -> None:
    if metadata.get("format") != FORMAT or not {"version", "content", "checksum"} <= metadata.keys():
        raise SnapshotError(f"{path} is not a snapshot of scalesearch")
    if (version := metadata["version"]) != str(VERSION):
        raise SnapshotError(
            f"snapshot {path} has format version {version}, but this scalesearch reads version {VERSION}"
        )


def _check_fingerprint(path: Path, *, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name, value in wanted.items():
        if found[name] != value:
            raise SnapshotError(
                f"snapshot {path} is of another workload or other data: `{name}` is {found[name]!r} in it, but "
                f"{value!r} here"
            )


def _checksum(content: str, values: Mapping[str, Array]) -> str:
    digest = hashlib.sha256(content.encode())
    for name, value in values.items():
        digest.update(f"{name} {value.dtype} {value.shape}".encode())
        digest.update(value.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _write_atomically(path: Path, content: bytes) -> None:
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _sync(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise SnapshotError(
            f"snapshot {path} cannot be written: {error.strerror or error}; the trial can go on, but not be resumed here"
        ) from error


def _sync(folder: Path) -> None:
    """Make a rename in the folder last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
