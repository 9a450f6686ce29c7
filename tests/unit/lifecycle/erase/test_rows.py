"""Tables looked through: rows, what Parquet keeps beside them, and what is no Parquet."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lapse.lifecycle.erase import rows
from lapse.lifecycle.erase.findings import RAW, ROWS, AuditUnit, Findings
from lapse.lifecycle.erase.proof import NOT_PROVEN, judge
from lapse.lifecycle.erase.replicas import Sort, Where, look_through
from lapse.lifecycle.erase.rows import OPAQUE, audit_rows
from lapse.lifecycle.erase.search import Search, make_search, spec_of
from lapse.lifecycle.erase.table import table_of
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.erase.avro import file_of
from tests.support.lifecycle.erase.replica import (
    FIRST,
    KEY,
    NEVER,
    NOW,
    counted,
    looked,
    others,
    written,
)
from tests.support.lifecycle.erase.tables import OTHER, PART, table_with


def found_in(path: Path, search: Search | None = None, *, below: int | None = None) -> Findings:
    """What one file comes to, named as it is in a table's folder."""
    search = search or make_search([KEY])
    name = f"{path.parent.name}/{path.name}"
    unit = AuditUnit(str(path.parents[1]), name, below=below, rows=True)
    return audit_rows(unit, search, table_of(search), ManualClock(NOW), lambda _: None)


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("codec", ["NONE", "ZSTD", "SNAPPY", "GZIP", "LZ4", "BROTLI"])
def test_a_row_is_found_however_it_is_written(tmp_path: Path, codec: str, dictionary: bool) -> None:
    path = table_with(
        tmp_path, [None, OTHER, KEY, KEY + b"0", OTHER], first=7,
        compression=codec, use_dictionary=dictionary,
    )  # fmt: skip
    found = found_in(path)
    assert counted(found) == (1, 0, 0, 0)
    assert [(s.offset, s.tombstone) for s in found.spots] == [(9, False)]
    assert (found.kind, found.records, found.batches, found.problem) == (ROWS, 5, 1, None)
    [piece] = found.pieces
    assert (piece.end, piece.sha256) == (
        path.stat().st_size,
        hashlib.sha256(path.read_bytes()).hexdigest(),
    )
    gone = found_in(path, make_search([NEVER]))
    assert (gone.counts, gone.regions, gone.problem) == ((), (), None)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.large_binary(), pa.binary(9)])
def test_keys_of_other_types(tmp_path: Path, kind: pa.DataType) -> None:
    path = tmp_path / PART
    path.parent.mkdir()
    keys = pa.array([b"user-4712", KEY, b"user-4713"], pa.binary())
    pq.write_table(pa.table({"key": keys.cast(kind)}), path)
    assert counted(found_in(path)) == (1, 0, 0, 0)


def test_every_group_and_every_batch_of_rows_is_looked_at(tmp_path: Path) -> None:
    """Not only the first ones: a group has more rows than are read at once."""
    count = 200_000
    keys = [b"k%d" % n for n in range(count)]
    wanted = [0, 65_535, 65_536, 99_999, 100_000, count - 1]
    for n in wanted:
        keys[n] = KEY
    path = table_with(tmp_path, keys, first=10, row_group_size=100_000)
    found = found_in(path)
    assert counted(found) == (len(wanted), 0, 0, 0)
    assert [s.offset - 10 for s in found.spots] == wanted
    assert (found.batches, found.records) == (2, count)


def test_a_tombstone_counts_as_one(tmp_path: Path) -> None:
    path = tmp_path / PART
    path.parent.mkdir()
    values = pa.array([b"v", None, None], pa.binary())
    keys = pa.array([KEY, KEY, OTHER], pa.binary())
    pq.write_table(pa.table({"key": keys, "value": values, "offset": [3, 4, 5]}), path)
    found = found_in(path)
    assert counted(found) == (1, 1, 0, 0)
    assert [(s.offset, s.tombstone) for s in found.spots] == [(3, False), (4, True)]


