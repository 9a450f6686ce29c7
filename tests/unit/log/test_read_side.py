"""Offsets as they were found before the time index (KIP-79): by segments, and their appends."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lapse.log.partition_log import PartitionLog
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from tests.support.log.logs import NOW, append, batch, data, open_log

FOR_EVER = (1 << 63) - 1
NOW_LATER = NOW + 1000


def of_three_segments(tmp_path: Path) -> PartitionLog:
    """They begin at 0, 2 and 4, and were last appended to at NOW + 10, + 30 and + 50.

    Records' own times say something else.
    """
    log = open_log(tmp_path)
    for n in range(6):
        if n and n % 2 == 0:
            log.roll(NOW + 10 * n)
        append(log, batch(records=1, timestamp=NOW - 5000 * n), now_ms=NOW + 10 * n)
    return log


@pytest.mark.parametrize(
    ("timestamp", "count_max", "offsets"),
    [
        (NOW + 9, 10, ()),
        (NOW + 10, 10, (0,)),
        (NOW + 49, 10, (2, 0)),
        (NOW + 50, 10, (4, 2, 0)),
        (NOW_LATER - 1, 10, (4, 2, 0)),
        (NOW_LATER, 10, (6, 4, 2, 0)),
        (FOR_EVER, 1, (6,)),
        (FOR_EVER, 2, (6, 4)),
        (FOR_EVER, 0, ()),
        (-3, 10, ()),
    ],
)
def test_offsets_before(
    tmp_path: Path, timestamp: int, count_max: int, offsets: tuple[int, ...]
) -> None:
    log = of_three_segments(tmp_path)
    assert log.offsets_before(timestamp, count_max, NOW_LATER) == offsets


def test_never_below_the_log_start_nor_above_what_may_be_read(tmp_path: Path) -> None:
    log = of_three_segments(tmp_path)
    log.advance_log_start(3)
    assert log.offsets_before(FOR_EVER, 10, NOW_LATER) == (6, 4, 3)
    log.high_watermark = 5
    assert log.offsets_before(FOR_EVER, 10, NOW_LATER) == (5, 4, 3)
    log.high_watermark = 4  # where a segment begins: said once
    assert log.offsets_before(FOR_EVER, 10, NOW_LATER) == (4, 3)
    log.high_watermark = 3
    assert log.offsets_before(FOR_EVER, 10, NOW_LATER) == (3,)


def test_an_empty_segment_is_the_end_and_as_old_as_the_one_before_it(tmp_path: Path) -> None:
    log = of_three_segments(tmp_path)
    log.roll(NOW + 60)
    assert log.offsets_before(FOR_EVER, 10, NOW_LATER) == (6, 4, 2, 0)
    assert log.offsets_before(NOW + 50, 10, NOW_LATER) == (6, 4, 2, 0)
    assert log.offsets_before(NOW + 49, 10, NOW_LATER) == (2, 0)


def test_an_empty_log_begins_and_ends_at_once(tmp_path: Path) -> None:
    assert open_log(tmp_path).offsets_before(FOR_EVER, 10, NOW_LATER) == (0,)


@pytest.mark.parametrize("flagged", [True, False])
@pytest.mark.parametrize("sealed", [True, False])
def test_whether_it_holds_flagged_tombstones(tmp_path: Path, flagged: bool, sealed: bool) -> None:
    """KIP-87: by what is known of its headers; where nobody has read them it may."""
    log = open_log(tmp_path)
    append(log, batch(records=2))
    assert not log.may_hold_valued_tombstones
    log.append_raw(build_batch([NewRecord(b"k", b"v", NOW, tombstone=flagged)], BatchSpec(2)))
    if sealed:
        log.roll(NOW)
        append(log, batch(records=1))
    for known in (True, False):
        assert log.may_hold_valued_tombstones == (flagged or not known)
        assert log.holds_valued_tombstones() == flagged
        log.close()
        shutil.rmtree(tmp_path / ".lapse")
        log = open_log(tmp_path, clean_shutdown=True)
    if sealed:
        path = log.segments[0].path()
        path.write_bytes(path.read_bytes()[:61] + bytes(path.stat().st_size - 61))
        assert log.holds_valued_tombstones()  # what cannot be read may be one


def test_a_transaction_that_begins_meanwhile_is_not_seen_past(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last stable offset reads the high watermark first: what begins after that is above it."""
    log, begun = open_log(tmp_path), list[int]()
    append(log, batch())

    def told(self: PartitionLog) -> int:
        if not begun:
            begun.append(data(log, producer=7, sequence=0))
        return of_log(self)

    of_log = PartitionLog.high_watermark.__get__
    with monkeypatch.context() as patched:
        patched.setattr(PartitionLog, "high_watermark", property(told))
        assert log.last_stable_offset == 3
    assert begun == [3]
    assert (log.last_stable_offset, log.high_watermark) == (3, 5)
