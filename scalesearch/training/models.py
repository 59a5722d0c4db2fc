"""Models whose initial weights are a function of the seed."""

from __future__ import annotations

import random
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from scalesearch.errors import WorkloadError
from scalesearch.workloads.workload import Split, Workload


def build_model(workload: Workload, split: Split, *, seed: int) -> Any:
    """The workload's model, built for the inputs of `split`, with the weights of `seed`."""
    # Keras takes the seeds of initialisers and random layers from Python's generator. TensorFlow's own seed is left
    # alone: setting it drops all that is compiled, which costs the next steps of a large model 10 s.
    random.seed(seed)
    np.random.seed(seed)
    try:
        model = workload.build_model()
    except tf.errors.ResourceExhaustedError:
        raise
    except Exception as error:
        raise WorkloadError(f"`{workload.name}`: build_model raised {type(error).__name__}: {error}") from error
    if not isinstance(model, keras.Model):
        raise WorkloadError(f"`{workload.name}`: build_model must return a keras.Model, but returned {model!r}")
    if not model.built:
        model(workload.prepare(tf.constant(split.inputs[:1])))
    return model


def initial_values(workload: Workload, split: Split, *, seed: int) -> list[Any]:
    """What the variables of a model hold that has just been built with `seed`, in the order of model.variables.

    The throw-away model lives in host memory; the trainer copies its values into the model that it keeps.
    """
    with tf.device("/device:CPU:0"):
        return [variable.numpy() for variable in build_model(workload, split, seed=seed).variables]
