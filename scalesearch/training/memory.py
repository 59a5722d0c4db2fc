"""Memory of a device: of a GPU as TensorFlow counts it, of a CPU as the kernel counts that of this process."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import tensorflow as tf

SHARE_OF_FREE_MEMORY = 0.8  # that a step on CPUs may take: other processes want some


@contextmanager
def bounded_memory(device: str) -> Iterator[None]:
    """While it lasts, what does not fit in the memory of this machine fails, instead of having a process killed.

    On GPUs it does so anyway. On CPUs the address space of this process is bounded by what is free.
    """
    free, used = _kernel_bytes("/proc/meminfo", "MemAvailable"), _kernel_bytes("/proc/self/status", "VmSize")
    if _gpu(device) is not None or free is None or used is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    bounds = [used + int(SHARE_OF_FREE_MEMORY * free), *(b for b in (soft, hard) if b != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def forget_peak_bytes(device: str) -> None:
    """Let `peak_bytes` count from now on, where the system can."""
    if (gpu := _gpu(device)) is not None:
        tf.config.experimental.reset_memory_stats(gpu)
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: str) -> int | None:
    """The most memory in use: of the GPU, or of this process for a CPU; None if the system does not tell."""
    if (gpu := _gpu(device)) is not None:
        return int(tf.config.experimental.get_memory_info(gpu)["peak"])
    return _kernel_bytes("/proc/self/status", "VmHWM")


def _gpu(device: str) -> str | None:
    """`GPU:0` of `/device:GPU:0`; None for a CPU."""
    return device.removeprefix("/device:") if "GPU" in device else None


def _kernel_bytes(file: str, key: str) -> int | None:
    with suppress(OSError):
        for line in Path(file).read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    return None