def test_a_value_or_none_is_that_of_the_same_row(tmp_path: Path) -> None:
    """Beyond the rows that are read at once, too."""
    path, count = tmp_path / PART, 140_000
    path.parent.mkdir()
    keys = [OTHER] * count
    values: list[bytes | None] = [b"v"] * count
    keys[70_000] = keys[135_000] = KEY
    values[4_464] = values[70_001] = values[135_000] = None
    rows = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
    pq.write_table(pa.table({**rows, "offset": range(count)}), path)
    found = found_in(path)
    assert [(s.offset, s.tombstone) for s in found.spots] == [(70_000, False), (135_000, True)]


def test_a_tombstone_from_an_orders_bound_on_is_one_still(tmp_path: Path) -> None:
    """As in a log: the bound is about values that were written later."""
    path = tmp_path / PART
    path.parent.mkdir()
    rows = {"key": [KEY, KEY], "value": pa.array([None, b"v"], pa.binary()), "offset": [7, 8]}
    pq.write_table(pa.table(rows), path)
    assert counted(found_in(path, below=5)) == (0, 1, 1, 0)
    assert counted(found_in(path, make_search([KEY], below_offset=5))) == (0, 0, 2, 0)


def test_rows_from_the_bound_on_may_stay(tmp_path: Path) -> None:
    path = table_with(tmp_path, [KEY, KEY, KEY], first=10)
    assert counted(found_in(path, make_search([KEY], below_offset=11))) == (1, 0, 2, 0)
    assert counted(found_in(path, below=12)) == (2, 0, 1, 0)
    assert counted(found_in(path, make_search([KEY], below_offset=10))) == (0, 0, 3, 0)


def test_offsets_are_looked_for_too(tmp_path: Path) -> None:
    path = table_with(tmp_path, [OTHER, KEY, OTHER], first=10)
    found = found_in(path, make_search([KEY], [9, 12]))
    assert [(c.target, c.records) for c in found.counts] == [(0, 1), (2, 1)]
    nameless = path.rename(tmp_path / "part.parquet")
    unit = AuditUnit(str(tmp_path), nameless.name, rows=True)
    search = make_search([], [9])
    told = audit_rows(unit, search, table_of(search), ManualClock(NOW), lambda _: None)
    assert told.problem == "does not say in its path of which partition its rows are"


def test_a_key_in_a_dictionary_alone_is_not_gone(tmp_path: Path) -> None:
    """Whoever filters dictionary-encoded rows and writes them keeps the whole dictionary."""
    path = tmp_path / PART
    path.parent.mkdir()
    keys = pa.array([OTHER, KEY, OTHER], pa.binary()).dictionary_encode()
    pq.write_table(pa.table({"key": keys.filter(pa.array([True, False, True]))}), path)
    assert KEY not in pq.read_table(path, columns=["key"])["key"].cast(pa.binary()).to_pylist()
    found = found_in(path)
    assert counted(found) == (0, 0, 0, 1)
    assert judged(tmp_path, [found]) == NOT_PROVEN


def test_a_key_in_the_footer_is_not_gone(tmp_path: Path) -> None:
    path = tmp_path / PART
    path.parent.mkdir()
    rows = pa.table({"key": pa.array([OTHER], pa.binary())})
    pq.write_table(rows.replace_schema_metadata({"note": KEY}), path)
    found = found_in(path)
    assert counted(found)[:3] == (0, 0, 0)
    assert counted(found)[3] >= 1
    assert found.raw_spots[0].position >= 0


def test_bounds_in_the_footer_of_rows_that_are_there_say_nothing_new(tmp_path: Path) -> None:
    path = table_with(tmp_path, [KEY], write_statistics=True)
    assert KEY in path.read_bytes()[-600:]
    assert counted(found_in(path, make_search([KEY], below_offset=0))) == (0, 0, 1, 0)


