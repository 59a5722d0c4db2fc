"""At most one driver per study: a lease kept in the study itself, so that it holds across machines."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalesearch.errors import StudyError
from scalesearch.search.storage import StudyStore

REFRESH_SECONDS = 10.0
EXPIRES_SECONDS = 60.0
POLL_SECONDS = 1.0
SETTLE_SECONDS = 0.3


@dataclass
class Lease:
    """The right to drive a study. It must be refreshed, or another machine may take it over."""

    store: StudyStore
    token: str
    refreshed: float

    def refresh(self) -> None:
        """Renew the lease if it is time to. Raises StudyError if another driver has taken it over."""
        now = time.monotonic()
        if now - self.refreshed < REFRESH_SECONDS:
            return
        held = self.store.attribute("lease")
        if held is None or held["token"] != self.token:
            by = f" by process {held['pid']} on {held['host']}" if held else ""
            raise StudyError(f"study {self.store.name} was taken over{by} while this process did not answer")
        self.store.keep("lease", _lease(self.token))
        self.refreshed = now

    def release(self) -> None:
        """Give the study free, unless another driver has it by now."""
        held = self.store.attribute("lease")
        if held is not None and held["token"] == self.token:
            self.store.keep("lease", None)


def take_lease(store: StudyStore, *, waiting: Callable[[str], None] = lambda why: None) -> Lease:
    """Become the driver of a study; a dead driver's lease is taken over. Raises StudyError if it has a live one.

    Whether a driver on another machine lives is seen by its renewing the lease, within `EXPIRES_SECONDS`, whatever the
    clocks of both machines say; `waiting` is told of it.
    """
    _refuse_if_held(store, own_token=None, waiting=waiting)
    token = uuid.uuid4().hex
    store.keep("lease", _lease(token))
    # Two drivers that start at once both find no lease; the one that wrote last has it.
    time.sleep(SETTLE_SECONDS)
    _refuse_if_held(store, own_token=token, waiting=waiting)
    return Lease(store, token, time.monotonic())


def _lease(token: str) -> dict[str, str | int | None]:
    pid = os.getpid()
    return {
        "token": token,
        "host": socket.gethostname(),
        "pid": pid,
        "process_started": _process_started(pid),
        "renewal": uuid.uuid4().hex,
    }


def _refuse_if_held(store: StudyStore, *, own_token: str | None, waiting: Callable[[str], None]) -> None:
    lease = store.attribute("lease")
    if lease is None or lease["token"] == own_token:
        return
    driver = f"process {lease['pid']} on {lease['host']}"
    if lease["host"] == socket.gethostname():
        held = _is_running(lease)
    else:
        waiting(f"study {store.name} was last run by {driver}: waiting up to {EXPIRES_SECONDS:g} s for a sign of it")
        held = _is_renewed(store, lease)
    if held:
        raise StudyError(
            f"study {store.name} is being run by {driver}: wait for it, or stop it (everything it has done is kept)"
        )


def _is_renewed(store: StudyStore, lease: Mapping[str, Any]) -> bool:
    """Whether a driver shows within the time in which it must that it has the lease."""
    deadline = time.monotonic() + EXPIRES_SECONDS
    while time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        now = store.attribute("lease")
        if now != lease:
            return now is not None
    return False


def _is_running(lease: Mapping[str, Any]) -> bool:
    try:
        os.kill(lease["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    # A container that starts again gives its processes the same numbers.
    started: str | None = lease["process_started"]
    return started == _process_started(lease["pid"])


def _process_started(pid: int) -> str | None:
    """When a process started, in a unit of its machine; None where the system does not tell (outside of Linux)."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return status.rpartition(")")[2].split()[19]  # the program's name, in parentheses, may hold anything
