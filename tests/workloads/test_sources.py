from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from scalesearch.errors import DataError
from scalesearch.workloads import Split
from scalesearch.workloads.images import Images
from scalesearch.workloads.sources import (
    Source,
    UnavailableError,
    keras_cache,
    read_first,
    user_folder,
)

SPLIT = Split(inputs=np.zeros((1, 2)), labels=np.zeros(1))
IMAGES = Images(train=SPLIT, test=SPLIT)


def raising(error: DataError) -> Callable[[], Images]:
    def read() -> Images:
        raise error

    return read


def unavailable(name: str) -> Source:
    return Source(name=name, read=raising(UnavailableError(f"{name} is empty")))


DAMAGED = Source(name="damaged", read=raising(DataError("x: truncated.")))


def test_the_first_source_that_has_the_data_is_read() -> None:
    sources = [unavailable("a"), Source(name="b", read=lambda: IMAGES), DAMAGED]
    assert read_first("set", sources, files="x") is IMAGES


def test_a_damaged_source_is_an_error_and_not_passed_over() -> None:
    with pytest.raises(DataError) as caught:
        read_first("set", [DAMAGED, Source(name="b", read=lambda: IMAGES)], files="x")
    assert str(caught.value).startswith("x: truncated. This is the data set set as found by damaged: replace")


def test_without_any_source_the_error_lists_what_was_tried_and_what_to_do() -> None:
    with pytest.raises(DataError) as caught:
        read_first("set", [unavailable("a"), unavailable("b")], files="x.gz")
    message = str(caught.value)
    assert message.index("a: a is empty") < message.index("b: b is empty")
    assert "put x.gz into a folder called set" in message
    assert "SCALESEARCH_DATA" in message


def test_user_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SCALESEARCH_DATA", str(tmp_path))
    assert user_folder("mnist") == tmp_path / "mnist"
    monkeypatch.delenv("SCALESEARCH_DATA")
    with pytest.raises(UnavailableError, match="not set"):
        user_folder("mnist")


def test_keras_cache_is_where_keras_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KERAS_HOME", raising=False)
    assert keras_cache() == Path.home() / ".keras" / "datasets"
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    assert keras_cache() == tmp_path / "datasets"


DOWNLOAD_ALL = """
import socket, time
import keras
from scalesearch.errors import DataError
from scalesearch.workloads import cifar10, fashion_mnist, mnist
from pathlib import Path
fashion_mnist.DISTRIBUTION_FOLDER = Path("nowhere")
started = time.perf_counter()
for data_set in (mnist, fashion_mnist, cifar10):
    try:
        data_set.load_data()
    except DataError as error:
        assert "Keras's download: URL fetch failure" in str(error), error
    else:
        raise SystemExit("there was data")
assert socket.getdefaulttimeout() is None
assert time.perf_counter() - started < 10
"""


def test_a_failing_download_fails_soon_and_leaves_stdout_alone(tmp_path: Path) -> None:
    # Nothing listens on port 9 of this machine, so a proxy there makes every download fail, with a network or not.
    proxies = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    environment = {
        **os.environ,
        **proxies,
        "no_proxy": "",
        "KERAS_HOME": str(tmp_path),
        "SCALESEARCH_DATA": str(tmp_path),
    }
    ran = subprocess.run(
        [sys.executable, "-c", DOWNLOAD_ALL], capture_output=True, text=True, env=environment, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == ""
    assert "Downloading data from" in ran.stderr
