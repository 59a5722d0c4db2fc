"""Everything MLflow: a written copy of a study, for people to browse. The study's storage is the truth."""

from scalesearch.tracking.content import StudyRecord
from scalesearch.tracking.saved_views import Links
from scalesearch.tracking.tracker import MlflowTracker, NullTracker
from scalesearch.tracking.uri import check_tracking_uri

__all__ = ["Links", "MlflowTracker", "NullTracker", "StudyRecord", "check_tracking_uri"]
