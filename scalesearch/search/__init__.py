"""The search: Optuna samplers, the capping pruner, and the storage that is the truth about a study."""

from scalesearch.search.pruner import CappingPruner
from scalesearch.search.scaling import ScalingSampler, suggest

__all__ = ["CappingPruner", "ScalingSampler", "suggest"]
