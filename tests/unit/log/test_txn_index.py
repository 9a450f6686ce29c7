"""Kafka's transaction index, and which batches a read_committed consumer is given (Y-3)."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from lapse.base.errors import CorruptData
from lapse.base.fs import RealFs
from lapse.log.txn_index import (
    AbortedTxn,
    TxnIndex,
    committed,
    encode_entries,
    parse_entries,
)
from lapse.records.batch import scan_batches
from tests.support.log.logs import batch

FIRST = AbortedTxn(7, 3, 9, 5)
SECOND = AbortedTxn(8, 5, 12, 13)
THIRD = AbortedTxn(7, 14, 20, 21)


def index_of(path: Path, *entries: AbortedTxn, base_offset: int = 0) -> TxnIndex:
    path.write_bytes(encode_entries(entries))
    return TxnIndex(path, base_offset)


def test_the_file_is_kafkas(tmp_path: Path) -> None:
    """F-10."""
    data = encode_entries([FIRST])
    assert struct.unpack(">hqqqq", data) == (0, 7, 3, 9, 5)
    assert parse_entries(encode_entries([FIRST, SECOND]), "t") == [FIRST, SECOND]
    for broken in (data[:-1], data + b"\0", b"\0\1" + data[2:]):
        with pytest.raises(CorruptData, match="where"):
            parse_entries(broken, "where")


def test_there_is_no_file_while_there_is_no_entry(tmp_path: Path) -> None:
    path = tmp_path / "i"
    index = TxnIndex(path, 0, ())
    index.write_out(RealFs())
    assert not path.exists()
    index.append(FIRST)
    index.write_out(RealFs())
    index.append(SECOND)
    index.write_out(RealFs())
    assert path.read_bytes() == encode_entries([FIRST, SECOND])
    index.replace(())
    index.write_out(RealFs())
    assert not path.exists()
    path.write_bytes(b"left over by a failed roll")
    TxnIndex(path, 0, ()).write_out(RealFs())
    assert not path.exists()


def test_growing_goes_on_from_the_file(tmp_path: Path) -> None:
    index = index_of(tmp_path / "i", FIRST, SECOND).growing()
    index.append(THIRD)
    index.write_out(RealFs())
    assert parse_entries((tmp_path / "i").read_bytes(), "t") == [FIRST, SECOND, THIRD]
    index.replace([FIRST, SECOND])
    assert list(index.entries()) == [FIRST, SECOND]
    index.write_out(RealFs())
    assert parse_entries((tmp_path / "i").read_bytes(), "t") == [FIRST, SECOND]
    assert list(TxnIndex(tmp_path / "none", 0).growing().entries()) == []


@pytest.mark.parametrize("many", [5, 2000])  # the longer one is not kept in memory
def test_a_loaded_index_outlives_its_name(tmp_path: Path, many: int) -> None:
    entries = [AbortedTxn(1, 10 * n, 10 * n + 5, 10 * n + 6) for n in range(many)]
    index = index_of(tmp_path / "i", *entries)
    unread = TxnIndex(tmp_path / "i", 0)
    index.load()
    (tmp_path / "i").unlink()
    assert list(index.entries()) == entries
    assert index.overlapping(12, 31) == (entries[1:4], True)
    assert list(unread.entries()) == []


def test_x1_the_walk_ends_where_the_stable_offset_had_passed(tmp_path: Path) -> None:
    index = index_of(tmp_path / "i", FIRST, SECOND, THIRD)
    assert index.overlapping(0, 100) == ([FIRST, SECOND, THIRD], False)
    assert index.overlapping(0, 5) == ([FIRST], True)  # its own last stable offset was 5
    assert index.overlapping(0, 6) == ([FIRST, SECOND], True)
    assert index_of(tmp_path / "j", FIRST, SECOND).overlapping(0, 13) == ([FIRST, SECOND], True)
    assert index.overlapping(10, 14) == ([SECOND], True)
    assert index.overlapping(13, 14) == ([], True)


@pytest.mark.parametrize(
    ("entries", "word"),
    [
        ([SECOND, FIRST], "marker at 9"),
        ([FIRST, FIRST], "marker at 9"),
        ([FIRST, THIRD], "marker at 20"),  # past the end
        ([AbortedTxn(1, 9, 9, 10)], "began at 9"),
        ([AbortedTxn(1, -1, 9, 10)], "began at -1"),
        ([AbortedTxn(-1, 3, 9, 10)], "began at 3"),
    ],
)
def test_what_cannot_be_right(tmp_path: Path, entries: list[AbortedTxn], word: str) -> None:
    assert word in (index_of(tmp_path / "i", *entries).check(20) or "")


def test_an_index_below_its_segment_cannot_be_right(tmp_path: Path) -> None:
    """Kafka's own check."""
    assert index_of(tmp_path / "i", FIRST, SECOND).check(13) is None
    assert index_of(tmp_path / "i", FIRST, base_offset=9).check(13) is None
    assert index_of(tmp_path / "i", FIRST, base_offset=10).check(13) is not None


def test_y3_neither_control_batches_nor_aborted_data() -> None:
    txn = {"producer_epoch": 0, "base_sequence": 0, "transactional": True, "records": 2}
    data = b"".join(
        [
            batch(base_offset=0, producer_id=7, **{**txn, "transactional": False}),
            batch(base_offset=3, producer_id=7, **txn),
            batch(base_offset=5, producer_id=8, **txn),
            batch(base_offset=7, producer_id=9, **txn),
            batch(base_offset=9, producer_id=7, control=True, **{**txn, "records": 1}),
            batch(base_offset=10, producer_id=7, **txn),
            batch(base_offset=12, producer_id=8, control=True, **{**txn, "records": 1}),
            batch(base_offset=14, producer_id=7, **txn),
            batch(base_offset=16, producer_id=7, **txn),
            batch(base_offset=20, producer_id=7, control=True, **{**txn, "records": 1}),
        ]
    )
    rows = scan_batches(data, "t")
    seen = rows["base_offset"][committed(rows, [THIRD, FIRST, SECOND])].tolist()
    assert seen == [0, 7, 10]
    assert rows["base_offset"][committed(rows, [])].tolist() == [0, 3, 5, 7, 10, 14, 16]
    # Said twice, by an index of a rewritten segment too: harmless.
    again = [FIRST, AbortedTxn(7, 4, 9, 5), SECOND, THIRD]
    assert np.array_equal(committed(rows, again), committed(rows, [FIRST, SECOND, THIRD]))
    assert committed(rows[:0], [FIRST]).tolist() == []
