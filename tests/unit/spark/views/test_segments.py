"""The view of segments against the files, without reading them, and of a directory that changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lapse.log.segment import LOG, segment_path
from lapse.records.batch import scan_batches
from lapse.spark.views.segments import estimated_segments
from lapse.spark.views.spec import SEGMENTS
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW
from tests.support.spark.views.fleet import clean, make_fleet, rows


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cleaned once; only log a has a tombstone, whose horizon waits."""
    path = make_fleet(tmp_path_factory.mktemp("fleet"))
    clean(path, NOW + 1000)
    return path


def test_rows_are_what_is_in_the_files(fleet: Path) -> None:
    found = rows(SEGMENTS, fleet, NOW + 7)
    assert {(r["topic"], r["as_of"], r["log_dir"]) for r in found} == {
        ("a", NOW + 7, str(fleet)), ("b", NOW + 7, str(fleet)),
    }  # fmt: skip
    for row in found:
        path = segment_path(fleet / f"{row['topic']}-0", row["base_offset"], LOG)
        batches = scan_batches(path.read_bytes(), "t")
        assert (row["bytes"], row["batches"]) == (path.stat().st_size, len(batches))
        assert row["records"] == int(batches["count"].sum())
        if row["bytes"]:
            assert (row["first_append"], row["max_timestamp"]) == (NOW, NOW)
        assert (row["estimated"], row["markers"], row["unreadable_from"]) == (False, 0, None)
    of_a = [r for r in found if r["topic"] == "a"]
    assert [r["sealed"] for r in of_a] == [True] * (len(of_a) - 1) + [False]
    assert of_a[0]["base_offset"] == 0
    [waits] = [r for r in found if r["horizon_earliest"] is not None]
    assert (waits["topic"], waits["horizon_earliest"]) == ("a", NOW + 61_000)
    assert 0 < waits["horizon_bytes"] <= waits["bytes"]


def test_tombstones_are_told_where_somebody_looked_into_the_batches(tmp_path: Path) -> None:
    """A broker does as it appends; headers alone do not say."""
    path = make_fleet(tmp_path / "data")
    assert sum(r["tombstones"] for r in rows(SEGMENTS, path) if r["topic"] == "a") == 1
    shutil.rmtree(path / "a-0" / ".lapse")
    found = [r for r in rows(SEGMENTS, path) if r["topic"] == "a" and r["bytes"]]
    assert {r["tombstones"] for r in found} == {None}
    assert sum(r["records"] for r in found) == 37


def test_estimates_without_summaries(fleet: Path, tmp_path: Path) -> None:
    """As much as names, sizes and indexes tell; no count is made up."""
    copy = tmp_path / "copy"
    shutil.copytree(fleet, copy)
    assert not any(r["estimated"] for r in rows(SEGMENTS, copy, estimates=True))
    for name in "ab":
        shutil.rmtree(copy / f"{name}-0" / ".lapse")
    exact, rough = rows(SEGMENTS, copy), rows(SEGMENTS, copy, estimates=True)
    assert not any(r["estimated"] for r in exact)
    assert len(exact) == len(rough)
    for true, told in zip(exact, rough, strict=True):
        assert told["estimated"] is (true["bytes"] > 0)
        for name in ("base_offset", "bytes", "sealed", "max_timestamp"):
            assert told[name] == true[name]
        assert told["end_offset"] >= true["end_offset"]
        if told["estimated"]:
            assert {told[n] for n in ("records", "tombstones", "markers", "horizon_bytes")} == {
                None
            }
            assert told["append_estimated"]


def test_what_does_not_fit_is_read_after_all(fleet: Path, tmp_path: Path) -> None:
    """The first batch cut off: no header to go by, so no estimate."""
    copy = tmp_path / "a-0"
    shutil.copytree(fleet / "a-0", copy)
    shutil.rmtree(copy / ".lapse")
    with segment_path(copy, 0, LOG).open("r+b") as file:
        file.truncate(20)
    first = estimated_segments(copy, ManualClock(NOW))[0].summary
    assert first is not None
    assert (first.estimated, first.unreadable_from, first.records) == (False, 0, 0)


def test_logs_that_vanish_meanwhile_have_no_rows(fleet: Path, tmp_path: Path) -> None:
    for estimates in (False, True):
        copy = tmp_path / f"copy-{estimates}"
        shutil.copytree(fleet, copy)

        def vanish(copy: Path = copy) -> None:
            shutil.rmtree(copy / "a-0")

        found = rows(SEGMENTS, copy, estimates=estimates, meanwhile=vanish)
        assert {r["topic"] for r in found} == {"b"}
