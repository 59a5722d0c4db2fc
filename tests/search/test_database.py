from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scalesearch.errors import StudyError
from scalesearch.search.database import open_storage, study_names
from scalesearch.search.storage import StudyStore


def test_an_unknown_study_names_the_known_ones(store: StudyStore, storage_url: str) -> None:
    opened = open_storage(storage_url)
    StudyStore(opened, "t", direction="minimize")
    with pytest.raises(StudyError, match=r"no study 'u' in this storage; it holds: s, t"):
        StudyStore(opened, "u")
    assert study_names(opened) == ["s", "t"]


@pytest.mark.parametrize("url", ["nonsense", "redis://localhost", "sqlite:////proc/none/x.db", "oracle+none://h/d", ""])
def test_a_storage_that_cannot_be_opened_is_named_with_the_reason(url: str) -> None:
    with pytest.raises(StudyError, match=r"cannot be opened: .") as refused:
        open_storage(url)
    assert url in str(refused.value)
    assert "\n" not in str(refused.value)


def test_several_drivers_may_create_one_file_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(lambda _: StudyStore(open_storage(url), "s", direction="minimize"), range(4)))
    stores[0].keep("key", 1)
    assert [store.attribute("key") for store in stores] == [1] * 4
