"""Study definitions: what the user writes, read and checked (`parse`), and made concrete for a machine (`resolve`)."""

from scalesearch.definition.parse import load_definition, parse_definition, read_definition
from scalesearch.definition.resolve import ResolvedStudy, resolve
from scalesearch.definition.schema import StudyDefinition

__all__ = [
    "ResolvedStudy",
    "StudyDefinition",
    "load_definition",
    "parse_definition",
    "read_definition",
    "resolve",
]
