"""What is cut off a log and kept aside: whole, for a week, and not without bound."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.log.aside import KEPT_BYTES_MAX, keep_segment, keep_tail, kept_aside
from lapse.log.segment import LOG, segment_path
from tests.support.log.logs import open_log

WEEK_MS = 7 * 24 * 3_600_000


def log_file(folder: Path, data: bytes) -> Path:
    """That of the segment at 7."""
    path = segment_path(folder, 7, LOG)
    path.write_bytes(data)
    return path


def test_a_tail_that_was_cut_is_kept_aside_whole(tmp_path: Path) -> None:
    path = log_file(tmp_path, b"0123456789")
    kept = keep_tail(RealFs(), tmp_path, 7, 4)
    assert kept is not None
    assert kept.read_bytes() == b"456789"
    assert path.read_bytes() == b"0123456789"


def test_a_tail_that_is_cut_again_is_kept_once(tmp_path: Path) -> None:
    """The cut was cut short: what it had kept is not added to."""
    log_file(tmp_path, b"0123456789")
    first = keep_tail(RealFs(), tmp_path, 7, 4)
    assert keep_tail(RealFs(), tmp_path, 7, 4) == first
    [aside] = kept_aside(tmp_path)
    assert (aside.path, aside.path.read_bytes()) == (first, b"456789")


def test_what_is_cut_off_there_later_is_kept_beside_it(tmp_path: Path) -> None:
    """It may be all that is left of other records."""
    for data in (b"0123AAAA", b"0123BB", b"0123BBBB"):  # the last one was cut short before
        log_file(tmp_path, data)
        assert keep_tail(RealFs(), tmp_path, 7, 4) is not None
    assert sorted(one.path.read_bytes() for one in kept_aside(tmp_path)) == [b"AAAA", b"BBBB"]
    for data in (b"CCCC", b"DDDD"):
        log_file(tmp_path, data)
        assert keep_segment(RealFs(), tmp_path, 7) is not None
    found = sorted(one.path.read_bytes() for one in kept_aside(tmp_path))
    assert found == [b"AAAA", b"BBBB", b"CCCC", b"DDDD"]


def test_a_tail_of_zeros_is_not_kept(tmp_path: Path) -> None:
    log_file(tmp_path, b"0123" + bytes(99))
    assert keep_tail(RealFs(), tmp_path, 7, 4) is None
    assert kept_aside(tmp_path) == ()


@pytest.mark.parametrize(
    ("size", "kept"), [(0, False), (1, True), (KEPT_BYTES_MAX, True), (KEPT_BYTES_MAX + 1, False)]
)
def test_a_segment_that_holds_something_and_not_too_much_is_kept(
    tmp_path: Path, size: int, kept: bool
) -> None:
    path = log_file(tmp_path, b"")
    os.truncate(path, size)
    found = keep_segment(RealFs(), tmp_path, 7)
    assert path.exists() != kept
    assert [(one.path, one.size) for one in kept_aside(tmp_path)] == [(found, size)] * kept
    assert (found is not None) == kept


def test_it_is_kept_for_a_week_from_when_it_was_cut(tmp_path: Path) -> None:
    log_file(tmp_path, b"0123456789")
    assert keep_tail(RealFs(), tmp_path, 7, 0) is not None
    [aside] = kept_aside(tmp_path)
    assert aside.until_ms == aside.path.stat().st_ctime_ns // 1_000_000 + WEEK_MS


def test_it_goes_after_that_week_though_the_log_was_opened_since(tmp_path: Path) -> None:
    log_file(tmp_path, b"0123456789")
    kept = keep_tail(RealFs(), tmp_path, 7, 4)
    assert kept is not None
    segment_path(tmp_path, 7, LOG).unlink()
    [aside] = kept_aside(tmp_path)
    log = open_log(tmp_path)
    log.sweep_aside(aside.until_ms - 1)
    assert kept.exists()
    log.sweep_aside(aside.until_ms)
    assert not kept.exists()
    log.close()
