"""What a profile is of: this machine, its software, and the workload."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from scalesearch.core.profile import ProfileFingerprint
from scalesearch.training.engine import MirroredTrainer


def fingerprint(trainer: MirroredTrainer, *, workload: str, options: Mapping[str, Any]) -> ProfileFingerprint:
    """The fingerprint of a worker's machine and workload; the number of replicas is no part of it."""
    return ProfileFingerprint(
        hardware=_hardware(trainer),
        software={"tensorflow": tf.__version__, "keras": keras.__version__, "scalesearch": version("scalesearch")},
        workload={
            "name": workload,
            "options": json.dumps(dict(options), sort_keys=True),
            "optimizer": trainer.optimizer_name,
            "model": _model_digest(trainer.model),
            "example": f"{trainer.data.train.inputs.dtype}{list(trainer.data.train.inputs.shape[1:])}",
        },
    )


def _hardware(trainer: MirroredTrainer) -> dict[str, str]:
    processor = {"processor": _processor(), "cores": str(len(os.sched_getaffinity(0)))}
    if "GPU" not in trainer.devices[0]:
        return {"kind": "CPU", **processor}
    gpus = tf.config.list_physical_devices("GPU")
    name = tf.config.experimental.get_device_details(gpus[0]).get("device_name", "unknown") if gpus else "unknown"
    return {"kind": "GPU", "device": str(name), **processor}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _model_digest(model: Any) -> str:
    """Of the layers, and the shapes and types of their weights: what the time of a step depends on."""
    layers = [
        (type(layer).__name__, layer.dtype_policy.name, [(list(w.shape), str(w.dtype)) for w in layer.weights])
        for layer in model._flatten_layers()
    ]
    return hashlib.sha256(json.dumps(layers).encode()).hexdigest()[:16]
