"""The run of a study: what it needs (`protocols`), what happens in it (`events`), and the loop itself (`run`)."""

from scalesearch.study.events import StudyEnded, StudyEvent, TrialEnded, TrialMeasured, TrialStarted
from scalesearch.study.protocols import Executor, Tracker
from scalesearch.study.run import MAX_CRASHES_IN_A_ROW, STOP_WITHIN_SECONDS, Study

__all__ = [
    "MAX_CRASHES_IN_A_ROW",
    "STOP_WITHIN_SECONDS",
    "Executor",
    "Study",
    "StudyEnded",
    "StudyEvent",
    "Tracker",
    "TrialEnded",
    "TrialMeasured",
    "TrialStarted",
]
