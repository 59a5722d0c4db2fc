"""The IDX format of MNIST and Fashion-MNIST, plain or compressed with gzip.

A file is two zero bytes, a type code, the number of dimensions, each dimension as a big-endian 32-bit
integer, and the elements in C order. Images and labels are unsigned bytes (type code 8).
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np

from scalesearch.errors import DataError
from scalesearch.workloads.images import Array
from scalesearch.workloads.sources import UnavailableError

_UNSIGNED_BYTE = 0x08


def find_idx(folder: Path, name: str) -> Path:
    """The file `name` in `folder`, as it is or with the ending .gz.

    Raises:
        UnavailableError: there is neither.
    """
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise UnavailableError(f"{folder / name} does not exist, neither plain nor as .gz")


def read_idx(path: Path, *, shape: tuple[int, ...]) -> Array:
    """The unsigned bytes in the file `path`, which must hold an array of `shape`.

    Raises:
        DataError: the file is damaged or holds something else.
    """
    content = _read_bytes(path)
    header_bytes = 4 * (1 + len(shape))
    if len(content) < header_bytes:
        raise DataError(
            f"{path}: expected an IDX header of {header_bytes} bytes, but the file has {len(content)} bytes."
        )
    magic, *dimensions = np.frombuffer(content, ">u4", count=1 + len(shape)).tolist()
    expected_magic = _UNSIGNED_BYTE << 8 | len(shape)
    if magic != expected_magic:
        raise DataError(
            f"{path}: expected the magic number 0x{expected_magic:08x} (IDX, unsigned bytes, {len(shape)} "
            f"dimensions), but found 0x{magic:08x}."
        )
    if tuple(dimensions) != shape:
        raise DataError(f"{path}: expected the dimensions {_times(shape)}, but found {_times(dimensions)}.")
    data_bytes = len(content) - header_bytes
    if data_bytes != prod(shape):
        damage = "truncated" if data_bytes < prod(shape) else "too long"
        raise DataError(
            f"{path}: expected {prod(shape)} bytes of data after the header, but found {data_bytes}; "
            f"the file is {damage}."
        )
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape)


def _read_bytes(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: expected a complete gzip file, but decompressing it failed: {error}.") from error
    except OSError as error:
        raise DataError(f"{path}: the file cannot be read: {error.strerror}.") from error


def _times(dimensions: Sequence[int]) -> str:
    return "×".join(map(str, dimensions))