def test_a_file_without_keys_is_searched_in_all_that_is_text(tmp_path: Path) -> None:
    """Delta's checkpoints name bounds of columns in a struct."""
    path = tmp_path / "_delta_log" / "0.checkpoint.parquet"
    path.parent.mkdir()
    text = f'{{"minValues":{{"key":"{KEY.decode()}"}}}}'
    for column in (
        pa.array([{"stats": text}]),
        pa.array([[text]]),
        pa.array([[("a", text)]], pa.map_(pa.string(), pa.string())),
        pa.array([text]).dictionary_encode(),
    ):
        pq.write_table(pa.table({"add": column}), path, write_statistics=False)
        assert counted(found_in(path)) == (0, 0, 0, 1), column.type
    pq.write_table(pa.table({"add": pa.array([{"stats": "nothing", "size": 7}])}), path)
    assert found_in(path).counts == ()


_TEXT = KEY.decode()


@pytest.mark.parametrize(
    ("kind", "one"),
    [
        (pa.large_string(), _TEXT), (pa.large_binary(), KEY), (pa.binary(len(KEY)), KEY),
        (pa.string_view(), _TEXT), (pa.list_(pa.large_string()), [_TEXT]),
        (pa.large_list(pa.binary()), [KEY]), (pa.list_(pa.string(), 1), [_TEXT]),
        (pa.map_(pa.string(), pa.large_string()), [("k", _TEXT)]),
        (pa.struct({"of": pa.large_binary()}), {"of": KEY}),
        (pa.dictionary(pa.int32(), pa.large_string()), _TEXT),
    ],
    ids=str,
)  # fmt: skip
def test_text_is_searched_in_whatever_type_it_is(
    tmp_path: Path, kind: pa.DataType, one: object
) -> None:
    """Of none of these it was, and the file was proven to be without the key."""
    path = tmp_path / "t" / "other.parquet"
    path.parent.mkdir()
    table = pa.table({"n": [1, 2], "what": pa.array([one, one], kind)})
    pq.write_table(table, path, write_statistics=False)
    found = found_in(path)
    assert found.problem is None
    assert found.counts[0].raw > 0


def test_a_type_that_is_not_known_is_not_gone() -> None:
    with pytest.raises(rows._NotSearched, match="run_end_encoded"):
        [*rows._bytes_in(pa, pa.RunEndEncodedArray.from_arrays([1], ["a"]))]


def test_keys_that_are_no_bytes_cannot_be_compared(tmp_path: Path) -> None:
    path = tmp_path / PART
    path.parent.mkdir()
    for keys in (pa.array([1, 2]), pa.array([{"id": 1}]), pa.array([[b"a"]])):
        pq.write_table(pa.table({"key": keys}), path)
        assert "bytes or text" in (found_in(path).problem or ""), keys.type


@pytest.mark.parametrize("damage", ["cut", "footer", "pages"])
def test_what_cannot_be_read_is_not_gone(tmp_path: Path, damage: str) -> None:
    path = table_with(tmp_path, [OTHER] * 5000, use_dictionary=False)
    data = bytearray(path.read_bytes())
    if damage == "cut":  # as a task leaves it that was killed
        data = data[:-100]
    elif damage == "footer":
        data[-20:-8] = b"\xff" * 12
    else:
        data[4:40] = b"\xff" * 36
    path.write_bytes(data)
    found = found_in(path)
    assert judged(tmp_path, [found]) == NOT_PROVEN
    assert (found.problem is None) == (damage == "cut")
    if damage == "cut":
        assert [r.reason for r in found.regions if r.opaque] == [OPAQUE]


