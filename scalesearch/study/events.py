"""What happens in a study, as its generator yields it."""

from __future__ import annotations

from dataclasses import dataclass

from scalesearch.core.budget import Spent
from scalesearch.core.recommend import Findings
from scalesearch.core.results import Measurement, TrialResult
from scalesearch.search.queue import OpenTrial


@dataclass(frozen=True, kw_only=True)
class TrialStarted:
    trial: OpenTrial
    spent: Spent


@dataclass(frozen=True)
class Noted:
    """A sentence for the user: where a trial goes on, or what went wrong without ending anything."""

    sentence: str


@dataclass(frozen=True, kw_only=True)
class TrialMeasured:
    trial: OpenTrial
    measurement: Measurement
    spent: Spent


@dataclass(frozen=True, kw_only=True)
class TrialEnded:
    result: TrialResult
    findings: Findings
    spent: Spent


@dataclass(frozen=True, kw_only=True)
class StudyEnded:
    """`stopped_by` is what ended this run, as a phrase."""

    findings: Findings
    spent: Spent
    stopped_by: str
    by_user: bool


StudyEvent = TrialStarted | Noted | TrialMeasured | TrialEnded | StudyEnded
