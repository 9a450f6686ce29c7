"""What readers ask of a log beside its bytes: offsets by segments (KIP-79), times, tombstones."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from lapse.log.lookup import FoundRecord
from lapse.log.partition_log import PartitionLog
from lapse.log.segment import Segment
from lapse.log.state import BOUNDS, LogState
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import TimestampType
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
    assert log.state.offsets_before(timestamp, count_max, NOW_LATER) == offsets


def test_never_below_the_log_start_nor_above_what_may_be_read(tmp_path: Path) -> None:
    log = of_three_segments(tmp_path)
    log.advance_log_start(3)
    assert log.state.offsets_before(FOR_EVER, 10, NOW_LATER) == (6, 4, 3)
    log.high_watermark = 5
    assert log.state.offsets_before(FOR_EVER, 10, NOW_LATER) == (5, 4, 3)
    log.high_watermark = 4  # where a segment begins: said once
    assert log.state.offsets_before(FOR_EVER, 10, NOW_LATER) == (4, 3)
    log.high_watermark = 3
    assert log.state.offsets_before(FOR_EVER, 10, NOW_LATER) == (3,)


def test_an_empty_segment_is_the_end_and_as_old_as_the_one_before_it(tmp_path: Path) -> None:
    log = of_three_segments(tmp_path)
    log.roll(NOW + 60)
    assert log.state.offsets_before(FOR_EVER, 10, NOW_LATER) == (6, 4, 2, 0)
    assert log.state.offsets_before(NOW + 50, 10, NOW_LATER) == (6, 4, 2, 0)
    assert log.state.offsets_before(NOW + 49, 10, NOW_LATER) == (2, 0)


def test_an_empty_log_begins_and_ends_at_once(tmp_path: Path) -> None:
    assert open_log(tmp_path).state.offsets_before(FOR_EVER, 10, NOW_LATER) == (0,)


@pytest.mark.parametrize("flagged", [True, False])
@pytest.mark.parametrize("sealed", [True, False])
def test_whether_it_holds_flagged_tombstones(tmp_path: Path, flagged: bool, sealed: bool) -> None:
    """KIP-87: by what is known of its headers; where they were not read it may."""
    log = open_log(tmp_path)
    append(log, batch(records=2))
    assert not log.may_hold_valued_tombstones
    log.append_raw(build_batch([NewRecord(b"k", b"v", NOW, tombstone=flagged)], BatchSpec(2)))
    if sealed:
        log.roll(NOW)
        append(log, batch(records=1))
    for known in (True, False):
        assert log.may_hold_valued_tombstones == (flagged or not known)
        assert log.state.holds_valued_tombstones() == flagged
        log.close()
        shutil.rmtree(tmp_path / ".lapse")
        log = open_log(tmp_path, clean_shutdown=True)
    if sealed:
        path = log.segments[0].path()
        path.write_bytes(path.read_bytes()[:61] + bytes(path.stat().st_size - 61))
        assert log.state.holds_valued_tombstones()  # what cannot be read may be one


def test_a_transaction_that_begins_meanwhile_is_not_seen_past(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All bounds are of one state: what begins after that was taken is above them."""
    log, begun = open_log(tmp_path), list[int]()
    append(log, batch())

    def told(self: LogState) -> int:
        if not begun:
            begun.append(data(log, producer=7, sequence=0))
        return of_log(self)

    of_log = LogState.high_watermark.__get__
    with monkeypatch.context() as patched:
        patched.setattr(LogState, "high_watermark", property(told))
        assert log.last_stable_offset == 3
    assert begun == [3]
    assert (log.last_stable_offset, log.high_watermark) == (3, 5)


def test_sealed_segments_are_asked_once_whether_they_hold_flagged_tombstones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fetches ask: what that costs does not grow with the number of segments."""
    log, asked = of_three_segments(tmp_path), list[int]()

    def told(self: Segment) -> bool:
        asked.append(self.base_offset)
        return of_segment(self)

    of_segment = Segment.may_hold_valued_tombstones.__get__
    monkeypatch.setattr(Segment, "may_hold_valued_tombstones", property(told))
    assert [log.may_hold_valued_tombstones for _ in range(5)] == [False] * 5
    assert asked == [0, 2]
    log.roll(NOW_LATER)
    assert not log.may_hold_valued_tombstones
    assert asked == [0, 2, 0, 2, 4]


# --- times ----------------------------------------------------------------------------------------


def appended_over_time(tmp_path: Path) -> PartitionLog:
    """Batch n has offsets 3n to 3n+2 and was appended at NOW + 5000n; two segments of two."""
    log = open_log(tmp_path)
    for n in range(4):
        if n == 2:
            log.roll(NOW)
        append(log, batch(), now_ms=NOW + 5000 * n)
    return log


def test_when_an_offset_was_appended(tmp_path: Path) -> None:
    log = appended_over_time(tmp_path)
    found = [log.state.append_time_from(offset) for offset in range(12)]
    assert found == [NOW + 5000 * (offset // 3) for offset in range(12)]
    assert log.state.append_time_from(12) is None  # nothing is there yet
    log.advance_log_start(4)
    assert log.state.append_time_from(0) == NOW + 5000  # of the first that is left


def test_what_was_read_tells_when_it_was_appended(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for n in range(4):
        append(log, batch(), now_ms=NOW + 5000 * n)
    everything = log.read(0, 1 << 20).append_times()
    expected = [NOW + 5000 * (offset // 3) for offset in range(12)]
    assert everything.shown(np.arange(12)).tolist() == expected
    first = log.read(0, 1).append_times()
    assert first.shown(np.arange(3)).tolist() == expected[:3]
    assert expected[-1] not in first.times.tolist()  # of a little more, not of all
    assert log.read(12, 1).append_times().times.tolist() == []


def test_the_greatest_time_is_a_records_not_what_an_emptied_batch_claims(tmp_path: Path) -> None:
    """T-19, E8: in a later segment, whose greatest time is less than one before it."""
    log = open_log(tmp_path)
    append(log, batch(records=1, timestamp=NOW + 10))
    log.roll(NOW)
    stamped = {"timestamp_type": TimestampType.LOG_APPEND_TIME, "append_time": NOW + 5000}
    emptied = batch(base_offset=1, records=0, last_offset_delta=2, **stamped)
    log.append_raw(emptied)
    assert log.segments[1].max_timestamp == NOW + 5000
    log.append_raw(batch(base_offset=4, records=1, timestamp=NOW + 5))
    assert log.state.greatest_timestamp() == FoundRecord(0, NOW + 10)


def test_bounds_are_all_that_decides_what_may_be_read_and_hold_no_segment() -> None:
    bounds = ("log_start_offset", "log_end_offset", "unstable", "known_high_watermark")
    assert LogState._fields[BOUNDS] == bounds