@pytest.mark.parametrize(
    "data", [b"", b'{"add":{"path":"\xc3\xa4"}}\n', KEY + b"\n"], ids=["empty", "json", "key"]
)
def test_text_is_searched_and_is_all_there_is(tmp_path: Path, data: bytes) -> None:
    path = written(tmp_path / "_delta_log" / "0.json", data)
    found = found_in(path)
    assert (found.kind, counted(found)[3]) == (RAW, int(data.startswith(KEY)))
    assert not any(region.opaque for region in found.regions)


def test_blocks_of_avro_are_searched_once_inflated(tmp_path: Path) -> None:
    """Iceberg's manifests: they may have bounds of columns."""
    path = tmp_path / "metadata" / "m0.avro"
    found = found_in(written(path, file_of(b"bound: " + KEY, b"another block")))
    assert (counted(found), found.regions) == ((0, 0, 0, 1), ())
    assert found_in(written(path, file_of(b"nothing"))).counts == ()
    found = found_in(written(path, file_of(b"nothing")[:-1]))
    assert [(r.reason, r.opaque) for r in found.regions] == [(OPAQUE, True)]


@pytest.mark.parametrize("data", [b"Obj\x01\x04\xff", b"\xc3", b"\x80abc"])
def test_what_is_no_text_may_be_compressed(tmp_path: Path, data: bytes) -> None:
    found = found_in(written(tmp_path / "metadata" / "m0.avro", data))
    assert [(r.start, r.end, r.opaque) for r in found.regions] == [(0, len(data), True)]


def test_checksums_of_hadoops_hold_no_key(tmp_path: Path) -> None:
    folder = tmp_path / "partition=0"
    found = found_in(written(folder / ".part.parquet.crc", b"crc\0\0\0\x02\0\xff"))
    assert not any(region.opaque for region in found.regions)
    for name, data in ((".part.crc", b"\xff" * 9), ("part.bin", b"crc\0\0\0\x02\0\xff")):
        assert any(region.opaque for region in found_in(written(folder / name, data)).regions)


# --- a whole table --------------------------------------------------------------------------------


def judged(folder: Path, files: Sequence[Findings]) -> str:
    """The verdict beside a replica that is clean."""
    written(folder / "logs" / "t-0" / FIRST, others(0))
    table = looked(folder / "logs", sort=Sort.LOGS)
    search = make_search([KEY])
    told = replace(table, files=(*table.files, *files))
    return judge([told], spec_of(search, "5a"), "t").state


def test_a_table_alone_proves_nothing(tmp_path: Path) -> None:
    table_with(tmp_path / "table", [OTHER])
    seen = [looked(tmp_path / "table", sort=Sort.TABLE)]
    assert judge(seen, spec_of(make_search([KEY]), "5a"), "t").state == NOT_PROVEN


def test_a_file_is_looked_at_once_whatever_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one would be called text that another one was."""
    path, seen = written(tmp_path / "metadata" / "0.json", b"\xff" * 40), rows.is_parquet

    def replaced(fd: int, size: int) -> bool:
        other = written(tmp_path / "metadata" / "other", b"text")
        other.replace(path)
        return seen(fd, size)

    monkeypatch.setattr(rows, "is_parquet", replaced)
    found = found_in(path)
    assert [(r.start, r.end, r.opaque) for r in found.regions] == [(0, 40, True)]
    assert found.pieces[0].sha256 == hashlib.sha256(b"\xff" * 40).hexdigest()


def test_a_file_that_goes_meanwhile_is_no_trouble(tmp_path: Path) -> None:
    gone = table_with(tmp_path, [KEY])
    table_with(tmp_path, [OTHER], "partition=0/b.parquet")
    search, clock = make_search([KEY]), ManualClock(NOW)

    def run(units: Sequence[AuditUnit]) -> list[Findings]:
        gone.unlink(missing_ok=True)
        return [audit_rows(u, search, table_of(search), clock, lambda _: None) for u in units]

    seen = look_through(Where(str(tmp_path), "t", sort=Sort.TABLE), run, clock)
    assert [found.path for found in seen.files] == ["partition=0/b.parquet"]
