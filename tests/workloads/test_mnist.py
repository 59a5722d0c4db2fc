from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalesearch.errors import DataError
from scalesearch.workloads import fashion_mnist, load_workload, mnist
from scalesearch.workloads.workload import Data

Array = np.ndarray[Any, Any]
WriteIdx = Callable[..., Path]


def numbered_images(examples: int, *, first: int) -> Array:
    """Black images but for their number, in the first four pixels."""
    images = np.zeros((examples, 28, 28), np.uint8)
    images[:, 0, :4] = np.arange(first, first + examples, dtype=">u4").view(np.uint8).reshape(examples, 4)
    return images


def numbers(inputs: Array) -> Array:
    return np.ascontiguousarray(inputs[:, 0, :4, 0]).view(">u4").ravel()


@pytest.fixture(scope="module")
def arrays() -> dict[str, Array]:
    return {
        "train-images-idx3-ubyte": numbered_images(60_000, first=0),
        "train-labels-idx1-ubyte": np.arange(60_000) % 10,
        "t10k-images-idx3-ubyte": numbered_images(10_000, first=60_000),
        "t10k-labels-idx1-ubyte": np.arange(60_000, 70_000) % 10,
    }


@pytest.fixture(scope="module")
def idx_folder(arrays: dict[str, Array], tmp_path_factory: pytest.TempPathFactory, write_idx: WriteIdx) -> Path:
    folder = tmp_path_factory.mktemp("idx")
    for name, array in arrays.items():
        write_idx(folder / name, array)
    return folder


@pytest.fixture
def own_files(idx_folder: Path, data_folder: Path) -> Path:
    """Folder `mnist` and `fashion_mnist` of SCALESEARCH_DATA, with links to complete files."""
    for data_set in ("mnist", "fashion_mnist"):
        (data_folder / data_set).mkdir()
        for file in idx_folder.iterdir():
            (data_folder / data_set / file.name).symlink_to(file)
    return data_folder


def check_numbered_splits(data: Data) -> None:
    assert data.test is not None
    splits = (data.train, data.validation, data.test)
    for split, first, end in zip(splits, (0, 55_000, 60_000), (55_000, 60_000, 70_000), strict=True):
        np.testing.assert_array_equal(numbers(split.inputs), np.arange(first, end))
        np.testing.assert_array_equal(split.labels, np.arange(first, end) % 10)
        assert split.inputs.shape[1:] == (28, 28, 1)
        assert split.inputs.dtype == np.uint8
        assert split.labels.dtype == np.int32


@pytest.mark.parametrize("name", ["mnist/mlp", "fashion_mnist/simple_cnn"])
def test_splits_are_disjoint_and_validation_is_the_last_5000(name: str, own_files: Path) -> None:
    check_numbered_splits(load_workload(name).load_data())


def test_reads_the_file_in_kerass_cache(arrays: dict[str, Array], data_folder: Path, tmp_path: Path) -> None:
    cached = tmp_path / "keras" / "datasets" / "mnist.npz"
    cached.parent.mkdir(parents=True)
    x_train, y_train, x_test, y_test = (array.astype(np.uint8) for array in arrays.values())
    np.savez(cached, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    check_numbered_splits(mnist.load_data())


def test_fashion_mnist_in_kerass_cache_comes_before_the_distributions(
    idx_folder: Path, data_folder: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "keras" / "datasets"
    cache.mkdir(parents=True)
    (cache / "fashion-mnist").symlink_to(idx_folder)
    check_numbered_splits(fashion_mnist.load_data())


def replace(path: Path, write_idx: WriteIdx, array: Array) -> Path:
    path.unlink()
    return write_idx(path, array)


@pytest.mark.parametrize(
    ("name", "array", "expected"),
    [
        ("train-labels-idx1-ubyte", np.zeros(59_999), "expected the dimensions 60000, but found 59999"),
        ("t10k-images-idx3-ubyte", np.zeros((9_999, 28, 28)), "10000×28×28, but found 9999×28×28"),
        ("t10k-images-idx3-ubyte", np.zeros((10_000, 28, 27)), "10000×28×28, but found 10000×28×27"),
        ("t10k-labels-idx1-ubyte", np.arange(10_000) % 11, "between 0 and 9, but the one at position 10 is 10"),
    ],
)
def test_files_that_do_not_fit_together(
    name: str, array: Array, expected: str, own_files: Path, write_idx: WriteIdx
) -> None:
    path = replace(own_files / "mnist" / name, write_idx, array)
    with pytest.raises(DataError) as caught:
        mnist.load_data()
    assert str(caught.value).startswith(f"{path}: ")
    assert expected in str(caught.value)


def with_keys(path: Path, **changes: Array) -> None:
    small = {key: np.zeros(3, np.uint8) for key in ("x_train", "y_train", "x_test", "y_test")}
    np.savez(path, **{**small, **changes})


def pickled_objects(path: Path) -> None:
    with_keys(path, x_train=np.array([{}], object))


def missing_key(path: Path) -> None:
    np.savez(path, x_train=np.zeros(3, np.uint8))


def truncated(path: Path) -> None:
    with_keys(path)
    path.write_bytes(path.read_bytes()[:-30])


def single_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(3, np.uint8))


def no_npz(path: Path) -> None:
    path.write_bytes(b"<html>not found</html>")


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (pickled_objects, "expected an npz file"),
        (missing_key, "y_train"),
        (truncated, "expected an npz file"),
        (single_array, "expected an npz file"),
        (no_npz, "expected an npz file"),
        (with_keys, "expected uint8 of shape (60000, 28, 28), but found uint8 of shape (3,)"),
    ],
)
def test_damaged_npz(write: Callable[[Path], None], expected: str, tmp_path: Path) -> None:
    path = tmp_path / "mnist.npz"
    write(path)
    with pytest.raises(DataError) as caught:
        mnist.read_npz(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert expected in str(caught.value)


def test_prepared_pixels_are_float32_from_0_to_1() -> None:
    prepared = mnist.prepare(np.array([0, 51, 255], np.uint8)).numpy()
    assert prepared.dtype == np.float32
    np.testing.assert_allclose(prepared, [0, 0.2, 1])
