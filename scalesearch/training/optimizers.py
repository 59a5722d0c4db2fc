"""Keras optimizers whose learning rate and momentum are variables on the devices: a new value retraces nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from scalesearch.errors import DefinitionError, WorkloadError
from scalesearch.workloads.workload import Workload

OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam", "adamw", "workload")


class LearningRate(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]  # Keras has no types
    """The learning rate of the step that runs; the training loop sets it before each step."""

    def __init__(self) -> None:
        self._rate = device_scalar()

    def set(self, rate: Any) -> None:
        """Set the rate of the next step, in a replica's context for that replica."""
        self._rate.assign(rate)

    def __call__(self, step: Any) -> Any:
        return tf.convert_to_tensor(self._rate)

    def get_config(self) -> dict[str, Any]:
        return {}


class Momentum(keras.optimizers.Optimizer):  # type: ignore[misc]  # Keras has no types
    """SGD with momentum; Keras's own keeps the momentum as a Python number, so that a new one is a new graph.

    v ← μ v − η g, then w ← w + v, or with Nesterov's momentum w ← w + μ v − η g.
    """

    def __init__(self, learning_rate: Any, momentum: Any, *, nesterov: bool) -> None:
        super().__init__(learning_rate=learning_rate)
        self._momentum = momentum
        self._nesterov = nesterov

    def build(self, variables: Any) -> None:
        if not self.built:
            super().build(variables)
            self._velocities = self.add_optimizer_variables(variables, "velocity")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        velocity = self._velocities[self._get_variable_index(variable)]
        descent = tf.cast(learning_rate, variable.dtype) * tf.cast(gradient, variable.dtype)
        momentum = tf.cast(self._momentum, variable.dtype)
        new_velocity = momentum * velocity.value - descent
        self.assign(velocity, new_velocity)
        self.assign_add(variable, momentum * new_velocity - descent if self._nesterov else new_velocity)


class DeviceOptimizer:
    """An optimizer, built for a model, with the variables that steer it.

    It expects gradients that are summed over the replicas, and clips them to `workload.gradient_clip_norm`. Under
    Keras's policy `mixed_float16` it scales the loss dynamically. Create it under the strategy's scope.

    Args:
        name: one of OPTIMIZERS.
        momentum: fixed for the optimizer of the workload; a variable of all others (see `reset`).
    """

    def __init__(self, name: str, model: Any, workload: Workload, *, momentum: float | None) -> None:
        self.learning_rate = LearningRate()
        self._name = name
        self._momentum = device_scalar()
        if name == "workload":
            optimizer = _workload_optimizer(workload, self.learning_rate, momentum)
        else:
            optimizer = _named_optimizer(name, self.learning_rate, self._momentum)
        if workload.gradient_clip_norm is not None:
            optimizer.global_clipnorm = workload.gradient_clip_norm
        _expect_summed_gradients(optimizer)
        if model.dtype_policy.compute_dtype == "float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        optimizer.build(model.trainable_variables)
        self._optimizer = optimizer
        self._initial_values = [_compact(variable.numpy()) for variable in self.variables]

    @property
    def variables(self) -> list[Any]:
        """Its state: the number of steps, the momenta and whatever else it keeps."""
        return list(self._optimizer.variables)

    def reset(self, momentum: float | None) -> None:
        """Forget all steps, and use this momentum from now on."""
        for variable, value in zip(self.variables, self._initial_values, strict=True):
            variable.assign(value)
        self.set_momentum(momentum)

    def set_momentum(self, momentum: float | None) -> None:
        """Use this momentum from now on."""
        self._momentum.assign(_momentum_value(self._name, momentum))

    def scale_loss(self, loss: Any) -> Any:
        """The loss whose gradients `apply` expects."""
        return self._optimizer.scale_loss(loss)

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any], *, learning_rate: Any) -> None:
        """Take one step; call it on each replica."""
        self.learning_rate.set(learning_rate)
        self._optimizer.apply(gradients, variables)


def device_scalar() -> Any:
    """A float32 variable with a copy of its own on each replica; create it under the strategy's scope."""
    return tf.Variable(0.0, trainable=False, aggregation=tf.VariableAggregation.NONE)


def _momentum_value(name: str, momentum: float | None) -> float:
    if name in ("momentum", "nesterov") and momentum is None:
        raise DefinitionError(f'`optimizer = "{name}"` needs a momentum, but got None')
    if name == "sgd" and momentum:
        raise DefinitionError(f'`optimizer = "sgd"` has no momentum, but got {momentum}; use "momentum" or "nesterov"')
    if momentum is None:
        return 0.9 if name in ("adam", "adamw") else 0.0  # Adam's β1 as in Keras
    return momentum


def _named_optimizer(name: str, learning_rate: LearningRate, momentum: Any) -> Any:
    if name == "sgd":
        return keras.optimizers.SGD(learning_rate)
    if name in ("momentum", "nesterov"):
        return Momentum(learning_rate, momentum, nesterov=name == "nesterov")
    if name in ("adam", "adamw"):
        adam = keras.optimizers.Adam if name == "adam" else keras.optimizers.AdamW
        optimizer = adam(learning_rate)
        optimizer.beta_1 = momentum
        return optimizer
    raise DefinitionError(f"`optimizer` must be one of {', '.join(OPTIMIZERS)}, but got {name!r}")


def _workload_optimizer(workload: Workload, learning_rate: LearningRate, momentum: float | None) -> Any:
    if workload.build_optimizer is None:
        raise DefinitionError(f'`optimizer = "workload"`: `{workload.name}` has no `build_optimizer`')
    optimizer = workload.build_optimizer(learning_rate, momentum)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise WorkloadError(f"`{workload.name}`: build_optimizer must return a Keras optimizer, but got {optimizer!r}")
    if optimizer.gradient_accumulation_steps:
        raise WorkloadError(
            f"`{workload.name}`: its optimizer sets `gradient_accumulation_steps`, which changes what a step is; "
            "use the accumulation of the study instead"
        )
    clips = (optimizer.clipnorm, optimizer.clipvalue, optimizer.global_clipnorm)
    if workload.gradient_clip_norm is not None and any(clip is not None for clip in clips):
        raise WorkloadError(f"`{workload.name}` clips gradients twice: in its optimizer and by `gradient_clip_norm`")
    return optimizer


def _expect_summed_gradients(optimizer: Any) -> None:
    """Keep Keras from summing the gradients over replicas.

    Keras sums after clipping and unscaling, so that each replica would clip its own share. The training loop
    sums first, and what Keras then clips is the global gradient.
    """
    if not hasattr(optimizer, "_all_reduce_sum_gradients"):
        raise WorkloadError(f"{type(optimizer).__name__} does not sum gradients as Keras 3 on TensorFlow does")
    optimizer._all_reduce_sum_gradients = list


def _compact(value: Any) -> Any:
    """An array equal to `value` that takes no memory if it is all zeros, as most optimizer state is at first."""
    return value if np.any(value) else np.broadcast_to(np.zeros((), value.dtype), value.shape)
