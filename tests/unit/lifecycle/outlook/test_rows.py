"""Columns of the views: what is not known is None."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyroaring import BitMap

from lapse.base.errors import CorruptData
from lapse.lifecycle.outlook.rows import group_row, known, micros
from lapse.lifecycle.round.ledger import LedgerEntry, Removed


def test_times_and_counts() -> None:
    assert [micros(t) for t in (None, -1, 0, 5, 1 << 62)] == [None, None, 0, 5000, (1 << 63) - 1]
    assert [known(n) for n in (-1, 0, 7)] == [None, 0, 7]


def test_what_went_of_a_group_is_counted_by_rule() -> None:
    def removed(base: int, reason: str, *offsets: int) -> Removed:
        return Removed(base, reason, BitMap(offsets).serialize())

    gone = (
        removed(0, "superseded", 1, 2, 3),
        removed(0, "tombstone", 4),
        removed(100, "superseded", 7, 9),
    )
    entry = LedgerEntry("r1", 0, 1000, 2000, 1500, 3, 900, 400, gone)
    assert group_row(entry, Path("t-0")) == {
        "round_id": "r1",
        "committed": 1_500_000,
        "removed": {"superseded": 5, "tombstone": 1},
        "stamped": 3,
        "bytes_before": 900,
        "bytes_after": 400,
    }
    bad = replace(entry, removed=(Removed(0, "superseded", b"no bitmap"),))
    with pytest.raises(CorruptData, match="round r1, segment 0"):
        group_row(bad, Path("t-0"))
