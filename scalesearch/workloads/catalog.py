"""The built-in workloads: what a listing shows, and where each one's factory is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

from scalesearch.workloads.workload import Workload


@dataclass(frozen=True, kw_only=True)
class BuiltIn:
    """A built-in workload.

    `factory` is `module:function` inside `scalesearch.workloads`; its keyword arguments are the workload's
    options. `trainable_parameters` is the count with the default options.
    """

    factory: str
    description: str
    data: str
    trainable_parameters: int

    def load_factory(self) -> Callable[..., Workload]:
        """The function that makes the workload."""
        module, _, function = self.factory.partition(":")
        factory: Callable[..., Workload] = getattr(import_module(f"{__package__}.{module}"), function)
        return factory


@dataclass(frozen=True, kw_only=True)
class WorkloadDescription:
    """One row of a listing of workloads. `options` maps each option to its default."""

    name: str
    description: str
    data: str
    trainable_parameters: int
    options: Mapping[str, object]


_DIGITS = "scikit-learn's bundled digits: 1,257 / 270 / 270 images of 8×8"
_MNIST = "MNIST: 55,000 / 5,000 / 10,000 images of 28×28"
_FASHION_MNIST = "Fashion-MNIST: 55,000 / 5,000 / 10,000 images of 28×28"

BUILT_IN: Mapping[str, BuiltIn] = {
    "digits/mlp": BuiltIn(
        factory="digits:mlp",
        description="multilayer perceptron; needs no download and trains in seconds",
        data=_DIGITS,
        trainable_parameters=9_610,
    ),
    "mnist/mlp": BuiltIn(
        factory="mnist:mlp",
        description="multilayer perceptron",
        data=_MNIST,
        trainable_parameters=101_770,
    ),
    "mnist/simple_cnn": BuiltIn(
        factory="mnist:simple_cnn",
        description="two convolutions and a dense layer (Shallue et al. 2018)",
        data=_MNIST,
        trainable_parameters=3_274_634,
    ),
    "fashion_mnist/mlp": BuiltIn(
        factory="fashion_mnist:mlp",
        description="multilayer perceptron",
        data=_FASHION_MNIST,
        trainable_parameters=101_770,
    ),
    "fashion_mnist/simple_cnn": BuiltIn(
        factory="fashion_mnist:simple_cnn",
        description="two convolutions and a dense layer (Shallue et al. 2018)",
        data=_FASHION_MNIST,
        trainable_parameters=3_274_634,
    ),
    "cifar10/densenet_bc": BuiltIn(
        factory="cifar10:densenet_bc",
        description="DenseNet-BC, depth 100, growth rate 12, with augmentation (Huang et al. 2017)",
        data="CIFAR-10: 45,000 / 5,000 / 10,000 images of 32×32×3",
        trainable_parameters=769_162,
    ),
}


def describe(name: str) -> WorkloadDescription:
    """What is known of the built-in workload `name` without loading its data or building its model."""
    entry = BUILT_IN[name]
    signature = inspect.signature(entry.load_factory())
    return WorkloadDescription(
        name=name,
        description=entry.description,
        data=entry.data,
        trainable_parameters=entry.trainable_parameters,
        options={option.name: option.default for option in signature.parameters.values()},
    )
