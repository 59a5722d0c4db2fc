"""Which tracking URIs a study accepts."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from scalesearch.errors import StudyError

_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_SERVERS = ("http", "https")
_DEFAULT_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}


def check_tracking_uri(tracking_uri: str, *, storage_url: str | None = None) -> None:
    """Refuse a tracking URI that cannot work, before anything is trained.

    Raises:
        StudyError: it is a folder, of an unknown kind, in a folder that does not exist, or names the same
            database as `storage_url` (Optuna and MLflow would overwrite each other's schema version).
    """
    kind = _kind(tracking_uri)
    if kind in ("", "file"):
        raise StudyError(
            f"the tracking URI {tracking_uri!r} is a folder, which MLflow no longer keeps runs in: "
            "use a database such as sqlite:///mlflow.db, or the address of a server such as http://host:5000"
        )
    if kind not in (*_DATABASES, *_SERVERS):
        raise StudyError(
            f"the tracking URI {tracking_uri!r} is of the unknown kind {kind!r}: "
            f"use one of {', '.join((*_DATABASES, *_SERVERS))}, for example sqlite:///mlflow.db"
        )
    if kind == "sqlite":
        _check_sqlite(tracking_uri)
    if storage_url is not None and _database(tracking_uri) == _database(storage_url):
        raise StudyError(
            f"the tracking URI {tracking_uri!r} and the storage {storage_url!r} are the same database: "
            "MLflow and Optuna each need one of their own, for example sqlite:///mlflow.db and "
            "sqlite:///scalesearch.db"
        )


def is_database(tracking_uri: str) -> bool:
    """Whether MLflow works on the database itself, without a server in between."""
    return _kind(tracking_uri) in _DATABASES


def sqlite_path(uri: str) -> Path | None:
    """The SQLite file that a tracking URI names; None if it names none."""
    if _kind(uri) != "sqlite":
        return None
    # Three slashes and a relative path, or a fourth slash, which is part of an absolute one.
    name = unquote(urlsplit(uri).path.removeprefix("/"))
    return None if name in ("", ":memory:") else Path(name).resolve()


def _kind(uri: str) -> str:
    return urlsplit(uri).scheme.split("+")[0].lower() if "://" in uri or uri.startswith("file:") else ""


def _check_sqlite(uri: str) -> None:
    path = sqlite_path(uri)
    if path is None:
        raise StudyError(
            f"the tracking URI {uri!r} keeps everything in memory, where nobody can browse it: "
            "name a file, as in sqlite:///mlflow.db"
        )
    if not path.parent.is_dir():
        raise StudyError(f"the tracking URI {uri!r}: the folder {path.parent} does not exist; create it first")


def _database(uri: str) -> tuple[object, ...]:
    """What identifies a database, whatever its driver, user or options."""
    kind, parts = _kind(uri), urlsplit(uri)
    if kind == "sqlite":
        return (kind, sqlite_path(uri))
    return (kind, parts.hostname or "localhost", parts.port or _DEFAULT_PORTS.get(kind), parts.path)
