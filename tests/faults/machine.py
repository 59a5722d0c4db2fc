"""What can befall a machine: real signals, disks, locks, servers and clocks. A test is skipped where one cannot be had."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from .study import eventually


def stop(pid: int) -> None:
    """The process does nothing any more, and does not know."""
    os.kill(pid, signal.SIGSTOP)


def wait_until_gone(pid: int) -> None:
    def is_gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    eventually(is_gone, f"the end of process {pid}")


@contextmanager
def memory_limit(pid: int, *, limit_bytes: int = 2**20) -> Iterator[None]:
    """The process may have no more memory than it has, and `limit_bytes` more."""
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    group = Path("/sys/fs/cgroup" if unified else "/sys/fs/cgroup/memory") / f"scalesearch-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made: {error}")
    limit = group / ("memory.max" if unified else "memory.limit_in_bytes")
    try:
        if not limit.exists():
            pytest.skip("cgroups do not limit memory here")
        limit.write_text(str(limit_bytes))
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        eventually(lambda: not (group / "cgroup.procs").read_text(), "an empty cgroup")
        group.rmdir()


@contextmanager
def small_disk(folder: Path, *, megabytes: int) -> Iterator[Path]:
    disk = folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(disk)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """There is no space left, whatever is removed meanwhile."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (2**20, 2**12):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def locked(*databases: Path) -> Iterator[None]:
    """Another process is writing to SQLite files."""
    with ExitStack() as stack:
        for path in databases:
            connection = stack.enter_context(closing(sqlite3.connect(path, timeout=60.0)))
            connection.execute("BEGIN IMMEDIATE")
            stack.callback(connection.rollback)
        yield


# Servers


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1.0)
        return client.connect_ex(("127.0.0.1", port)) == 0


@dataclass
class MlflowServer:
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{self.folder}/server.db"]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, start_new_session=True)
        eventually(lambda: answers(self.port), "the MLflow server")

    def stop(self) -> None:
        """Kill it with all its processes."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@contextmanager
def mlflow_server(folder: Path, empty: Path) -> Iterator[MlflowServer]:
    shutil.copy(empty, folder / "server.db")
    server = MlflowServer(folder, free_port())
    try:
        server.start()
        yield server
    finally:
        server.stop()


@dataclass
class PostgreSql:
    binaries: Path
    data: Path
    port: int
    user: str | None
    """Who runs it: not root."""

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://scalesearch@127.0.0.1:{self.port}/postgres"

    def run(self, program: str, *arguments: str) -> None:
        command = [str(self.binaries / program), "-D", str(self.data), *arguments]
        subprocess.run(command, cwd=self.data, user=self.user, check=True, stdout=subprocess.DEVNULL, timeout=120.0)

    def start(self) -> None:
        options = f"-h 127.0.0.1 -p {self.port} -k ''"
        self.run("pg_ctl", "start", "-w", "-o", options, "-l", str(self.data / "log"))

    def stop(self) -> None:
        """As when its machine fails: connections break, and what was not committed is lost."""
        self.run("pg_ctl", "stop", "-m", "immediate")


@contextmanager
def postgresql(folder: Path) -> Iterator[PostgreSql]:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    on_path = shutil.which("postgres")
    if not found and not on_path:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    binaries = Path(on_path).parent if on_path else found[-1].parent
    user = "postgres" if os.geteuid() == 0 else None
    for parent in [folder, *folder.parents][:3] if user else []:
        parent.chmod(0o755)  # pytest's folders are root's own
    server = PostgreSql(binaries, folder / "postgresql", free_port(), user)
    server.data.mkdir()
    if user:
        shutil.chown(server.data, user)
    server.data.chmod(0o700)
    server.run("initdb", "-U", "scalesearch", "-A", "trust", "-N")
    server.start()
    try:
        yield server
    finally:
        server.stop()


# The clock

_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, now);
    FILE *file = id == CLOCK_REALTIME ? fopen(OFFSET, "r") : 0;
    long seconds = 0;
    if (file && fscanf(file, "%ld", &seconds) == 1) now->tv_sec += seconds;
    if (file) fclose(file);
    return failed;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
"""


def fake_clock(folder: Path) -> tuple[dict[str, str], Path]:
    """The environment of processes whose time of day is off by the seconds that a file says, and that file.

    (libfaketime fakes sleeping as well, after which Python's fails.)
    """
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    offset, source, library = (folder / name for name in ("offset", "clock.c", "clock.so"))
    source.write_text(_CLOCK)
    set_clock(offset, 0)
    command = [compiler, "-shared", "-fPIC", f'-DOFFSET="{offset}"', "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return {"LD_PRELOAD": str(library)}, offset


def set_clock(offset: Path, seconds: int) -> None:
    new = offset.with_suffix(".new")
    new.write_text(str(seconds))
    new.replace(offset)
