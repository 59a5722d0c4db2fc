"""Everything that scalesearch raises on purpose.

ScalesearchError
├── DefinitionError   a study definition that breaks a rule
├── DataError         a data set that is missing or damaged
├── WorkloadError     a workload that cannot be found or built
├── StudyError        a study that cannot be started or continued
├── ProfileError      a profile that cannot be read, or is of another workload
├── WorkerLost        a worker that died or fell silent outside of a trial
├── SnapshotError     a trial's saved state that cannot be written, read or continued
└── OutOfMemory       a batch that does not fit on its device
"""


class ScalesearchError(Exception):
    """Root of all errors whose message is written for the user."""


class DefinitionError(ScalesearchError):
    """A study definition breaks a rule; the message names file, key, value and rule."""


class DataError(ScalesearchError):
    """A data set is missing or damaged; the message says what was tried and how to provide it."""


class WorkloadError(ScalesearchError):
    """A workload cannot be found, or what it returns is not what a workload must return."""


class StudyError(ScalesearchError):
    """A study cannot be started or continued as asked."""


class ProfileError(ScalesearchError):
    """A profile cannot be read, or is of another workload or machine; the message names the file."""


class WorkerLost(ScalesearchError):
    """A worker died or fell silent while it did something else than a trial, whose end is an outcome."""


class SnapshotError(ScalesearchError):
    """A trial's saved state cannot be written, read or continued; the message names the file."""


class OutOfMemory(ScalesearchError):
    """A training step did not fit in the memory of its device.

    Raised inside a worker only; the worker reports it as `Outcome.OUT_OF_MEMORY`.
    """
