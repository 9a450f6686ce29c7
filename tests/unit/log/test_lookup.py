"""Where offsets and times are found, and what may not be older than a time."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from lapse.log.append_times import append_times_path
from lapse.log.lookup import FoundRecord, LastBatch, last_batch
from lapse.log.partition_log import PartitionLog
from lapse.log.segment import INDEX
from lapse.log.summary import summary_path
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from tests.support.log.logs import NOW, append, batch, config, open_log, rows_of

DAY = 86_400_000
OLD, CUTOFF = NOW - 60 * DAY, NOW - 30 * DAY
TOPIC = config(message_timestamp_before_max_ms=(1 << 63) - 1)


def put(log: PartitionLog, *times: int, now_ms: int, codec: Codec = Codec.NONE) -> None:
    """One batch, a record for each time."""
    records = [NewRecord(b"k%d" % time, b"v", time) for time in times]
    append(log, build_batch(records, BatchSpec(codec=codec)), now_ms=now_ms)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_record_without_a_time_is_as_old_as_its_append(tmp_path: Path, codec: Codec) -> None:
    """One segment was appended before the cutoff, one was not; within a batch, too."""
    log = open_log(tmp_path, TOPIC)
    put(log, OLD, -1, OLD, now_ms=OLD, codec=codec)  # 0, 1, 2
    log.roll(OLD)
    put(log, OLD, CUTOFF - 1, now_ms=NOW, codec=codec)  # 3, 4: written late, and old by their times
    put(log, OLD, -1, now_ms=NOW, codec=codec)  # 5, 6
    put(log, NOW, now_ms=NOW, codec=codec)  # 7
    assert log.state.first_not_older(OLD) == FoundRecord(0, OLD)
    assert log.state.first_not_older(OLD + 1) == FoundRecord(4, CUTOFF - 1)
    assert log.state.first_not_older(CUTOFF) == FoundRecord(6, -1)
    assert log.state.first_not_older(NOW) == FoundRecord(6, -1)
    log.delete_records(7)
    assert log.state.first_not_older(CUTOFF) == FoundRecord(7, NOW)
    assert log.state.first_not_older(NOW + 1) is None
    log.close()


def test_a_time_before_one_that_has_none(tmp_path: Path) -> None:
    log = open_log(tmp_path, TOPIC)
    put(log, OLD, CUTOFF, -1, now_ms=NOW)
    assert log.state.first_not_older(CUTOFF) == FoundRecord(1, CUTOFF)
    assert log.state.first_not_older(CUTOFF + 1) == FoundRecord(2, -1)
    log.close()


def test_a_clock_that_was_guessed_bounds_nothing(tmp_path: Path) -> None:
    """A segment that a real Kafka wrote, say: its mtime is what a copy has set it to."""
    log = open_log(tmp_path, TOPIC)
    put(log, OLD, -1, now_ms=OLD)
    log.close()
    summary_path(tmp_path, 0).unlink()
    append_times_path(tmp_path, 0).unlink()
    log = open_log(tmp_path, TOPIC, clean_shutdown=True)
    assert log.segments[0].summary.append_estimated
    for cutoff in (CUTOFF, NOW, NOW + DAY, 1 << 62):
        assert log.state.first_not_older(cutoff) == FoundRecord(1, -1)
    log.close()


def test_append_times_are_nobodys_guess(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(message_timestamp_type="LogAppendTime"))
    put(log, -1, -1, now_ms=OLD)
    put(log, -1, now_ms=NOW)
    assert log.state.first_not_older(OLD + 1) == FoundRecord(2, NOW)
    assert log.state.first_not_older(NOW + 1) is None
    log.close()


def test_an_end_of_a_transaction_is_no_record(tmp_path: Path) -> None:
    """A marker is for no reader, whatever its time."""
    log = open_log(tmp_path, TOPIC)
    spec = BatchSpec(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    append(log, build_batch([NewRecord(b"k", b"v", OLD)], spec))
    log.append_marker(7, 0, commit=True, coordinator_epoch=0, leader_epoch=0, now_ms=NOW)
    assert log.state.first_not_older(CUTOFF) is None
    log.close()


def test_append_times_within_a_segment(tmp_path: Path) -> None:
    """What was appended a second or more before the cutoff is older for certain."""
    log = open_log(tmp_path, TOPIC)
    for n in range(5):
        put(log, -1, -1, now_ms=CUTOFF - 2500 + 1000 * n)
    assert log.state.first_not_older(CUTOFF) == FoundRecord(4, -1)
    assert log.state.first_not_older(CUTOFF + 1500) == FoundRecord(8, -1)
    assert log.state.first_not_older(CUTOFF + 1501) is None
    log.close()


def test_a_time_within_a_batch(tmp_path: Path) -> None:
    """Neither an earlier time nor an offset below the log start will do."""
    log = open_log(tmp_path, TOPIC)
    put(log, OLD, OLD + 20, OLD + 10, OLD + 30, now_ms=NOW)
    assert log.state.offset_for_time(OLD + 15) == FoundRecord(1, OLD + 20)
    log.advance_log_start(2)
    assert log.state.offset_for_time(OLD + 15) == FoundRecord(3, OLD + 30)
    log.close()


# --- what an index spares ---------------------------------------------------------------------


def read_from(log: PartitionLog, offset: int) -> int:
    """The first byte of the segment that is read to find an offset."""
    asked: list[int] = []

    def pread(fd: int, length: int, position: int) -> bytes:
        asked.append(position)
        return os.pread(fd, length, position)

    assert log.read(offset, 1, pread=pread).offset == offset
    return min(asked)


def test_a_search_begins_where_the_index_says(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(8):
        append(log, batch())
    rows = rows_of(log.segments[0])
    positions = {row.last_offset: row.position for row in rows}
    ends_with, position = log.segments[0].files().offset_index.entry_before(21)
    assert positions[ends_with] == position > 0
    assert read_from(log, 21) == position
    log.close()


def test_also_where_kafka_before_4_0_wrote_it(tmp_path: Path) -> None:
    """An entry: the last offset of what was appended together, and where the first of it lies."""
    log = open_log(tmp_path)
    for _ in range(8):
        append(log, batch())
    rows = rows_of(log.segments[0])
    log.roll(NOW)
    log.close()
    pairs = [(rows[n + 1].last_offset, rows[n].position) for n in (1, 3, 5)]
    index = log.segments[0].path(INDEX)
    index.write_bytes(b"".join(struct.pack(">ii", *pair) for pair in pairs))
    log = open_log(tmp_path, clean_shutdown=True)
    assert read_from(log, rows[6].base_offset) == rows[3].position
    log.close()


# --- the last batch -------------------------------------------------------------------------------


def slow_last(log: PartitionLog) -> LastBatch | None:
    """Every header from the first to the last."""
    found = None
    for segment in log.segments:
        end = segment.base_offset
        for row in rows_of(segment):
            found = LastBatch(row.base_offset, row.last_offset, row.crc, end)
            end = row.last_offset + 1
    return found


@pytest.mark.parametrize("fmt", ["0.9.0", "0.10.2", "3.0"])
@pytest.mark.parametrize("interval_bytes", [0, 200, 1 << 20])
def test_the_last_batch_is_the_one_that_a_walk_ends_at(
    tmp_path: Path, fmt: str, interval_bytes: int
) -> None:
    """After each append: with an entry of the index at it, before it, at none, and rolled."""
    topic = config(message_format_version=fmt, index_interval_bytes=interval_bytes)
    log = open_log(tmp_path, topic)
    assert last_batch(log.segments) is None
    for n in range(40):
        append(log, batch(records=1 + n % 3))
        assert last_batch(log.segments) == slow_last(log), n
    assert len(log.segments) > 1
    before = last_batch(log.segments)
    log.roll(NOW)
    assert log.segments[-1].size == 0
    assert last_batch(log.segments) == before
    log.close()


def test_what_is_left_out_before_the_last_batch_is_known(tmp_path: Path) -> None:
    log = open_log(tmp_path, config())
    for offset in (0, 10):
        log.append_raw(batch(base_offset=offset), leader_epoch=0)
    found = last_batch(log.segments)
    assert found is not None
    assert (found.base_offset, found.last_offset, found.end_before) == (10, 12, 3)
    log.close()
