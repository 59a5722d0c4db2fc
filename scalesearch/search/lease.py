"""At most one driver per study: a lease kept in the study itself, so that it holds across machines."""

from __future__ import annotations

import os
import socket
import time
import uuid
from dataclasses import dataclass

from scalesearch.errors import StudyError
from scalesearch.search.storage import StudyStore

REFRESH_SECONDS = 10.0
EXPIRES_SECONDS = 60.0
SETTLE_SECONDS = 0.3


@dataclass
class Lease:
    """The right to drive a study. It must be refreshed, or another machine may take it over."""

    store: StudyStore
    token: str
    refreshed: float

    def refresh(self) -> None:
        """Renew the lease if it is time to."""
        now = time.monotonic()
        if now - self.refreshed >= REFRESH_SECONDS:
            self.store.keep("lease", _lease(self.token))
            self.refreshed = now

    def release(self) -> None:
        """Give the study free."""
        self.store.keep("lease", None)


def take_lease(store: StudyStore) -> Lease:
    """Become the driver of a study; a dead driver's lease is taken over. Raises StudyError if it has a live one."""
    _refuse_if_held(store, own_token=None)
    token = uuid.uuid4().hex
    store.keep("lease", _lease(token))
    # Two drivers that start at once both find no lease; the one that wrote last has it.
    time.sleep(SETTLE_SECONDS)
    _refuse_if_held(store, own_token=token)
    return Lease(store, token, time.monotonic())


def _lease(token: str) -> dict[str, str | int | float]:
    return {"token": token, "host": socket.gethostname(), "pid": os.getpid(), "at": time.time()}


def _refuse_if_held(store: StudyStore, *, own_token: str | None) -> None:
    lease = store.attribute("lease")
    if lease is None or lease["token"] == own_token:
        return
    if lease["host"] == socket.gethostname():
        held = _is_running(lease["pid"])
    else:
        held = abs(time.time() - lease["at"]) < EXPIRES_SECONDS
    if held:
        raise StudyError(
            f"study {store.name} is being run by process {lease['pid']} on {lease['host']}: wait for it, or stop it "
            "(everything it has done is kept)"
        )


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
