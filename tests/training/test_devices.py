"""A worker gets one device per replica."""

from __future__ import annotations

import subprocess
import sys

import pytest

from scalesearch.errors import StudyError
from scalesearch.training.devices import configure_devices


def test_three_replicas_on_a_machine_without_gpus() -> None:
    code = """
import tensorflow as tf
from scalesearch.training.devices import configure_devices
tf.config.set_visible_devices([], "GPU")
print(configure_devices(3), len(tf.config.list_logical_devices("CPU")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "('/device:CPU:0', '/device:CPU:1', '/device:CPU:2') 3\n"


def test_replicas_must_be_positive() -> None:
    with pytest.raises(StudyError, match="`replicas >= 1` must hold, but got 0"):
        configure_devices(0)
