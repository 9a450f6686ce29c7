"""Append, read, roll, replace, delete: what a log promises while it is open."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from lapse.base.errors import (
    CorruptData,
    ErrorCode,
    KafkaError,
    StaleGeneration,
    StorageError,
)
from lapse.base.fs import AppendFile, Buffer, RealFs
from lapse.log.env import LogEnv, OpenFiles
from lapse.log.facts import LogFacts
from lapse.log.partition_log import PartitionLog
from lapse.log.summary import Summary
from lapse.log.swap import NewSegment, Replacement, sweep_attempts
from lapse.records.layout import TimestampType
from lapse.testing.clock import ManualClock
from tests.spark.processes import needs_proc
from tests.support.log.logs import (
    NOW,
    TP,
    append,
    batch,
    batches_of,
    check_sound,
    config,
    open_log,
    rewrite,
    rows_of,
)


def code_of(error: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return error.value.code


def filled(tmp_path: Path, batches: int = 30, **settings: object) -> PartitionLog:
    """A log of several segments; batch n has offsets 3n..3n+2 and time NOW + 10n."""
    log = open_log(tmp_path, config(**settings))
    for n in range(batches):
        append(log, batch(timestamp=NOW + 10 * n, size=60), now_ms=NOW + 100 * n)
    return log


# --- append --------------------------------------------------------------------------------------


def test_append_assigns_offsets_and_the_leader_epoch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    first = append(log, batch(records=3), epoch=4)
    second = append(log, batch(records=2), epoch=7)
    assert (first.base_offset, first.last_offset) == (0, 2)
    assert (second.base_offset, second.last_offset) == (3, 4)
    assert log.log_end_offset == log.high_watermark == log.last_stable_offset == 5
    rows = rows_of(log.segments[0])  # checks the CRCs as well
    assert [(r.base_offset, r.last_offset, r.leader_epoch) for r in rows] == [(0, 2, 4), (3, 4, 7)]
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n2\n4 0\n7 3\n"


def test_log_append_time_is_told_and_remembered_for_duplicates(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(message_timestamp_type="LogAppendTime"))
    data = batch(producer_id=1, producer_epoch=0, base_sequence=0)
    assert append(log, data, now_ms=NOW + 5).log_append_time_ms == NOW + 5
    again = append(log, data, now_ms=NOW + 9)
    assert (again.duplicate, again.log_append_time_ms, again.base_offset) == (True, NOW + 5, 0)


def test_a_batch_larger_than_a_segment_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(internal_segment_bytes=500))
    with pytest.raises(KafkaError, match=r"segment\.bytes is 500") as error:
        append(log, batch(size=300))
    assert code_of(error) is ErrorCode.RECORD_LIST_TOO_LARGE
    assert log.log_end_offset == 0


def test_rolls_by_size_and_seals_what_it_leaves(tmp_path: Path) -> None:
    log = filled(tmp_path)
    assert len(log.segments) > 3
    assert all(s.size <= 2000 for s in log.segments)
    bases = [s.base_offset for s in log.segments]
    ends = [s.end_offset for s in log.segments]
    assert bases[1:] == ends[:-1]  # T-22
    for segment in log.segments[:-1]:
        assert segment.path(".index").stat().st_size == segment.index_bytes
        assert segment.path(".timeindex").stat().st_size == segment.time_index_bytes
        # T-14: the last time entry is the segment's greatest timestamp.
        assert segment.files().time_index.last[0] == segment.max_timestamp
    for base in bases[1:]:
        assert (tmp_path / f"{base:020d}.snapshot").exists()
    check_sound(log)


def test_rolls_when_an_index_is_full(tmp_path: Path) -> None:
    """T-20: offset index at its entries, time index one before (its last slot is reserved)."""
    log = filled(tmp_path, segment_index_bytes=40, internal_segment_bytes=100_000)
    assert len(log.segments) > 2
    for segment in log.segments[:-1]:
        assert segment.index_bytes <= 40
        assert segment.time_index_bytes <= 36


def test_rolls_before_an_offset_too_far_from_the_base(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_raw(batch(base_offset=0))
    log.append_raw(batch(base_offset=(1 << 31) + 5))
    assert [s.base_offset for s in log.segments] == [0, (1 << 31) + 5]
    check_sound(log)
    assert log.read(3, 10_000).read() == batches_of(log)[(1 << 31) + 5]


def test_append_raw_keeps_gaps_and_refuses_what_goes_back(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_raw(batch(base_offset=10) + batch(base_offset=50, leader_epoch=3))
    assert log.log_end_offset == 53
    with pytest.raises(CorruptData, match="offset 52 where 53"):
        log.append_raw(batch(base_offset=52))
    with pytest.raises(CorruptData):
        log.append_raw(batch(base_offset=60)[:-1])
    assert log.log_end_offset == 53
    assert log.leader_epoch == 3


class FullFs(RealFs):
    """A disk with `left` bytes for appends; a write that does not fit is half done."""

    def __init__(self) -> None:
        self.left = 1 << 40
        self.truncates = True

    def open_append(self, path: Path) -> AppendFile:
        file = super().open_append(path)
        write = file.write

        def limited(*buffers: Buffer) -> None:
            data = b"".join(buffers)
            if len(data) > self.left:
                with path.open("r+b") as raw:
                    raw.seek(file.size)
                    raw.write(data[: self.left])
                raise StorageError(f"writing {path}: No space left on device")
            self.left -= len(data)
            write(data)

        file.write = limited  # type: ignore[method-assign]
        return file

    def truncate(self, path: Path, size: int) -> None:
        if not self.truncates:
            raise StorageError(f"truncating {path}: Input/output error")
        super().truncate(path, size)


def test_a_full_disk_costs_the_batch_and_nothing_else(tmp_path: Path) -> None:
    fs = FullFs()
    log = open_log(tmp_path, fs=fs)
    data = batch(producer_id=1, producer_epoch=0, base_sequence=0)
    append(log, data)
    size = log.size_bytes
    fs.left = 40
    later = batch(producer_id=1, producer_epoch=0, base_sequence=3)
    with pytest.raises(KafkaError, match="No space left") as error:
        append(log, later)
    assert code_of(error) is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.log_end_offset, log.size_bytes) == (3, size)
    assert (tmp_path / f"{0:020d}.log").stat().st_size == size
    fs.left = 1 << 40
    assert append(log, later).base_offset == 3  # same sequence: it had not been taken
    check_sound(log)


def test_a_log_that_cannot_undo_goes_offline_but_is_still_read(tmp_path: Path) -> None:
    fs = FullFs()
    log = open_log(tmp_path, fs=fs)
    append(log, batch())
    before = batches_of(log)
    fs.left, fs.truncates = 40, False
    for _ in range(2):
        with pytest.raises(KafkaError) as error:
            append(log, batch())
        assert code_of(error) is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.offline_reason is not None
    fs.left, fs.truncates = 1 << 40, True
    with pytest.raises(KafkaError, match="offline since"):
        append(log, batch())
    assert log.read(0, 1000).read() == before[0]
    log.close(clean=False)
    reopened = open_log(tmp_path)
    assert batches_of(reopened) == before


# --- read ----------------------------------------------------------------------------------------


def test_read_from_every_offset(tmp_path: Path) -> None:
    log = filled(tmp_path)
    batches = batches_of(log)
    for offset in range(log.log_end_offset):
        data = log.read(offset, 1).read()  # one batch at least, whole
        assert data == batches[offset - offset % 3]


def test_read_keeps_to_its_bounds(tmp_path: Path) -> None:
    log = filled(tmp_path)
    end = log.log_end_offset
    assert log.read(end, 1000).size == 0
    for offset in (-1, end + 1):
        with pytest.raises(KafkaError) as error:
            log.read(offset, 1000)
        assert code_of(error) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.read(0, 100, one_at_least=False).size == 100
    # No batch that reaches the upper offset: 4 lies inside the second batch.
    assert log.read(0, 10_000, 4).read() == batches_of(log)[0]
    assert log.read(0, 10_000, 2).size == 0
    assert log.read(5, 10_000, 5).size == 0


def test_a_slice_outlives_its_segment(tmp_path: Path) -> None:
    log = filled(tmp_path)
    held = log.read(0, 1 << 20)
    segments = list(log.segments[:2])
    expected = batches_of(log)
    first = {o: b for o, b in expected.items() if o < segments[0].end_offset}
    rewritten = rewrite(log, segments, lambda row: row.base_offset % 2 == 0, tmp_path / "a")
    log.replace_segments(rewritten.replacement, log.generation)
    log.sweep_deleted(1 << 60)
    assert held.read() == b"".join(first.values())
    assert log.segments[0].base_offset == 0
    assert log.read(0, 1 << 20).read() == b"".join(rewritten.kept.values())


@needs_proc
def test_what_is_removed_gives_its_room_back(tmp_path: Path) -> None:
    """A file that is open keeps its blocks: nobody may hold one for reads that are over."""
    log = filled(tmp_path)
    reading = [log.read(0, 1 << 20), *log.segments[:2]]
    even = rewrite(log, reading[1:], lambda row: row.base_offset % 2 == 0, tmp_path / "a")
    log.replace_segments(even.replacement, log.generation)
    assert all(map(rows_of, reading[1:])), "whoever has them goes on reading"
    assert all(map(rows_of, log.segments))
    log.delete_segments([0])
    log.sweep_deleted(1 << 60)
    assert len(removed_and_open(tmp_path)) == 2
    reading.clear()
    assert removed_and_open(tmp_path) == []


def removed_and_open(below: Path) -> list[str]:
    """Files that are gone from a folder, but not from the disk."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [path for path in found if path.startswith(str(below)) and path.endswith(" (deleted)")]


