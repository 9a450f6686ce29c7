"""Keys' bytes in what is no batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lapse.lifecycle.erase import raw
from lapse.lifecycle.erase.findings import SPOTS_MAX
from lapse.lifecycle.erase.raw import RawSearch
from lapse.lifecycle.erase.search import make_search
from lapse.lifecycle.erase.table import table_of

KEYS = [b"needle", b"needle in a haystack"]


def searching(keys: list[bytes]) -> RawSearch:
    search = make_search(keys)
    return RawSearch(search, table_of(search))


def test_a_key_may_begin_in_one_block_and_end_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw, "_BLOCK_BYTES", 64)
    path = tmp_path / "file"
    for at in range(40, 70):
        path.write_bytes(b"." * at + KEYS[1] + b"." * 100)
        found = searching(KEYS)
        with path.open("rb") as file:
            assert not found.search_file(file.fileno(), 0, path.stat().st_size)
        assert found.counts.tolist() == [1, 1], at
        assert {spot.position for spot in found.spots} == {at}


def test_only_the_bytes_that_were_asked_for_are_searched(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"needle..needle..needle")
    for start, end, count in ((0, 22, 3), (1, 22, 2), (0, 21, 2), (9, 21, 0), (8, 14, 1)):
        found = searching(KEYS)
        with path.open("rb") as file:
            found.search_file(file.fileno(), start, end)
        assert found.counts[0] == count, (start, end)


def test_zeros_alone_are_no_key_but_zeros_beside_something_are(tmp_path: Path) -> None:
    path = tmp_path / "file"
    found = searching([bytes(4)])
    path.write_bytes(bytes(50))
    with path.open("rb") as file:
        assert found.search_file(file.fileno(), 0, 50)
        assert found.counts.tolist() == [0]
        path.write_bytes(bytes(50) + b"x")
        assert not found.search_file(file.fileno(), 0, 51)
    assert found.counts.tolist() == [47]
    assert len(found.spots) == SPOTS_MAX


def test_without_keys_nothing_is_found() -> None:
    search = make_search([], [5])
    found = RawSearch(search, table_of(search))
    found.search_inflated(np.zeros(100, np.uint8), 0)
    assert found.spots == []
