"""Which files are a table's, of which topic it is, and what that makes of its rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lapse.base.bucket import Bucket
from lapse.lifecycle.erase.proof import NOT_PROVEN, PROVEN, REMAINS, judge
from lapse.lifecycle.erase.replicas import Sort, why_unusable
from lapse.lifecycle.erase.search import Bound, make_search, spec_of
from lapse.lifecycle.erase.table_files import EXPORT_STATE, topic_of_table
from tests.support.lifecycle.erase.replica import FIRST, KEY, counted, looked, others, written
from tests.support.lifecycle.erase.tables import OTHER, PART, table_with
from tests.support.spark.object_store import ObjectStore, let_in, object_store


def verdict_of(tmp_path: Path, **asked: Any) -> str:
    """Of a clean log directory and the table in `table`."""
    written(tmp_path / "logs" / "t-0" / FIRST, others(0))
    seen = [looked(tmp_path / "logs"), looked(tmp_path / "table", sort=Sort.TABLE, **asked)]
    return judge(seen, spec_of(make_search([KEY]), "5a"), "t").state


def test_a_table_is_what_is_below_its_folder(tmp_path: Path) -> None:
    table_with(tmp_path / "table", [OTHER])
    assert verdict_of(tmp_path) == PROVEN
    attempt = table_with(tmp_path / "table", [KEY], "_lapse/4f/partition=1/a.parquet")
    assert verdict_of(tmp_path) == REMAINS, "an attempt that was cut short"
    attempt.rename(tmp_path / "table" / "partition=0" / ".hidden.parquet")
    assert verdict_of(tmp_path) == REMAINS, "one that is not shown yet"
    assert verdict_of(tmp_path, partition=1) == PROVEN, "other partitions are not asked about"
    (tmp_path / "table" / "partition=0" / ".hidden.parquet").unlink()
    assert verdict_of(tmp_path) == PROVEN


def test_a_folder_that_is_no_table_proves_nothing(tmp_path: Path) -> None:
    """Its name may be mistyped; a table that has lost its last row is one still."""
    written(tmp_path / "table" / "README", b"nothing here")
    assert verdict_of(tmp_path) == NOT_PROVEN
    state = written(tmp_path / "table" / EXPORT_STATE, json.dumps({"topic": "t"}).encode())
    assert verdict_of(tmp_path) == PROVEN
    state.unlink()
    table_with(tmp_path / "table", [OTHER])
    assert verdict_of(tmp_path) == PROVEN


def test_a_table_that_is_not_there_or_of_another_topic(tmp_path: Path) -> None:
    assert verdict_of(tmp_path) == NOT_PROVEN
    table_with(tmp_path / "table", [OTHER])
    written(tmp_path / "table" / EXPORT_STATE, json.dumps({"topic": "u"}).encode())
    assert looked(tmp_path / "table", sort=Sort.TABLE).problem == "is a table of topic u"
    assert verdict_of(tmp_path) == NOT_PROVEN
    for no_state in (b"[]", b"{", b'{"topic":7}', b"\xff"):
        written(tmp_path / "table" / EXPORT_STATE, no_state)
        assert looked(tmp_path / "table", sort=Sort.TABLE).problem is None


def test_an_orders_bounds_hold_for_tables_of_its_topic(tmp_path: Path) -> None:
    """A row that was written after the order was given may stay."""
    ours, spelt = "0" * 31 + "1", "AAAAAAAAAAAAAAAAAAAAAQ"
    table_with(tmp_path, [KEY, KEY], first=4)
    asked = {"bounds": (Bound(0, 5),), "topic_id": ours, "sort": Sort.TABLE}

    def counts(topic_id: str | None) -> list[tuple[int, int, int, int]]:
        written(tmp_path / EXPORT_STATE, json.dumps({"topic": "t", "topic_id": topic_id}).encode())
        return [counted(found) for found in looked(tmp_path, **asked).files if found.counts]

    assert counts(spelt) == [(1, 0, 1, 0)]
    assert counts("AAAAAAAAAAAAAAAAAAAAAg") == [(2, 0, 0, 0)], "of an older topic of that name"
    assert counts(None) == [(2, 0, 0, 0)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("moto")) as running, let_in(running):
        yield running


def put(folder: Path, place: str) -> None:
    """All files below a folder, as objects."""
    for path in folder.rglob("*"):
        if path.is_file():
            Bucket(place).put(str(path.relative_to(folder)), path.read_bytes())


def test_a_table_in_a_store_is_all_objects_below_its_prefix(
    store: ObjectStore, tmp_path: Path
) -> None:
    place = store.place()
    table_with(tmp_path / "table", [OTHER, KEY])
    written(tmp_path / "table" / "_delta_log" / "0.json", b'{"min":"%s"}' % KEY)
    written(tmp_path / "table" / "metadata" / "odd", b"\xff" * 40)
    put(tmp_path / "table", place)
    near, far = looked(tmp_path / "table", sort=Sort.TABLE), looked(place, sort=Sort.TABLE)
    assert (far.problem, far.table, far.listings) == (None, True, 2)
    assert [(one.path, one.kind, one.counts, one.regions, one.pieces) for one in far.files] == [
        (one.path, one.kind, one.counts, one.regions, one.pieces) for one in near.files
    ]
    assert {one.path: counted(one) for one in far.files} == {
        PART: (1, 0, 0, 0), "_delta_log/0.json": (0, 0, 0, 1), "metadata/odd": (0, 0, 0, 0),
    }  # fmt: skip
    assert [one.path for one in looked(place, sort=Sort.TABLE, partition=1).files] == [
        "_delta_log/0.json", "metadata/odd"
    ]  # fmt: skip


def test_the_topic_of_one_in_a_store_is_a_hint(store: ObjectStore, tmp_path: Path) -> None:
    """It is written after the rows count: an order of several topics leaves no table out."""
    place, ours, spelt = store.place(), "0" * 31 + "1", "AAAAAAAAAAAAAAAAAAAAAQ"
    table_with(tmp_path, [KEY, KEY], first=4)
    put(tmp_path, place)
    assert topic_of_table(place) == (None, None)
    assert why_unusable(place, Sort.TABLE, ["t"]) is None
    Bucket(place).put(EXPORT_STATE, json.dumps({"topic": "t", "topic_id": spelt}).encode())
    assert topic_of_table(place) == ("t", ours)
    assert why_unusable(place, Sort.TABLE, ["t", "u"]) is None
    assert why_unusable(place, Sort.TABLE, ["u"]) == "is a table of topic t"
    asked = {"bounds": (Bound(0, 5),), "topic_id": ours, "sort": Sort.TABLE}
    for topic in ("t", "u"):
        [found] = [one for one in looked(place, topic=topic, **asked).files if one.counts]
        assert counted(found) == (1, 0, 1, 0)


def test_one_that_is_no_table_or_not_there_proves_nothing(store: ObjectStore) -> None:
    place = store.place()
    assert "no object has a name that begins so" in (looked(place, sort=Sort.TABLE).problem or "")
    Bucket(place).put("README", b"nothing here")
    assert "is no table" in (looked(place, sort=Sort.TABLE).problem or "")