def test_a_reader_with_the_old_list_is_served_the_old_bytes(tmp_path: Path) -> None:
    """It has opened nothing yet when names change hands; new files have the old ones' names."""
    filled(tmp_path).close()
    no_cache = LogEnv(RealFs(), ManualClock(NOW), OpenFiles(limit=0))
    log = PartitionLog.open(tmp_path, TP, config(), no_cache, clean_shutdown=True)
    old = log.segments
    before = {segment.base_offset: rows_of(segment) for segment in old}
    even = rewrite(log, list(old[:2]), lambda row: row.base_offset % 2 == 0, tmp_path / "a")
    log.replace_segments(even.replacement, log.generation)
    log.delete_segments([0, old[2].base_offset])
    log.sweep_deleted(1 << 60)
    for segment in old:
        assert rows_of(segment) == before[segment.base_offset]


def test_time_lookup_goes_on_where_kafka_stops(tmp_path: Path) -> None:
    """L8, T-18 (E7): the large timestamp lies below the log start."""
    log = open_log(tmp_path)
    append(log, batch(records=1, timestamp=NOW + 1000))
    append(log, batch(records=1, timestamp=NOW + 10))
    log.roll(NOW)
    append(log, batch(records=1, timestamp=NOW + 500))
    found = log.state.offset_for_time(NOW + 400)
    assert found is not None
    assert (found.offset, found.timestamp) == (0, NOW + 1000)
    log.advance_log_start(1)
    found = log.state.offset_for_time(NOW + 400)
    assert found is not None
    assert (found.offset, found.timestamp) == (2, NOW + 500)
    greatest = log.state.greatest_timestamp()  # T-19: never below the log start
    assert greatest is not None
    assert (greatest.offset, greatest.timestamp) == (2, NOW + 500)
    assert log.state.offset_for_time(NOW + 2000) is None


