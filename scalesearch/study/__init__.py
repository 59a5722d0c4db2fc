"""The run of a study: what it needs (`protocols`), what happens in it (`events`), and the loop itself (`run`).

The loop has the trial in flight (`running`), what the search says (`planning`), what was spent (`account`), when
snapshots are taken (`snapshot_times`), where trials go on from them (`snapshots`), and what a killed driver leaves of
one (`journal`).
"""

from scalesearch.study.events import Noted, StudyEnded, StudyEvent, TrialEnded, TrialMeasured, TrialStarted
from scalesearch.study.journal import Journal
from scalesearch.study.protocols import Executor, Tracker
from scalesearch.study.run import MAX_CRASHES_IN_A_ROW, STOP_WITHIN_SECONDS, Study
from scalesearch.study.snapshot_times import Forking, forking
from scalesearch.study.snapshots import SnapshotFolder

__all__ = [
    "MAX_CRASHES_IN_A_ROW",
    "STOP_WITHIN_SECONDS",
    "Executor",
    "Forking",
    "Journal",
    "Noted",
    "SnapshotFolder",
    "Study",
    "StudyEnded",
    "StudyEvent",
    "Tracker",
    "TrialEnded",
    "TrialMeasured",
    "TrialStarted",
    "forking",
]
