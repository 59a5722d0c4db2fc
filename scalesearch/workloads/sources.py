"""Where the files of a data set are looked for, and what to say when they are nowhere.

A source that lacks the files is passed over. A source whose files are there but damaged is an error at
once: to fall back in silence would train on other files than the ones that the user provided.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from scalesearch.errors import DataError
from scalesearch.workloads.images import Array, Images

DATA_FOLDER_VARIABLE = "SCALESEARCH_DATA"
DOWNLOAD_TIMEOUT_SECONDS = 20.0  # without an answer from the network

KerasArrays = tuple[tuple[Array, Array], tuple[Array, Array]]


class UnavailableError(DataError):
    """A source does not have the data set; the message says why. It never leaves `read_first`."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """One place to get a data set from; `read` raises UnavailableError if the data set is not there."""

    name: str
    read: Callable[[], Images]


def read_first(data_set: str, sources: Sequence[Source], *, files: str) -> Images:
    """The data set from the first source that has it.

    Args:
        data_set: its name, which is also that of its folder in SCALESEARCH_DATA.
        sources: in the order in which they are tried.
        files: the files that a user has to provide, for the message.

    Raises:
        DataError: no source has it, or one holds damaged files.
    """
    failures = []
    for source in sources:
        try:
            return source.read()
        except UnavailableError as reason:
            failures.append(f"  {source.name}: {reason}")
        except DataError as damage:
            raise DataError(
                f"{damage} This is the data set {data_set} as found by {source.name}: replace the damaged file, "
                "or remove it to use the next source."
            ) from damage
    tried = "\n".join(failures)
    raise DataError(
        f"The data set {data_set} was not found. Tried in this order:\n{tried}\n"
        f"To provide it, put {files} into a folder called {data_set}, and set the environment variable "
        f"{DATA_FOLDER_VARIABLE} to the folder that {data_set} is in."
    )


def user_folder(data_set: str) -> Path:
    """The folder of the data set in SCALESEARCH_DATA."""
    root = os.environ.get(DATA_FOLDER_VARIABLE)
    if not root:
        raise UnavailableError("the environment variable is not set")
    return Path(root).expanduser() / data_set


def keras_cache() -> Path:
    """The folder in which Keras keeps downloaded data sets."""
    return Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser() / "datasets"


def download(data_set: str) -> KerasArrays:
    """What `keras.datasets.<data_set>.load_data` returns; its progress goes to stderr.

    Raises:
        UnavailableError: the download failed, or nothing answered for DOWNLOAD_TIMEOUT_SECONDS.
    """
    import keras

    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_TIMEOUT_SECONDS)  # Keras sets none and would wait for ever
    try:
        with redirect_stdout(sys.stderr):
            arrays: KerasArrays = getattr(keras.datasets, data_set).load_data()
            return arrays
    except Exception as error:  # what Keras raises for a failed download is a bare Exception
        raise UnavailableError(str(error) or type(error).__name__) from error
    finally:
        socket.setdefaulttimeout(timeout)