def test_time_lookup_finds_the_last_record_of_each_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for n in range(3):
        append(log, batch(records=2, timestamp=NOW + 10 * n))
        log.roll(NOW)
    for n in range(3):
        found = log.state.offset_for_time(NOW + 10 * n + 1)
        assert found is not None
        assert (found.offset, found.timestamp) == (2 * n + 1, NOW + 10 * n + 1)


def test_time_lookup_passes_an_emptied_batch(tmp_path: Path) -> None:
    """E8: an emptied batch still claims its maximum."""
    log = open_log(tmp_path)
    emptied = batch(records=0, last_offset_delta=2, timestamp=0, append_time=NOW + 5000,
                    timestamp_type=TimestampType.LOG_APPEND_TIME)  # fmt: skip
    log.append_raw(emptied)
    assert log.segments[0].max_timestamp == NOW + 5000
    log.append_raw(batch(base_offset=3, records=1, timestamp=NOW + 4500))
    found = log.state.offset_for_time(NOW + 4000)
    assert found is not None
    assert found.offset == 3
    greatest = log.state.greatest_timestamp()
    assert greatest is not None
    assert greatest.offset == 3


# --- roll, flush, close --------------------------------------------------------------------------


def test_rolling_an_empty_segment_does_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert not log.roll(NOW)
    append(log, batch())
    assert log.roll(NOW)
    assert not log.roll(NOW)
    assert [s.base_offset for s in log.segments] == [0, 3]


def test_the_append_clock(tmp_path: Path) -> None:
    """L16: first and last append by the broker's clock, record times left aside."""
    log = open_log(tmp_path)
    assert log.active_append_first_ms == -1
    append(log, batch(timestamp=NOW - 50_000), now_ms=NOW)
    append(log, batch(timestamp=NOW - 90_000), now_ms=NOW + 700)
    assert log.active_append_first_ms == NOW
    log.roll(NOW + 800)
    assert log.active_append_first_ms == -1
    summary = log.segments[0].summary
    assert (summary.append_first_ms, summary.append_last_ms) == (NOW, NOW + 700)
    assert not summary.append_estimated
    assert summary.tombstones == 0
    assert summary.first_batch_max_timestamp == NOW - 50_000 + 2


