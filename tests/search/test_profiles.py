from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from scalesearch.search.database import open_storage
from scalesearch.search.profiles import STUDY_NAME, ProfileStore
from tests.conftest import NewDatabase
from tests.core.profiles import AFFINE, MACHINE, points, profile

PROFILE = profile(points(AFFINE, shares=(8, 64), replicas=(1, 2, 4)))


def test_profiles_are_found_by_fingerprint_and_replicas(tmp_path: Path, new_database: NewDatabase) -> None:
    url = new_database(tmp_path / "studies.db")
    store = ProfileStore(open_storage(url))
    assert store.find(MACHINE, 1) is None
    assert store.profile(MACHINE, [1, 2]) is None
    for part in PROFILE.by_replicas:
        store.keep(MACHINE, part)
    again = ProfileStore(open_storage(url))
    assert again.find(MACHINE, 2) == PROFILE.of(2)
    assert again.profile(MACHINE, [4, 1, 2, 8]) == PROFILE
    assert again.find(replace(MACHINE, software={"tensorflow": "1"}), 2) is None
    assert again.find(replace(MACHINE, hardware={}), 2) is None


def test_the_newest_counts(tmp_path: Path, new_database: NewDatabase) -> None:
    store = ProfileStore(open_storage(new_database(tmp_path / "studies.db")))
    newer = replace(PROFILE.by_replicas[0], seconds=5.0)
    store.keep(MACHINE, PROFILE.by_replicas[0])
    store.keep(MACHINE, newer)
    assert store.find(MACHINE, 1) == newer


def test_what_another_scalesearch_kept_is_measured_anew(tmp_path: Path, new_database: NewDatabase) -> None:
    import optuna

    storage = open_storage(new_database(tmp_path / "studies.db"))
    store = ProfileStore(storage)
    store.keep(MACHINE, PROFILE.by_replicas[0])
    study = optuna.load_study(study_name=STUDY_NAME, storage=storage)
    [key] = study.user_attrs
    study.set_user_attr(key, {"replicas": 1})
    assert ProfileStore(storage).find(MACHINE, 1) is None
