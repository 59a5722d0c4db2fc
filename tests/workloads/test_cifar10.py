from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalesearch.workloads import cifar10, load_workload
from scalesearch.workloads.cifar10_files import FILES
from scalesearch.workloads.workload import Data

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def binary_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Black images but for their number, in the first four bytes of the red plane."""
    folder = tmp_path_factory.mktemp("cifar10")
    for position, name in enumerate(FILES):
        examples = np.arange(position * 10_000, (position + 1) * 10_000)
        records = np.zeros((10_000, 3_073), np.uint8)
        records[:, 0] = examples % 10
        records[:, 1:5] = examples.astype(">u4").view(np.uint8).reshape(-1, 4)
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    return folder


@pytest.fixture
def data(binary_folder: Path, data_folder: Path) -> Data:
    (data_folder / "cifar10").symlink_to(binary_folder)
    return load_workload("cifar10/densenet_bc").load_data()


def test_splits_are_disjoint_and_validation_is_the_last_5000(data: Data) -> None:
    assert data.test is not None
    splits = (data.train, data.validation, data.test)
    for split, first, end in zip(splits, (0, 45_000, 50_000), (45_000, 50_000, 60_000), strict=True):
        numbers = np.ascontiguousarray(split.inputs[:, 0, :4, 0]).view(">u4").ravel()
        np.testing.assert_array_equal(numbers, np.arange(first, end))
        np.testing.assert_array_equal(split.labels, np.arange(first, end) % 10)
        assert split.inputs.shape[1:] == (32, 32, 3)
        assert split.inputs.dtype == np.uint8
        assert split.labels.dtype == np.int32


def test_prepared_images_are_float32_and_normalised_per_channel() -> None:
    raw = np.full((1, 32, 32, 3), (188, 123, 114), np.uint8)
    prepared = cifar10.prepare(raw).numpy()
    assert prepared.dtype == np.float32
    np.testing.assert_allclose(prepared[0, 5, 5], [62.7 / 63.0, 0.0, 0.1 / 66.7], atol=1e-5)


# The law of the augmentation.


@pytest.fixture(scope="module")
def images() -> Array:
    return np.random.default_rng(0).normal(size=(40, 32, 32, 3)).astype(np.float32)


def augmented(images: Array, uniforms: Array) -> Array:
    changed: Array = cifar10.crop_and_flip(images, uniforms.astype(np.float32)).numpy()
    return changed


def every(*uniforms: float) -> Array:
    return np.tile(uniforms, (40, 1))


def test_the_middle_crop_is_the_image_itself(images: Array) -> None:
    np.testing.assert_array_equal(augmented(images, every(0.5, 0.5, 0.0)), images)


@pytest.mark.parametrize(("flip", "flipped"), [(0.0, False), (0.49, False), (0.5, True), (0.99, True)])
def test_images_are_mirrored_left_to_right_from_a_half_on(flip: float, flipped: bool, images: Array) -> None:
    expected = images[:, :, ::-1] if flipped else images
    np.testing.assert_array_equal(augmented(images, every(0.5, 0.5, flip)), expected)


def test_crops_and_flips_match_a_plain_loop(images: Array) -> None:
    uniforms = np.random.default_rng(1).random((40, 3), dtype=np.float32)
    padded = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)))
    for image, (u_row, u_column, u_flip), found in zip(padded, uniforms, augmented(images, uniforms), strict=True):
        row, column = int(u_row * 9), int(u_column * 9)
        expected = image[row : row + 32, column : column + 32]
        np.testing.assert_array_equal(found, expected[:, ::-1] if u_flip >= 0.5 else expected)


def test_extreme_uniforms_stay_inside_the_padding(images: Array) -> None:
    almost_one = float(np.nextafter(np.float32(1), np.float32(0)))
    np.testing.assert_array_equal(augmented(images, every(0, 0, 0))[:, 4:, 4:], images[:, :28, :28])
    shifted = augmented(images, every(almost_one, almost_one, 0))
    np.testing.assert_array_equal(shifted[:, :28, :28], images[:, 4:, 4:])
    np.testing.assert_array_equal(shifted[:, 28:], 0)


def test_an_example_is_changed_the_same_way_in_any_batch(images: Array) -> None:
    uniforms = np.random.default_rng(2).random((40, 3), dtype=np.float32)
    whole = augmented(images, uniforms)
    parts = [augmented(images[i : i + 8], uniforms[i : i + 8]) for i in range(0, 40, 8)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


def test_the_workload_declares_its_random_numbers() -> None:
    augmentation = load_workload("cifar10/densenet_bc").augmentation
    assert augmentation is not None
    assert augmentation.random_numbers == 3
    assert augmentation.apply is cifar10.crop_and_flip