def test_the_append_clock_survives_a_kill(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(), now_ms=NOW)  # nothing closed, nothing flushed
    reopened = open_log(tmp_path)
    summary = reopened.segments[0].summary
    assert summary.append_first_ms == NOW
    assert not summary.append_estimated
    (tmp_path / ".lapse" / f"{0:020d}.summary").unlink()
    assert open_log(tmp_path).segments[0].summary.append_estimated


def test_flush_moves_the_recovery_point(tmp_path: Path) -> None:
    log = filled(tmp_path)
    assert log.recovery_point == 0
    assert log.flush() == log.log_end_offset == log.recovery_point
    assert log.flush() == log.log_end_offset


def test_a_closed_log_refuses_and_reopens_as_it_was(tmp_path: Path) -> None:
    log = filled(tmp_path)
    facts, batches, end = log.facts(), batches_of(log), log.log_end_offset
    log.close()
    with pytest.raises(KafkaError, match="closed"):
        append(log, batch())
    assert (tmp_path / f"{end:020d}.snapshot").exists()
    again = open_log(tmp_path, clean_shutdown=True, recovery_point=end)
    assert batches_of(again) == batches
    known = replace(facts, generation=0, segments=())
    assert replace(again.facts(), generation=0, segments=()) == known
    for ours, theirs in zip(again.facts().segments, facts.segments, strict=True):
        assert ours.summary == theirs.summary
    check_sound(again)


# --- facts ---------------------------------------------------------------------------------------


def test_facts_travel_as_json(tmp_path: Path) -> None:
    log = filled(tmp_path)
    append(log, batch(producer_id=5, producer_epoch=2, base_sequence=0))
    log.cleaner_checkpoint = 12
    facts = log.facts()
    assert msgspec.json.decode(msgspec.json.encode(facts), type=LogFacts) == facts
    assert facts.segments[-1].active
    assert not facts.segments[0].active
    assert facts.producers[0].last_data_offset == log.log_end_offset - 1
    assert facts.cleaner_checkpoint == 12
    assert sum(s.size for s in facts.segments) == log.size_bytes


