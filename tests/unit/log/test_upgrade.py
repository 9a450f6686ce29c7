"""Old segments rewritten as v2, in place: the same log before and after."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import CorruptData
from lapse.base.fs import RealFs
from lapse.log.partition_log import PartitionLog
from lapse.log.segment import LOG, segment_path
from lapse.log.upgrade import old_segments, upgrade
from lapse.records.batch import records_of, scan_batches
from lapse.records.layout import Codec, TimestampType
from lapse.records.legacy import Message, MessageSpec, build_messages
from tests.unit.log.logs import NOW, append, batch, check_sound, data, end, open_log

OLD = (
    MessageSpec(0),
    MessageSpec(0, Codec.GZIP),
    MessageSpec(1, Codec.SNAPPY),
    MessageSpec(1, Codec.NONE, TimestampType.LOG_APPEND_TIME, NOW + 77),
)


def old_log(path: Path) -> None:
    """Four segments of old formats, with gaps as a cleaner leaves them."""
    path.mkdir(parents=True)
    for n, spec in enumerate(OLD):
        messages = [
            Message(1000 * n + 3 * m, NOW + m if spec.magic else -1, b"k%d" % (m % 7), b"v" * m)
            for m in range(40)
        ]
        half = len(messages) // 2
        sets = [build_messages(some, spec) for some in (messages[:half], messages[half:])]
        segment_path(path, 1000 * n, LOG).write_bytes(b"".join(sets))


def told(path: Path) -> list[tuple[object, ...]]:
    found = []
    for file in sorted(path.glob("*.log")):
        content = file.read_bytes()
        rows = scan_batches(content, file.name)
        for r in (r for row in rows for r in records_of(content, row, file.name)):
            found.append((r.offset, r.timestamp, r.create_time, r.key, r.value))
    return found


def ends_with(path: Path) -> bytes:
    """Its last three batches."""
    content = path.read_bytes()
    return content[int(scan_batches(content, "t")["position"][-3]) :]


def magics(log: PartitionLog) -> set[int]:
    return {
        int(row["magic"])
        for segment in log.segments
        for row in scan_batches(segment.path().read_bytes(), "t")
    }


def test_records_times_and_the_append_clock_stay(tmp_path: Path) -> None:
    old_log(tmp_path / "t")
    log = open_log(tmp_path / "t")
    before, clocks = told(log.dir), [s.summary.append_last_ms for s in log.segments]
    mtimes = [s.mtime_ms for s in log.segments]
    assert magics(log) == {0, 1}
    seen: list[int] = []
    done = upgrade(log, RealFs(), NOW, seen.append)
    assert (done.segments, done.bytes_read) == (len(OLD), sum(seen))
    assert told(log.dir) == before
    assert magics(log) == {2}
    assert done.bytes_written == log.size_bytes
    assert [s.base_offset for s in log.segments[:-1]] == [1000 * n for n in range(len(OLD))]
    assert [s.summary.append_last_ms for s in log.segments[:-1]] == clocks
    assert [s.mtime_ms for s in log.segments[:-1]] == mtimes
    check_sound(log)
    log.close()
    again = open_log(tmp_path / "t", clean_shutdown=True)
    assert not old_segments(again)
    assert upgrade(again, RealFs(), NOW).segments == 0
    assert told(again.dir) == before


def test_what_is_v2_already_is_copied_as_it_is(tmp_path: Path) -> None:
    """A log that was migrated by KIP-32's steps: old messages first, transactions after them."""
    old_log(tmp_path / "t")
    log = open_log(tmp_path / "t")
    data(log, 7, 0)
    end(log, 7, commit=False)
    append(log, batch())
    log.roll(NOW)
    v2 = ends_with(log.segments[-2].path())
    before, aborted = told(log.dir), log.aborted_transactions(0, log.log_end_offset)
    assert len(aborted) == 1
    upgrade(log, RealFs(), NOW)
    assert ends_with(log.segments[-2].path()) == v2
    assert told(log.dir) == before
    assert log.aborted_transactions(0, log.log_end_offset) == aborted
    assert log.last_stable_offset == log.log_end_offset


def test_a_segment_that_does_not_read_stays(tmp_path: Path) -> None:
    old_log(tmp_path / "t")
    open_log(tmp_path / "t").close()
    path = segment_path(tmp_path / "t", 1000, LOG)
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    log = open_log(tmp_path / "t", clean_shutdown=True)
    with pytest.raises(CorruptData, match="checksum"):
        upgrade(log, RealFs(), NOW)
    assert path.read_bytes() == content
    assert [s.base_offset for s in old_segments(log)] == [1000, 2000, 3000]
