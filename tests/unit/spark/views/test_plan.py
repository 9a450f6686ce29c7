"""The view of the plan: what `lapse plan` says, and by how much a deadline is missed."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from lapse.base.errors import ConfigError
from lapse.base.fs import RealFs
from lapse.lifecycle.decide.promises import SLACK_MS
from lapse.log.look import SegmentFile, keys_of
from lapse.log.reader import DirectoryView
from lapse.log.segment import LOG, segment_path
from lapse.log.sketch import encode_sketch
from lapse.log.summary import write_summary
from lapse.spark.views.spec import PLAN
from tests.support.lifecycle.rounds import NOW
from tests.support.spark.views.fleet import clean, make_fleet, rows

DELAY_MS = 60_000  # file.delete.delay.ms
DEADLINE = NOW + 90_000 + SLACK_MS + DELAY_MS  # of the oldest append


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_fleet(tmp_path_factory.mktemp("fleet"))


def test_a_due_log(fleet: Path) -> None:
    row = rows(PLAN, fleet, NOW + 5)[0]
    assert (row["topic"], row["due"], row["reasons"]) == ("a", True, ["dirty ratio"])
    assert (row["kind"], row["rule"], row["policy"]) == ("clean", "due", "compact")
    assert (row["deadline"], row["deadline_for"]) == (DEADLINE, "superseded")
    assert (row["missed_by_ms"], row["due_since"]) == (0, None)
    assert 0 < row["bytes_to_read"] == row["dirty_bytes"] <= row["bytes"]
    assert "min.cleanable.dirty.ratio" in row["explanation"]


def test_by_how_much_a_deadline_is_missed(fleet: Path) -> None:
    row = rows(PLAN, fleet, DEADLINE + 1234)[0]
    assert row["reasons"] == ["dirty ratio", "max.compaction.lag.ms"]
    assert row["missed_by_ms"] == 1234
    assert row["due_since"] == NOW + 90_000


def test_after_the_round_the_tombstone_is_what_counts(fleet: Path, tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(fleet, path)
    clean(path, NOW + 1000)
    first, second = rows(PLAN, path, NOW + 2000)
    assert (first["due"], first["bytes_to_read"], first["bytes_to_free"]) == (False, 0, 0)
    assert first["deadline_for"] == "tombstone"
    assert first["deadline"] > NOW + 61_000 + SLACK_MS + DELAY_MS
    assert (second["deadline"], second["missed_by_ms"]) == (None, None)


def test_what_a_round_frees_is_told_where_sketches_are_kept(fleet: Path, tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(fleet, path)
    assert {r["bytes_to_free"] for r in rows(PLAN, path)} == {None}
    make_sketches(path)
    for row in rows(PLAN, path):
        clean_part = {"a": 5 / 37, "b": 3 / 27}[row["topic"]]  # keys of records
        assert row["bytes_to_free"] == pytest.approx(
            row["bytes_to_read"] * (1 - clean_part), rel=0.2
        )


def make_sketches(path: Path) -> None:
    """As a task does before the first round of a log somebody else wrote."""
    view = DirectoryView(path)
    for partition in view.partitions():
        partition_dir = path / str(partition)
        for segment, after in pairwise(view.facts(partition).segments):
            base = segment.base_offset
            file = SegmentFile(segment_path(partition_dir, base, LOG), base, segment.size,
                               after.base_offset)  # fmt: skip
            sketch = keys_of(file)
            assert sketch is not None
            assert segment.summary is not None
            write_summary(RealFs(), partition_dir, segment.summary, encode_sketch(sketch))


def test_settings_that_nobody_knows(fleet: Path) -> None:
    found = rows(PLAN, fleet, settings=())
    assert [(r["rule"], r["policy"], r["due"]) for r in found] == [("policy", None, None)] * 2
    assert "pass -c cleanup.policy" in found[0]["explanation"]
    with pytest.raises(ConfigError, match="colour"):
        rows(PLAN, fleet, settings=(("colour", "blue"),))


def test_a_log_that_cannot_be_read_says_so(fleet: Path, tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(fleet, path)
    for file in (path / "a-0").glob("*.log"):
        file.unlink()
    first, second = rows(PLAN, path)
    assert (first["rule"], first["due"]) == ("unreadable", None)
    assert "no segment" in first["explanation"]
    assert second["rule"] == "due"
    vanished = rows(PLAN, path, meanwhile=lambda: shutil.rmtree(path / "a-0"))
    assert [r["topic"] for r in vanished] == ["b"]


def test_a_log_that_is_not_compacted(fleet: Path) -> None:
    settings = (("cleanup.policy", "delete"), ("retention.ms", "-1"))
    row = rows(PLAN, fleet, settings=settings)[0]
    assert (row["rule"], row["due"], row["reasons"]) == ("policy", False, [])
    assert (row["dirty_ratio"], row["deadline"], row["missed_by_ms"]) == (None, None, None)
    row = rows(PLAN, fleet, settings=(("cleanup.policy", "delete"), ("retention.ms", "1000")))[0]
    assert row["deadline_for"] == "retention"