def test_an_open_transaction_holds_the_stable_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_raw(batch())
    log.append_raw(
        batch(base_offset=3, producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
    )
    assert (log.last_stable_offset, log.high_watermark) == (3, 6)
    assert open_log(tmp_path).last_stable_offset == 3
    log.append_marker(8, 0, commit=True, coordinator_epoch=0, leader_epoch=0, now_ms=NOW)
    assert log.last_stable_offset == 7


# --- replace and delete --------------------------------------------------------------------------


def test_replace_swaps_files_summaries_and_generation(tmp_path: Path) -> None:
    log = filled(tmp_path)
    segments = list(log.segments[:3])
    last_mtime = segments[-1].path().stat().st_mtime_ns // 1_000_000
    before, generation = batches_of(log), log.generation
    rest = {o: b for o, b in before.items() if o >= segments[-1].end_offset}
    rewritten = rewrite(log, segments, lambda row: row.base_offset % 2 == 0, tmp_path / "a", 2)
    assert len(rewritten.replacement.new) == 2
    assert log.replace_segments(rewritten.replacement, generation)
    assert log.generation == generation + 1
    assert batches_of(log) == rewritten.kept | rest
    check_sound(log)
    assert log.segments[0].path().stat().st_mtime_ns // 1_000_000 == last_mtime  # F-11
    kept = {n.base_offset for n in rewritten.replacement.new}
    for segment in segments[1:]:
        if segment.base_offset not in kept:  # F-12
            assert not segment.path(".snapshot").exists()
            assert not (tmp_path / ".lapse" / f"{segment.base_offset:020d}.summary").exists()
    assert sorted(tmp_path.glob("*.deleted"))
    assert log.sweep_deleted(NOW) == 0  # file.delete.delay.ms
    assert log.sweep_deleted(NOW + 60_000) == 9
    assert not sorted(tmp_path.glob("*.deleted"))
    with pytest.raises(StaleGeneration, match="generation"):
        log.replace_segments(rewritten.replacement, generation)


def test_replace_refuses_what_does_not_fit(tmp_path: Path) -> None:
    log = filled(tmp_path)
    before = batches_of(log)
    segments = list(log.segments)
    good = rewrite(log, segments[:2], bool, tmp_path / "a").replacement
    active = replace(good, old=(0, segments[-1].base_offset))
    apart = replace(good, old=(0, segments[2].base_offset))
    for wrong in (active, apart):
        with pytest.raises(StaleGeneration):
            log.replace_segments(wrong, log.generation)
    lying = replace(good, summaries=(replace(good.summaries[0], size=1),))
    with pytest.raises(CorruptData, match="the summary says 1 bytes"):
        log.replace_segments(lying, log.generation)
    os.unlink(good.new[0].files[".timeindex"])
    with pytest.raises(StorageError):
        log.replace_segments(good, log.generation)
    assert log.offline_reason is None  # nothing had been committed: the log is as it was
    assert batches_of(log) == before
    assert not sorted(tmp_path.glob("*.cleaned"))
    assert batches_of(open_log(tmp_path)) == before


def test_replace_skips_what_retention_took(tmp_path: Path) -> None:
    """W-3."""
    log = filled(tmp_path)
    segments = list(log.segments[:2])
    generation = log.generation
    rewritten = rewrite(log, segments, bool, tmp_path / "a")
    log.delete_segments([s.base_offset for s in segments])
    assert log.generation == generation
    assert not log.replace_segments(rewritten.replacement, generation)
    assert log.segments[0].base_offset == segments[-1].end_offset


def test_a_replacement_must_make_sense() -> None:
    new = NewSegment(0, {".log": Path("x")})
    with pytest.raises(ValueError, match=r"\.index, \.log, \.timeindex"):
        Replacement((new,), (0,), (summary_of(0),))
    with pytest.raises(ValueError, match="ascending"):
        Replacement((), (5, 0), ())
    with pytest.raises(ValueError, match="summary"):
        Replacement((new,), (0,), ())


def summary_of(base_offset: int) -> Summary:
    return Summary(base_offset, 0, base_offset)


def test_delete_removes_leading_segments(tmp_path: Path) -> None:
    log = filled(tmp_path)
    first, second, third = log.segments[:3]
    with pytest.raises(ValueError, match="not its first"):
        log.delete_segments([second.base_offset])
    assert log.delete_segments([0, second.base_offset]) == first.size + second.size
    assert log.log_start_offset == third.base_offset
    assert not second.path(".snapshot").exists()
    with pytest.raises(KafkaError):
        log.read(0, 100)
    check_sound(log)
    # T-24: all of it, the active segment too.
    end = log.log_end_offset
    log.delete_segments([s.base_offset for s in log.segments])
    assert [(s.base_offset, s.size) for s in log.segments] == [(end, 0)]
    assert (log.log_start_offset, log.log_end_offset) == (end, end)
    assert append(log, batch()).base_offset == end
    reopened = open_log(tmp_path)
    assert (reopened.log_start_offset, reopened.log_end_offset) == (end, end + 3)
    assert not sorted(tmp_path.glob("*.deleted"))  # W-5


def test_the_log_start_stays_below_the_high_watermark(tmp_path: Path) -> None:
    log = filled(tmp_path, 4)
    log.high_watermark = 6
    with pytest.raises(KafkaError) as error:
        log.advance_log_start(7)
    assert code_of(error) is ErrorCode.OFFSET_OUT_OF_RANGE
    log.advance_log_start(5)
    log.advance_log_start(2)  # never back
    assert log.log_start_offset == 5
    with pytest.raises(KafkaError):
        log.read(4, 100)


def test_losing_compact_makes_plans_stale(tmp_path: Path) -> None:
    log = filled(tmp_path, 2)
    generation = log.generation
    log.update_config(config(retention_ms=5))
    assert log.generation == generation
    log.update_config(config(cleanup_policy="delete"))
    assert log.generation == generation + 1


def test_attempts_are_swept_unless_a_commit_is_under_way(tmp_path: Path) -> None:
    log = filled(tmp_path, 2)
    attempt = tmp_path / ".lapse" / "round-1" / "attempt-1"
    attempt.mkdir(parents=True)
    (attempt / "x").write_bytes(b"x")
    intent = tmp_path / ".lapse" / "intent"
    intent.write_bytes(b"{}")
    assert sweep_attempts(RealFs(), tmp_path) == 0
    intent.unlink()
    assert sweep_attempts(RealFs(), tmp_path) == 1
    assert not attempt.parent.exists()
    assert log.segments[0].summary.batches == 2


def test_a_reopened_log_begins_with_a_generation_of_its_own(tmp_path: Path) -> None:
    log = filled(tmp_path, 1)
    later = LogEnv(RealFs(), ManualClock(NOW + 1))
    again = PartitionLog.open(tmp_path, log.partition, log.config, later, clean_shutdown=False)
    assert again.generation > log.generation + 1000
