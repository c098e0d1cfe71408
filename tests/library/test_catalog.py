from __future__ import annotations

import re

from onhand.library.catalog import CATALOG, DEFAULT_MODEL, find_entry
from onhand.library.store import check_name


def test_the_default_model_can_be_pulled() -> None:
    assert find_entry(DEFAULT_MODEL) is not None


def test_every_entry_has_a_name_of_its_own_that_may_name_a_model_and_whole_hashes() -> None:
    assert len({entry.name for entry in CATALOG}) == len(CATALOG)
    for entry in CATALOG:
        assert check_name(entry.name) == entry.name
        assert re.fullmatch("[0-9a-f]{64}", entry.source.wheel_sha256)
        assert re.fullmatch("[0-9a-f]{64}", entry.source.file_sha256)
        assert entry.size_bytes > 0
