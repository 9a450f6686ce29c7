"""The bad range of a log, as `.lapse/bad` tells it (L10)."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.lifecycle.round.bad import store
from lapse.log.bad import bad_path, read_bad
from lapse.log.facts import BadRange
from lapse.log.reader import read_facts
from lapse.log.segment import LOG, segment_path
from tests.support.log.logs import NOW, TP, append, batch, open_log

BAD = BadRange(0, 3, 90, "bad checksum", NOW, 2, NOW + 120_000)


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """Two segments, the first with a place that a round could not read."""
    log = open_log(tmp_path)
    for _ in range(2):
        append(log, batch())
    log.roll(NOW)
    append(log, batch())
    store(RealFs(), tmp_path, BAD)
    return tmp_path


def test_an_opened_log_and_a_look_both_tell_it(partition: Path) -> None:
    assert read_bad(partition) == BAD
    assert open_log(partition).facts().bad == BAD
    assert read_facts(partition, TP).bad == BAD


def test_a_file_that_changed_is_looked_at_anew(partition: Path) -> None:
    path = segment_path(partition, 0, LOG)
    RealFs().set_mtime_ns(path, path.stat().st_mtime_ns + 1)
    assert read_bad(partition) is None
    assert open_log(partition).facts().bad is None


def test_a_segment_that_is_gone_takes_it_along(partition: Path) -> None:
    log = open_log(partition)
    log.delete_segments([0])
    assert log.facts().bad is None
    assert read_bad(partition) is None
    assert open_log(partition).facts().bad is None


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[]", b'{"segment_base": 0}'])
def test_what_does_not_parse_is_as_good_as_none(partition: Path, data: bytes) -> None:
    bad_path(partition).write_bytes(data)
    assert read_bad(partition) is None
