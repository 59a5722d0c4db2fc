"""Workloads: data × model × loss and metrics.

TensorFlow and scikit-learn are loaded only once data or a model are asked for.
"""

from scalesearch.workloads.catalog import BUILT_IN, BuiltIn, WorkloadDescription, describe
from scalesearch.workloads.load import load_workload
from scalesearch.workloads.workload import Augmentation, Data, Split, Workload

__all__ = [
    "BUILT_IN",
    "Augmentation",
    "BuiltIn",
    "Data",
    "Split",
    "Workload",
    "WorkloadDescription",
    "describe",
    "load_workload",
]
