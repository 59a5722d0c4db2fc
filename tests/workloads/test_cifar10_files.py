from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from scalesearch.errors import DataError
from scalesearch.workloads import Split
from scalesearch.workloads.cifar10_files import FILES, read_binary, read_cifar10, read_pickle
from scalesearch.workloads.sources import UnavailableError

Array = np.ndarray[Any, Any]
PLANES = np.random.default_rng(0).integers(0, 256, (10_000, 3_072), np.uint8)
LABELS = np.arange(10_000) % 10


class Python2Pickler(pickle._Pickler):
    """Writes pickles as Python 2 did, in which CIFAR-10 was published: str is a byte string."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_byte_string(self, value: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    def save_str(self, value: str) -> None:
        self.save_byte_string(value.encode("latin1"))

    dispatch[bytes] = save_byte_string
    dispatch[str] = save_str


def write_pickle(path: Path, batch: object) -> Path:
    with path.open("wb") as file:
        Python2Pickler(file, protocol=2).dump(batch)
    path.write_bytes(path.read_bytes().replace(b"cnumpy._core.", b"cnumpy.core."))
    return path


def write_binary(path: Path, planes: Array = PLANES, labels: Array = LABELS) -> Path:
    path.write_bytes(np.hstack([labels[:, np.newaxis].astype(np.uint8), planes]).tobytes())
    return path


def batch(**changes: object) -> dict[str, object]:
    return {"data": PLANES, "labels": LABELS.tolist(), "batch_label": "training batch 1 of 5", **changes}


def check(split: Split) -> None:
    np.testing.assert_array_equal(split.labels, LABELS)
    assert split.inputs.shape == (10_000, 32, 32, 3)
    for channel in range(3):  # red, green, blue planes, each row by row
        plane = PLANES[:, 1_024 * channel : 1_024 * (channel + 1)].reshape(-1, 32, 32)
        np.testing.assert_array_equal(split.inputs[..., channel], plane)


def test_reads_a_binary_file(tmp_path: Path) -> None:
    check(read_binary(write_binary(tmp_path / "test_batch.bin")))


def test_reads_a_pickle_of_python_2(tmp_path: Path) -> None:
    check(read_pickle(write_pickle(tmp_path / "test_batch", batch())))


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda content: content[:-1], "30729999 bytes"),
        (lambda content: content + b"\0", "30730001 bytes"),
        (lambda content: b"", "0 bytes"),
    ],
)
def test_binary_file_of_another_size(damage: Callable[[bytes], bytes], found: str, tmp_path: Path) -> None:
    path = write_binary(tmp_path / "test_batch.bin")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError) as caught:
        read_binary(path)
    assert str(caught.value) == (
        f"{path}: expected 10000 records of 3073 bytes, in all 30730000 bytes, but found {found}."
    )


def test_label_that_is_no_class(tmp_path: Path) -> None:
    path = write_binary(tmp_path / "test_batch.bin", labels=np.where(np.arange(10_000) == 77, 10, LABELS))
    with pytest.raises(DataError, match=r"between 0 and 9, but the one at position 77 is 10"):
        read_binary(path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (batch(data=PLANES[:9_999]), r"expected data of shape \(10000, 3072\), but found \(9999, 3072\)"),
        (batch(data=PLANES[:, :-1]), r"expected data of shape \(10000, 3072\), but found \(10000, 3071\)"),
        (batch(data=PLANES.astype(np.float32)), "expected uint8 of shape .* but found float32"),
        (batch(labels=[1, 2]), r"expected uint8 of shape \(10000,\), but found uint8 of shape \(2,\)"),
        (batch(labels=[300] * 10_000), "OverflowError"),
        ({"data": PLANES}, "KeyError: b'labels'"),
        ([1, 2], "TypeError"),
    ],
)
def test_pickle_that_holds_something_else(content: object, expected: str, tmp_path: Path) -> None:
    path = write_pickle(tmp_path / "test_batch", content)
    with pytest.raises(DataError, match=expected) as caught:
        read_pickle(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("content", [b"", b"<html>not found</html>"])
def test_file_that_is_no_pickle(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "test_batch"
    path.write_bytes(content)
    with pytest.raises(DataError, match="expected a pickled dict with data and labels"):
        read_pickle(path)


def test_truncated_pickle(tmp_path: Path) -> None:
    path = write_pickle(tmp_path / "test_batch", batch())
    path.write_bytes(path.read_bytes()[:20_000_000])
    with pytest.raises(DataError, match="expected a pickled dict with data and labels"):
        read_pickle(path)


class MakesFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "test_batch"
    path.write_bytes(pickle.dumps({b"data": MakesFolder(tmp_path / "made")}))
    with pytest.raises(DataError, match=r"mkdir does not belong in a file of images"):
        read_pickle(path)
    assert not (tmp_path / "made").exists()


def test_folder_of_python_files(tmp_path: Path) -> None:
    first = write_pickle(tmp_path / FILES[0], batch())
    for name in FILES[1:]:
        (tmp_path / name).hardlink_to(first)
    images = read_cifar10(tmp_path)
    assert len(images.train) == 50_000
    check(images.test)


def test_folder_without_all_files(tmp_path: Path) -> None:
    write_binary(tmp_path / "data_batch_1.bin")
    with pytest.raises(UnavailableError, match="does not hold data_batch_1…5 and test_batch"):
        read_cifar10(tmp_path)
