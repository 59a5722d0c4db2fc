from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from scalesearch.errors import StudyError
from scalesearch.search import lease as lease_module
from scalesearch.search.lease import REFRESH_SECONDS, take_lease
from scalesearch.search.storage import StudyStore

from .conftest import OpenStore


@pytest.fixture(autouse=True)
def _short_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "SETTLE_SECONDS", 0.05)
    monkeypatch.setattr(lease_module, "POLL_SECONDS", 0.05)


def run_driver(storage_url: str, *, then: str) -> subprocess.CompletedProcess[str]:
    """Another process that takes the lease and then does `then`."""
    code = (
        "import os, sys\n"
        "from scalesearch.search.lease import take_lease\n"
        "from scalesearch.search.database import open_storage\n"
        "from scalesearch.search.storage import StudyStore\n"
        "lease = take_lease(StudyStore(open_storage(sys.argv[1]), 's'))\n"
        f"{then}\n"
    )
    return subprocess.run([sys.executable, "-c", code, storage_url], capture_output=True, text=True, timeout=60)


def test_a_second_driver_is_refused_with_the_pid_and_host_of_the_first(store: StudyStore, storage_url: str) -> None:
    take_lease(store)
    second = run_driver(storage_url, then="pass")
    assert second.returncode == 1
    expected = rf"StudyError: study s is being run by process {os.getpid()} on {re.escape(socket.gethostname())}"
    assert re.search(expected, second.stderr)


def test_a_lease_that_was_given_back_is_free(store: StudyStore, open_store: OpenStore) -> None:
    take_lease(store).release()
    take_lease(open_store())


def test_the_lease_of_a_dead_process_is_taken_over(store: StudyStore, storage_url: str) -> None:
    died = run_driver(storage_url, then="print(os.getpid()); sys.stdout.flush(); os._exit(9)")
    assert store.attribute("lease")["pid"] == int(died.stdout)
    take_lease(store)
    assert store.attribute("lease")["pid"] == os.getpid()


def test_a_pid_that_another_process_got_since_is_not_the_driver(store: StudyStore) -> None:
    """After a restart of a machine or container, the old pid may well be alive again, and be our own."""
    take_lease(store)
    lease = store.attribute("lease")
    store.keep("lease", {**lease, "process_started": "long ago"})
    take_lease(store)


def of_another_host(lease: dict[str, Any]) -> dict[str, Any]:
    return {**lease, "host": "another-host", "pid": 7}


def test_the_lease_of_another_host_holds_while_it_is_renewed(store: StudyStore, open_store: OpenStore) -> None:
    lease = take_lease(store)
    store.keep("lease", of_another_host(store.attribute("lease")))
    told: list[str] = []

    def renew(why: str) -> None:
        told.append(why)
        lease.refreshed -= REFRESH_SECONDS
        lease.refresh()

    with pytest.raises(StudyError, match="process 7 on another-host"):
        take_lease(open_store(), waiting=renew)
    assert len(told) == 1
    assert "waiting up to" in told[0]


def test_the_lease_of_another_host_that_is_silent_is_taken_over(
    store: StudyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "EXPIRES_SECONDS", 0.5)
    take_lease(store)
    store.keep("lease", of_another_host(store.attribute("lease")))
    since = time.monotonic()
    take_lease(store)
    assert time.monotonic() - since >= 0.5, "though no clock says how old it is"


def test_another_host_that_gives_its_lease_back_meanwhile_leaves_it_free(store: StudyStore) -> None:
    lease = take_lease(store)
    store.keep("lease", of_another_host(store.attribute("lease")))
    take_lease(store, waiting=lambda why: lease.release())


def test_a_refreshed_lease_is_another(store: StudyStore) -> None:
    lease = take_lease(store)
    first = store.attribute("lease")
    lease.refresh()
    assert store.attribute("lease") == first, "it is not time yet"
    lease.refreshed -= REFRESH_SECONDS
    lease.refresh()
    second = store.attribute("lease")
    assert second["renewal"] != first["renewal"]
    assert {**second, "renewal": ""} == {**first, "renewal": ""}


def test_a_driver_that_lost_its_lease_stops(store: StudyStore) -> None:
    """It was suspended for so long that another machine took the study over."""
    lease = take_lease(store)
    lease.refreshed -= REFRESH_SECONDS
    store.keep("lease", {**store.attribute("lease"), "token": "of another", "host": "another-host", "pid": 7})
    with pytest.raises(StudyError, match="taken over by process 7 on another-host"):
        lease.refresh()
    lease.release()
    assert store.attribute("lease")["token"] == "of another", "what is not ours is not given free"


def test_of_several_at_once_exactly_one_drives(open_store: OpenStore) -> None:
    stores = [open_store() for _ in range(4)]

    def attempt(store: StudyStore) -> bool:
        try:
            take_lease(store)
        except StudyError:
            return False
        return True

    with ThreadPoolExecutor(len(stores)) as pool:
        assert list(pool.map(attempt, stores)).count(True) == 1
