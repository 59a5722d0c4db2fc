"""The devices that a worker trains on."""

from __future__ import annotations

import tensorflow as tf

from scalesearch.errors import StudyError


def configure_devices(replicas: int | None) -> tuple[str, ...]:
    """Prepare one device per replica and return their names; call it before TensorFlow touches a device.

    With GPUs: the first `replicas` of them (None: all), memory growth on. Without: `replicas` logical CPU
    devices (None: 1), which share the cores, so they are for correctness and not for speed.

    Raises:
        StudyError: fewer GPUs are visible than replicas asked for.
    """
    if replicas is not None and replicas < 1:
        raise StudyError(f"`replicas >= 1` must hold, but got {replicas}")
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return _logical_cpus(replicas or 1)
    if replicas is not None and replicas > len(gpus):
        raise StudyError(
            f"{replicas} replicas were asked for, but only {len(gpus)} GPUs are visible; ask for at most {len(gpus)} "
            "or make more visible (CUDA_VISIBLE_DEVICES)"
        )
    used = gpus[:replicas]
    tf.config.set_visible_devices(used, "GPU")
    for gpu in used:
        tf.config.experimental.set_memory_growth(gpu, True)
    return tuple(f"/device:GPU:{i}" for i in range(len(used)))


def _logical_cpus(count: int) -> tuple[str, ...]:
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    return tuple(f"/device:CPU:{i}" for i in range(count))
