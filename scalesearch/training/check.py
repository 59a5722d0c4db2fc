"""A few steps of a workload of which parts are neutralised, so that it shows which part makes replicas differ."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tensorflow as tf

from scalesearch.core.equivalence import CheckedRun, Part
from scalesearch.core.parameters import Parameters
from scalesearch.training.checkpoints import data_digest
from scalesearch.training.engine import MirroredTrainer
from scalesearch.workloads.workload import PerExample, Workload

_CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")


def run(
    trainer: MirroredTrainer,
    parameters: Parameters,
    *,
    seed: int,
    steps: int,
    neutralised: frozenset[Part] = frozenset(),
) -> CheckedRun:
    """Train `steps` steps on the trainer's devices. How each part is neutralised:

    - statistics, random: layers with statistics of the batch and layers that draw random numbers run as in inference;
    - own layers, loss: those that are not Keras's, and the loss, are given one example at a time;
    - augmentation, clipping: none;
    - optimizer: plain SGD instead of the workload's own.
    """
    parts = _parts(trainer)
    if neutralised:
        own_optimizer = Part.OPTIMIZER in neutralised
        trainer = MirroredTrainer(
            _without(trainer.workload, neutralised, trainer.data.train.inputs[:1]),
            trainer.data,
            optimizer="sgd" if own_optimizer else trainer.optimizer_name,
            devices=trainer.devices,
        )
        parameters = replace(parameters, momentum=None) if own_optimizer else parameters
    taking = trainer.steps(parameters, seed=seed)
    initial = _weights(trainer)
    losses = tuple(taking.take(1) for _ in range(steps))
    return CheckedRun(
        data_digest=data_digest(trainer.data),
        initial=initial,
        final=_weights(trainer),
        losses=losses,
        parts=parts,
    )


def _weights(trainer: MirroredTrainer) -> tuple[Any, ...]:
    return tuple(variable.numpy() for variable in trainer.model.trainable_variables)


# Which parts a workload has


def _parts(trainer: MirroredTrainer) -> dict[Part, str]:
    workload, parts = trainer.workload, {Part.LOSS: "the loss"}
    for part, belongs in _LAYERS.items():
        names = [layer.name for layer in _layers(trainer.model) if belongs(layer)]
        if names:
            parts[part] = ", ".join(names)
    if workload.augmentation is not None:
        parts[Part.AUGMENTATION] = "the augmentation"
    if trainer.optimizer_name == "workload" and workload.build_optimizer is not None:
        optimizer = workload.build_optimizer(0.1, 0.9)
        parts[Part.OPTIMIZER] = type(optimizer).__name__
        if any(getattr(optimizer, clip, None) is not None for clip in _CLIPS):
            parts[Part.CLIPPING] = f"the clipping of {type(optimizer).__name__}"
    if workload.gradient_clip_norm is not None:
        parts[Part.CLIPPING] = f"gradient_clip_norm = {workload.gradient_clip_norm:g}"
    return parts


def _layers(model: Any) -> list[Any]:
    """Those that compute something themselves."""
    containers = ("InputLayer", "Functional", "Sequential")
    return [layer for layer in model._flatten_layers(include_self=False) if type(layer).__name__ not in containers]


def _has_statistics(layer: Any) -> bool:
    own = [v for v in layer._non_trainable_variables if "float" in str(v.dtype)]
    return bool(own) and not getattr(layer, "synchronized", False)


def _draws(layer: Any) -> bool:
    return bool(layer._seed_generators)


def _is_own(layer: Any) -> bool:
    return not type(layer).__module__.startswith("keras.")


_LAYERS: dict[Part, Callable[[Any], bool]] = {
    Part.STATISTICS: _has_statistics,
    Part.RANDOM: _draws,
    Part.OWN_LAYERS: _is_own,
}


# A workload without some of them


def _without(workload: Workload, neutralised: frozenset[Part], example: Any) -> Workload:
    if Part.AUGMENTATION in neutralised:
        workload = replace(workload, augmentation=None)
    if Part.LOSS in neutralised:
        workload = replace(workload, loss=_one_by_one_loss(workload.loss))
    if Part.CLIPPING in neutralised:
        workload = replace(
            workload, gradient_clip_norm=None, build_optimizer=_without_clipping(workload.build_optimizer)
        )
    build_model = workload.build_model

    def build() -> Any:
        model = build_model()
        if not model.built:
            model(workload.prepare(tf.constant(example)))
        for layer in _layers(model):
            if Part.OWN_LAYERS in neutralised and _is_own(layer):
                layer.call = _one_by_one(layer, layer.call)
            for part in (Part.STATISTICS, Part.RANDOM):
                if part in neutralised and _LAYERS[part](layer):
                    layer.call = _as_in_inference(layer.call)
        return model

    return replace(workload, build_model=build)


def _as_in_inference(call: Callable[..., Any]) -> Callable[..., Any]:
    if "training" not in inspect.signature(call).parameters:
        return call

    def in_inference(*args: Any, training: Any = None, **kwargs: Any) -> Any:
        del training
        return call(*args, training=False, **kwargs)

    return in_inference


def _one_by_one(layer: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    takes_training = "training" in inspect.signature(call).parameters

    def one_by_one(inputs: Any, training: Any = None) -> Any:
        options = {"training": training} if takes_training else {}
        outputs = tf.map_fn(
            lambda example: call(example[None], **options)[0], inputs, fn_output_signature=layer.compute_dtype
        )
        return tf.ensure_shape(outputs, call(inputs, **options).shape)  # which a loop forgets

    return one_by_one


def _one_by_one_loss(loss: PerExample) -> PerExample:
    def one_by_one(labels: Any, outputs: Any) -> Any:
        def of_example(pair: Any) -> Any:
            label, output = tf.nest.map_structure(lambda value: value[None], pair)
            return tf.cast(tf.reshape(loss(label, output), []), tf.float32)

        return tf.map_fn(of_example, (labels, outputs), fn_output_signature=tf.float32)

    return one_by_one


def _without_clipping(build_optimizer: Callable[..., Any] | None) -> Callable[..., Any] | None:
    if build_optimizer is None:
        return None

    def build(learning_rate: Any, momentum: float | None) -> Any:
        optimizer = build_optimizer(learning_rate, momentum)
        for clip in _CLIPS:
            setattr(optimizer, clip, None)
        return optimizer

    return build
