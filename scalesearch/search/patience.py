"""A storage that outlasts what ails its database: a lock, a full disk, a server that is restarted."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import Any

from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import BaseStorage
from sqlalchemy.exc import InterfaceError, OperationalError

from scalesearch.errors import StudyError

PATIENCE_SECONDS = 600.0
RETRY_SECONDS = 0.5
_log = logging.getLogger(__name__)


def patient(storage: BaseStorage, *, give_up: Callable[[], bool] = lambda: False) -> BaseStorage:
    """`storage`, each call of which is tried again while its database is away, unless it is time to `give_up`.

    Raises StudyError from a call that has been tried for `PATIENCE_SECONDS`.
    """
    names = [name for name in dir(BaseStorage) if not name.startswith("_")]
    methods = {name: staticmethod(_patient(getattr(storage, name), give_up)) for name in names}
    made: BaseStorage = type("PatientStorage", (BaseStorage,), {"__module__": __name__, **methods})()
    return made


def _patient(call: Callable[..., Any], give_up: Callable[[], bool]) -> Callable[..., Any]:
    @functools.wraps(call)
    def again(*args: Any, **kwargs: Any) -> Any:
        since, failed = time.monotonic(), False
        while True:
            try:
                return call(*args, **kwargs)
            except UpdateFinishedTrialError:
                if not failed:
                    raise
                return None  # the server did end the trial, and went away before it could say so
            except (StorageInternalError, OperationalError, InterfaceError) as error:
                reason = _reason(error)
                if reason is None:
                    raise
                if give_up() or time.monotonic() - since > PATIENCE_SECONDS:
                    raise StudyError(
                        f"the study's storage cannot be used: {reason}. What was stored before is kept: "
                        "once it works again, the same command continues"
                    ) from error
                if not failed:
                    _log.warning("the study's storage cannot be used, waiting: %s", reason)
                failed = True
                time.sleep(RETRY_SECONDS)

    return again


def _reason(error: Exception) -> str | None:
    """What the database says, in one line; None if it is no fault of the database."""
    cause = error.__cause__ if isinstance(error, StorageInternalError) else error
    if not isinstance(cause, OperationalError | InterfaceError):
        return None
    return str(cause.orig).splitlines()[0]
