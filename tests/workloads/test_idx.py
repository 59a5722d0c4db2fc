from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from scalesearch.errors import DataError
from scalesearch.workloads.idx import find_idx, read_idx
from scalesearch.workloads.sources import UnavailableError

SHAPE = (5, 3, 2)
IMAGES = np.arange(30, dtype=np.uint8).reshape(SHAPE)


@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_reads_what_was_written(name: str, tmp_path: Path, write_idx: Callable[..., Path]) -> None:
    read = read_idx(write_idx(tmp_path / name, IMAGES), shape=SHAPE)
    np.testing.assert_array_equal(read, IMAGES)
    assert read.dtype == np.uint8


def header_only(content: bytes) -> bytes:
    return content[:7]


def truncated(content: bytes) -> bytes:
    return content[:-1]


def too_long(content: bytes) -> bytes:
    return content + b"\0"


def wrong_magic(content: bytes) -> bytes:
    return b"\0\0\x0d\x03" + content[4:]


def labels_instead_of_images(content: bytes) -> bytes:
    return b"\0\0\x08\x01\0\0\0\x1e" + content[16:]


def other_count(content: bytes) -> bytes:
    return content[:7] + b"\4" + content[8:]


def other_height(content: bytes) -> bytes:
    return content[:11] + b"\7" + content[12:]


DAMAGES = [
    (header_only, "expected an IDX header of 16 bytes, but the file has 7 bytes"),
    (truncated, "expected 30 bytes of data after the header, but found 29; the file is truncated"),
    (too_long, "expected 30 bytes of data after the header, but found 31; the file is too long"),
    (wrong_magic, "expected the magic number 0x00000803 (IDX, unsigned bytes, 3 dimensions), but found 0x00000d03"),
    (labels_instead_of_images, "but found 0x00000801"),
    (other_count, "expected the dimensions 5×3×2, but found 4×3×2"),
    (other_height, "expected the dimensions 5×3×2, but found 5×7×2"),
]


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(("damage", "expected"), DAMAGES)
def test_damaged_file_is_named_with_what_was_expected_and_found(
    damage: Callable[[bytes], bytes],
    expected: str,
    ending: str,
    tmp_path: Path,
    write_idx: Callable[..., Path],
) -> None:
    content = damage(write_idx(tmp_path / "whole", IMAGES).read_bytes())
    path = tmp_path / f"damaged{ending}"
    path.write_bytes(gzip.compress(content) if ending else content)
    with pytest.raises(DataError) as caught:
        read_idx(path, shape=SHAPE)
    assert str(caught.value).startswith(f"{path}: ")
    assert expected in str(caught.value)


def no_gzip(content: bytes) -> bytes:
    return b"<html>not found</html>"


def flipped(content: bytes) -> bytes:
    return content[:-12] + bytes([content[-12] ^ 0xFF]) + content[-11:]


def invalid_block(content: bytes) -> bytes:
    return content[:10] + b"\xff" + content[11:]


def wrong_checksum(content: bytes) -> bytes:
    return content[:-8] + b"\1\2\3\4" + content[-4:]


@pytest.mark.parametrize("damage", [no_gzip, truncated, flipped, invalid_block, wrong_checksum])
def test_damaged_compression(damage: Callable[[bytes], bytes], tmp_path: Path, write_idx: Callable[..., Path]) -> None:
    path = write_idx(tmp_path / "images.gz", IMAGES)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError) as caught:
        read_idx(path, shape=SHAPE)
    assert str(caught.value).startswith(f"{path}: expected a complete gzip file, but decompressing it failed")


@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_empty_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"")
    with pytest.raises(DataError, match="but the file has 0 bytes"):
        read_idx(path, shape=SHAPE)


def test_unreadable_file_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read_idx(tmp_path, shape=SHAPE)


def test_plain_file_is_preferred_to_the_compressed_one(tmp_path: Path, write_idx: Callable[..., Path]) -> None:
    compressed = write_idx(tmp_path / "images.gz", IMAGES)
    assert find_idx(tmp_path, "images") == compressed
    plain = write_idx(tmp_path / "images", IMAGES)
    assert find_idx(tmp_path, "images") == plain


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"neither plain nor as \.gz"):
        find_idx(tmp_path, "images")
