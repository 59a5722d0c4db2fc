"""The search: Optuna samplers, the capping pruner, and the storage that is the truth about a study."""

from scalesearch.search.pruner import CappingPruner

__all__ = ["CappingPruner"]
