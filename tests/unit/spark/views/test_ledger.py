"""The view of the ledger against the ledger: every offset, once, and sums that count once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyroaring import BitMap

from lapse.base.errors import CorruptData
from lapse.base.fs import RealFs
from lapse.lifecycle.outlook.rows import RANGES_MAX
from lapse.lifecycle.round.ledger import LedgerEntry, Removed, append
from lapse.spark.views.spec import LEDGER
from tests.support.lifecycle.rounds import NOW
from tests.support.spark.views.fleet import clean, make_fleet, rows

FAR = 1 << 40


def entry(round_id: str, at_ms: int, *removed: Removed, stamped: int = 0) -> LedgerEntry:
    return LedgerEntry(round_id, 0, at_ms, at_ms + 9, at_ms + 2, stamped, 900, 400, removed)


def removed(base: int, reason: str, *relative: int) -> Removed:
    return Removed(base, reason, BitMap(relative).serialize())


def write(root: Path, *entries: LedgerEntry) -> Path:
    partition_dir = root / "a-0"
    (partition_dir / ".lapse").mkdir(parents=True)
    for one in entries:
        append(RealFs(), partition_dir, one)
    return root


def test_a_row_for_each_segment_and_reason(tmp_path: Path) -> None:
    first = entry("r1", NOW, removed(0, "superseded", 1, 2, 3, 7), removed(FAR, "keyless", 0),
                  stamped=3)  # fmt: skip
    found = rows(LEDGER, write(tmp_path, first, entry("r2", NOW + 50, stamped=1)))
    names = ("round_id", "segment", "reason", "records", "first_offset", "last_offset")
    assert [tuple(row[name] for name in names) for row in found] == [
        ("r1", 0, "superseded", 4, 1, 7), ("r1", FAR, "keyless", 1, FAR, FAR),
        ("r2", None, None, 0, None, None),
    ]  # fmt: skip
    assert [row["ranges"] for row in found] == [
        [{"first": 1, "last": 3}, {"first": 7, "last": 7}], [{"first": FAR, "last": FAR}], None,
    ]  # fmt: skip
    for name, once in (("stamped", [3, None, 1]), ("bytes_before", [900, None, 900]),
                       ("bytes_after", [400, None, 400])):  # fmt: skip
        assert [row[name] for row in found] == once
    assert (found[0]["judged"], found[0]["committed"], found[0]["horizon"]) == (
        NOW, NOW + 2, NOW + 9,
    )  # fmt: skip


def test_many_ranges_are_only_counted(tmp_path: Path) -> None:
    scattered = range(0, 4 * RANGES_MAX, 4)
    more = (*scattered, 4 * RANGES_MAX)
    written = entry("r1", NOW, removed(0, "x", *scattered), removed(9, "y", *more))
    found = rows(LEDGER, write(tmp_path, written))
    assert [row["records"] for row in found] == [RANGES_MAX, RANGES_MAX + 1]
    assert [row["ranges"] is None for row in found] == [False, True]
    assert len(found[0]["ranges"]) == RANGES_MAX


def test_real_rounds(tmp_path: Path) -> None:
    path = make_fleet(tmp_path / "data")
    clean(path, NOW + 1000)
    found = rows(LEDGER, path)
    assert sum(row["records"] for row in found if row["topic"] == "a") == 33
    assert sum(row["records"] for row in found if row["topic"] == "b") == 24
    assert {row["reason"] for row in found} == {"superseded"}
    assert {row["judged"] for row in found} == {NOW + 1000}


def test_logs_without_a_ledger_and_one_that_is_damaged(tmp_path: Path) -> None:
    assert rows(LEDGER, make_fleet(tmp_path / "plain")) == []
    bad = entry("r1", NOW, Removed(0, "superseded", b"no bitmap"))
    with pytest.raises(CorruptData, match=r"ledger.*round r1, segment 0"):
        rows(LEDGER, write(tmp_path / "bad", bad))
