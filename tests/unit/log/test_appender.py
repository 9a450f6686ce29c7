"""Appending: transactions and who may end them, append times (L12), rolling by record time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.config import TopicConfig
from lapse.base.errors import CorruptData, ErrorCode, StorageError
from lapse.base.fs import AppendFile, RealFs
from lapse.log.markers import parse_marker
from lapse.log.partition_log import PartitionLog
from lapse.log.producers import Producers
from lapse.log.segment import RELATIVE_OFFSET_MAX, TXN_INDEX, base_offset_of
from lapse.log.txn_index import AbortedTxn
from lapse.records.builder import BatchSpec, NewRecord
from lapse.records.layout import Codec, TimestampType
from lapse.records.legacy import Message, MessageSpec, build_messages
from lapse.records.validate import check_produced
from tests.support.broker.failing import FullFs
from tests.support.log.logs import (
    NOW,
    TP,
    append,
    batch,
    batches_of,
    check_sound,
    config,
    data,
    end,
    open_log,
    refusal,
    rows_of,
)

# --- last stable offset and aborts ----------------------------------------------------------------


def test_the_stable_offset_waits_for_the_oldest_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch())
    assert data(log, 8, 0) == 3
    assert data(log, 9, 0) == 5
    assert (log.last_stable_offset, log.high_watermark) == (3, 7)
    assert end(log, 8, commit=True).base_offset == 7
    assert log.last_stable_offset == 5
    end(log, 9, commit=False)
    assert log.last_stable_offset == log.log_end_offset == 9
    assert log.aborted_transactions(0, 9) == [AbortedTxn(9, 5, 8, 9)]
    assert log.facts().last_stable_offset == 9


def test_an_abort_tells_the_stable_offset_of_then(tmp_path: Path) -> None:
    """As Kafka: where the oldest transaction of another producer began, else past the marker."""
    log = open_log(tmp_path)
    data(log, 8, 0)  # 0, 1
    data(log, 9, 0)  # 2, 3
    end(log, 9, commit=False)  # 4
    data(log, 9, 2)  # 5, 6
    end(log, 8, commit=False)  # 7
    end(log, 9, commit=False)  # 8
    everything = [AbortedTxn(9, 2, 4, 0), AbortedTxn(8, 0, 7, 5), AbortedTxn(9, 5, 8, 9)]
    assert log.aborted_transactions(0, 9) == everything
    assert log.aborted_transactions(5, 9) == everything[1:]
    assert log.aborted_transactions(0, 3) == everything[:2]
    assert log.aborted_transactions(8, 9) == everything[2:]


def test_markers_below_the_high_watermark_only(tmp_path: Path) -> None:
    """A transaction stays unstable until its marker is replicated."""
    log = open_log(tmp_path)
    log.high_watermark = 0
    data(log, 8, 0)  # 0, 1
    end(log, 8, commit=True)  # 2
    data(log, 9, 0)  # 3, 4
    end(log, 9, commit=False)  # 5
    data(log, 8, 2)  # 6, 7
    stable = []
    for high_watermark in range(9):
        log.high_watermark = high_watermark
        stable.append(log.last_stable_offset)
    assert stable == [0, 0, 0, 3, 3, 3, 6, 6, 6]
    log.high_watermark = 2
    end(log, 8, commit=True)  # nothing is forgotten whose marker is not below it
    assert log.last_stable_offset == 0
    log.high_watermark = 9
    assert log.last_stable_offset == 9


def test_the_log_start_bounds_the_stable_offset(tmp_path: Path) -> None:
    """D-6: one may delete into an open transaction."""
    log = open_log(tmp_path)
    data(log, 8, 0)
    append(log, batch())
    log.advance_log_start(4)
    assert log.last_stable_offset == 4
    end(log, 8, commit=False)
    assert log.aborted_transactions(4, 6) == [AbortedTxn(8, 0, 5, 6)]


def test_a_marker_without_data_is_written_and_remembered(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    appended = end(log, 8, commit=False, epoch=3, coordinator=6)
    assert (appended.base_offset, appended.last_offset, log.log_end_offset) == (0, 0, 1)
    assert log.aborted_transactions(0, 1) == []
    assert not (tmp_path / f"{0:020d}.txnindex").exists()
    marker = parse_marker(batches_of(log)[0], "t")
    assert marker is not None
    assert (marker.commit, marker.coordinator_epoch) == (False, 6)
    log.roll(NOW)
    [known] = Producers.from_snapshot((tmp_path / f"{1:020d}.snapshot").read_bytes(), "s")
    assert (known.producer_id, known.epoch, known.coordinator_epoch) == (8, 3, 6)
    assert (known.last_timestamp, known.batches) == (NOW, [])


# --- who may --------------------------------------------------------------------------------------


def test_older_epochs_are_fenced(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    data(log, 8, 0, epoch=2)
    fenced = ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(lambda: end(log, 8, commit=True, epoch=1)) is fenced
    end(log, 8, commit=True, epoch=2, coordinator=5)
    older = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert refusal(lambda: end(log, 8, commit=True, epoch=2, coordinator=4)) is older
    end(log, 8, commit=True, epoch=2, coordinator=5)
    assert log.log_end_offset == 4


def test_a_marker_raises_the_epoch_and_sequences_begin_anew(tmp_path: Path) -> None:
    """What a coordinator does to a producer that went away."""
    log = open_log(tmp_path)
    data(log, 8, 0)
    end(log, 8, commit=False, epoch=1)
    assert refusal(lambda: data(log, 8, 2)) is ErrorCode.INVALID_PRODUCER_EPOCH
    out_of_order = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(lambda: data(log, 8, 2, epoch=1)) is out_of_order
    assert data(log, 8, 0, epoch=1) == 3


def test_sequences_go_on_after_a_marker(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    first = data(log, 8, 0)
    made = batch(records=2, producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
    again = append(log, made)
    assert (again.duplicate, again.base_offset) == (True, first)
    end(log, 8, commit=True)
    assert refusal(lambda: data(log, 8, 3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    # Other records may have these numbers now: the producer gets no answer that they are there.
    assert refusal(lambda: append(log, made)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.last_stable_offset == 3  # what is refused opens nothing
    data(log, 8, 2)
    assert log.last_stable_offset == 3


def test_no_data_outside_a_transaction_while_one_is_open(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    data(log, 8, 0)
    refused = refusal(lambda: data(log, 8, 2, transactional=False))
    assert refused is ErrorCode.INVALID_TXN_STATE
    end(log, 8, commit=True)
    data(log, 8, 2, transactional=False)


def test_what_was_verified_before_a_marker_is_refused_after_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)

    def late(verified_at: int | None, sequence: int) -> int:
        made = batch(
            records=1, producer_id=8, producer_epoch=0, base_sequence=sequence, transactional=True
        )
        checked = check_produced(made, log.config, NOW, "t")
        done = log.append(checked, leader_epoch=0, now_ms=NOW, verified_at=verified_at)
        return done.base_offset

    before = log.log_end_offset
    assert late(before, 0) == 0  # the producer is not known
    assert log.is_in_transaction(8, 0)
    assert not log.is_in_transaction(8, 1)
    end(log, 9, commit=True)  # another producer's
    verified_at = log.log_end_offset
    assert late(verified_at, 1) == 2
    end(log, 8, commit=True)
    assert not log.is_in_transaction(8, 0)
    assert refusal(lambda: late(verified_at, 2)) is ErrorCode.INVALID_TXN_STATE
    spec = BatchSpec(producer_id=8, producer_epoch=0, transactional=True)
    offsets = [NewRecord(b"k", b"v", NOW)]

    def own(verified_at: int) -> object:
        return log.append_own(offsets, spec, now_ms=NOW, verified_at=verified_at)

    assert refusal(lambda: own(verified_at)) is ErrorCode.INVALID_TXN_STATE
    assert log.last_stable_offset == log.log_end_offset == 4  # nothing was begun
    assert late(log.log_end_offset, 2) == 4
    end(log, 8, commit=True)
    assert late(None, 3) == 6  # not verified
    check_sound(log)


def test_a_coordinator_is_told_where_its_records_are(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch())
    own = [NewRecord(b"k%d" % n, b"v", NOW) for n in range(4)]
    done = log.append_own(own, BatchSpec(), now_ms=NOW)
    assert (done.base_offset, done.last_offset, log.log_end_offset) == (3, 6, 7)


def test_only_a_batch_of_a_transaction_must_be_of_one_that_goes_on(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    data(log, 8, 0)  # 0, 1
    end(log, 8, commit=True)  # 2
    plain = batch(producer_id=8, producer_epoch=0, base_sequence=2)
    checked = check_produced(plain, log.config, NOW, "t")
    done = log.append(checked, leader_epoch=0, now_ms=NOW, verified_at=0)
    assert done.base_offset == 3


def test_producers_are_told_as_they_are(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert (log.producers(), log.latest_coordinator_epoch()) == ((), -1)
    data(log, 9, 0)
    data(log, 8, 0)
    end(log, 8, commit=True, coordinator=5)
    one, two = log.producers()
    assert (one.producer_id, one.last_sequence, one.coordinator_epoch) == (8, 1, 5)
    assert (two.producer_id, two.transaction_first_offset) == (9, 0)
    assert log.latest_coordinator_epoch() == 5
    data(log, 8, 2)
    assert one.transaction_first_offset == -1  # a copy


# --- append time, record time, old formats --------------------------------------------------------


def stamps(log: PartitionLog) -> list[int]:
    return [row.max_timestamp for segment in log.segments for row in rows_of(segment)]


def append_time_topic(**settings: object) -> TopicConfig:
    return config(message_timestamp_type="LogAppendTime", **settings)


def test_l12_append_times_never_go_back(tmp_path: Path) -> None:
    log = open_log(tmp_path, append_time_topic())
    times = [NOW, NOW + 50, NOW + 20, NOW - 1000, NOW + 50, NOW + 51]
    told = [append(log, batch(), now_ms=now).log_append_time_ms for now in times]
    assert told == [NOW, NOW + 50, NOW + 50, NOW + 50, NOW + 50, NOW + 51]
    assert stamps(log) == told  # with a good checksum: rows_of looks at it
    marker = log.append_marker(8, 0, commit=True, coordinator_epoch=0, leader_epoch=0, now_ms=NOW)
    assert marker.log_append_time_ms == stamps(log)[-1] == NOW + 51
    assert log.facts().append_time_ahead_ms == 0


@pytest.mark.parametrize("clean", [False, True])
def test_l12_also_after_opening_again(tmp_path: Path, clean: bool) -> None:
    log = open_log(tmp_path, append_time_topic())
    append(log, batch(), now_ms=NOW + 70)
    log.roll(NOW)
    append(log, batch(), now_ms=NOW)
    if clean:
        log.close()
    again = open_log(tmp_path, append_time_topic(), clean_shutdown=clean)
    assert append(again, batch(), now_ms=NOW).log_append_time_ms == NOW + 70


@pytest.mark.parametrize("sealed", [False, True])
def test_l12_the_latest_time_of_all_segments_counts(tmp_path: Path, sealed: bool) -> None:
    """The last one may have no batch yet, and the first has the earliest times."""
    log = open_log(tmp_path, append_time_topic())
    append(log, batch(), now_ms=NOW)
    log.roll(NOW)
    append(log, batch(), now_ms=NOW + 70)
    if sealed:
        log.roll(NOW)
    log.close()
    again = open_log(tmp_path, append_time_topic(), clean_shutdown=True)
    assert append(again, batch(), now_ms=NOW + 1).log_append_time_ms == NOW + 70


def test_l12_also_after_another_leaders_batches(tmp_path: Path) -> None:
    log = open_log(tmp_path, append_time_topic())
    stamped = {"timestamp_type": TimestampType.LOG_APPEND_TIME, "append_time": NOW + 30}
    log.append_raw(batch(**stamped))
    log.append_raw(batch(timestamp=NOW + 900, base_offset=3))  # CreateTime is not the log's clock
    assert append(log, batch(), now_ms=NOW).log_append_time_ms == NOW + 30


def test_l12_a_time_too_far_ahead_is_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(tmp_path, append_time_topic(), jump_max_ms=1000)
    append(log, batch(), now_ms=NOW + 1001)
    assert append(log, batch(), now_ms=NOW + 1).log_append_time_ms == NOW + 1001
    assert append(log, batch(), now_ms=NOW).log_append_time_ms == NOW
    assert append(log, batch(), now_ms=NOW - 5).log_append_time_ms == NOW  # on from there
    assert log.facts().append_time_ahead_ms == 1001
    append(log, batch(), now_ms=NOW + 5000)
    append(log, batch(), now_ms=NOW)
    said = [r.getMessage() for r in caplog.records if "LogAppendTime" in r.getMessage()]
    assert len(said) == 1
    assert str(TP) in said[0]
    assert "lapse.clock.jump.max.ms = 1000" in said[0]


def test_kafka_lets_append_times_go_back(tmp_path: Path) -> None:
    """T-5, which L12 departs from: CreateTime topics are left as the producer says."""
    log = open_log(tmp_path)
    for time in (NOW + 50, NOW):
        assert append(log, batch(timestamp=time), now_ms=NOW).log_append_time_ms == -1
    assert stamps(log) == [NOW + 52, NOW + 2]


def test_t20_record_time_rolls_where_it_is_asked_for(tmp_path: Path) -> None:
    """L16: a backfill of old records gives a segment a batch, as KIP-32 has it."""
    by_record = config(lapse_roll_time="record", segment_ms=1000, cleanup_policy="delete")
    for topic, wanted in ((by_record, [0, 6, 9]), (replace(by_record, roll_time="clock"), [0])):
        log = open_log(tmp_path / topic.roll_time, topic)
        for timestamp in (NOW - 9000, NOW - 8000, NOW - 7999, NOW):
            append(log, batch(timestamp=timestamp), now_ms=NOW)
        assert [s.base_offset for s in log.segments] == wanted


def test_t20_without_record_times_the_clock_counts(tmp_path: Path) -> None:
    topic = config(lapse_roll_time="record", segment_ms=1000, cleanup_policy="delete")
    log = open_log(tmp_path, topic)
    for now in (NOW, NOW + 1000, NOW + 1001):
        log.append_raw(batch(timestamp=-10, base_offset=log.log_end_offset), now_ms=now)
    assert [s.base_offset for s in log.segments] == [0, 6]


@pytest.mark.parametrize("version", ["0.9.0", "0.10.2"])
def test_old_formats_are_written_where_the_topic_says_so(tmp_path: Path, version: str) -> None:
    log = open_log(tmp_path, config(message_format_version=version))
    append(log, batch(records=3))
    compressed = append(log, batch(records=4, codec=Codec.GZIP))
    assert (compressed.base_offset, compressed.last_offset) == (3, 6)
    magic = 0 if version == "0.9.0" else 1
    rows = [row for segment in log.segments for row in rows_of(segment)]
    assert [(r.base_offset, r.magic) for r in rows] == [(n, magic) for n in (0, 1, 2, 6)]
    check_sound(log)
    assert open_log(tmp_path, log.config).log_end_offset == 7


def test_what_comes_in_the_topics_old_format_is_numbered_and_timed(tmp_path: Path) -> None:
    """L12, also of a clock that begins in 1970, whose first time is 0."""
    log = open_log(tmp_path, append_time_topic(message_format_version="0.10.2"))
    sent = build_messages([Message(n, NOW, b"k", b"v") for n in range(3)], MessageSpec(1))
    done = [append(log, sent, now_ms=now_ms) for now_ms in (5, 0)]
    assert [(told.base_offset, told.last_offset) for told in done] == [(0, 2), (3, 5)]
    assert [told.log_append_time_ms for told in done] == [5, 5]
    assert stamps(log) == [5] * 6


# --- errors ---------------------------------------------------------------------------------------


def test_a_marker_that_cannot_be_written_leaves_all_as_it_was(tmp_path: Path) -> None:
    class Full(RealFs):
        full = False

        def open_append(self, path: Path):  # type: ignore[no-untyped-def]
            file = super().open_append(path)
            write = file.write

            def failing(*buffers: object) -> None:
                if self.full:
                    raise StorageError(f"writing {path}: no space left")
                write(*buffers)  # type: ignore[arg-type]

            file.write = failing  # type: ignore[method-assign]
            return file

    fs = Full()
    log = open_log(tmp_path, fs=fs)
    data(log, 8, 0)
    fs.full = True
    assert refusal(lambda: end(log, 8, commit=False)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.log_end_offset, log.last_stable_offset) == (2, 0)
    assert log.aborted_transactions(0, 2) == []
    assert log.offline_reason is None
    fs.full = False
    assert end(log, 8, commit=False).base_offset == 2
    assert log.last_stable_offset == 3


def test_a_closed_log_takes_nothing_from_anybody(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.close()
    own = [NewRecord(b"k", b"v", NOW)]
    acts: list[Callable[[], object]] = [
        lambda: append(log, batch()),
        lambda: log.append_own(own, BatchSpec(), now_ms=NOW),
        lambda: log.append_raw(batch()),
        lambda: end(log, 8, commit=True),
        lambda: log.roll(NOW),
    ]
    assert {refusal(act) for act in acts} == {ErrorCode.KAFKA_STORAGE_ERROR}
    assert log.log_end_offset == 0


def test_one_log_goes_offline_alone(tmp_path: Path) -> None:
    """A transaction index that cannot be written is found out at the sync, as any side file."""

    class Failing(RealFs):
        def write_file(self, path: Path, data: object) -> None:
            if path.suffix == TXN_INDEX and path.parent.name == "a":
                raise StorageError(f"writing {path}: input/output error")
            super().write_file(path, data)  # type: ignore[arg-type]

    logs = [open_log(tmp_path / name, fs=Failing()) for name in ("a", "b")]
    for log in logs:
        data(log, 8, 0)
        end(log, 8, commit=False)
    with pytest.raises(StorageError):
        logs[0].flush()
    logs[1].flush()
    assert logs[0].offline_reason is not None
    assert "txnindex" in logs[0].offline_reason
    assert refusal(lambda: end(logs[0], 8, commit=True)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert logs[0].aborted_transactions(0, 3) == [AbortedTxn(8, 0, 2, 3)]  # still read
    assert logs[1].offline_reason is None
    assert end(logs[1], 8, commit=True).base_offset == 3


@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrapper_that_rolls_begins_the_new_segment_where_its_first_message_is(
    tmp_path: Path, magic: int
) -> None:
    """T-22: its row has the last offset, and no record may lie below its segment's base."""
    version = {0: "0.9.0", 1: "0.10.2"}[magic]
    log = open_log(tmp_path, config(message_format_version=version, internal_segment_bytes=890))
    append(log, batch(records=3, size=250))
    append(log, batch(records=5, size=250, codec=Codec.GZIP))
    assert [s.base_offset for s in log.segments] == [0, 3]
    assert log.log_end_offset == 8


def test_a_wrapper_that_repeats_offsets_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(records=3))
    messages = [Message(n, NOW, b"k", b"v") for n in range(5)]
    with pytest.raises(CorruptData, match="offset 0 where 3 or more is expected"):
        log.append_raw(build_messages(messages, MessageSpec(1, Codec.GZIP)))
    log.append_raw(build_messages(messages[3:], MessageSpec(1, Codec.GZIP)))
    assert log.log_end_offset == 5


# --- without waiting ------------------------------------------------------------------------------


def test_an_append_is_quick_where_it_is_one_write_to_an_open_file(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert not log.try_begin(100)  # the first one opens the file
    append(log, batch(), epoch=4)
    assert log.try_begin(100)
    log.end()
    assert not log.try_begin(2000)  # that rolls
    log.roll(NOW)
    assert not log.try_begin(100)


def test_an_append_is_not_quick_where_its_last_offset_may_be_too_far_from_the_first(
    tmp_path: Path,
) -> None:
    """That rolls; of a batch yet unread no more is known than that a record has a byte."""
    log = open_log(tmp_path)
    append(log, batch())
    log.append_raw(batch(base_offset=RELATIVE_OFFSET_MAX - 50, leader_epoch=0))
    assert len(log.segments) == 1
    left = RELATIVE_OFFSET_MAX - log.log_end_offset
    assert log.try_begin(left)
    log.end()
    assert not log.try_begin(left + 1)


def test_nothing_is_left_of_the_segment_that_began_at_the_start(tmp_path: Path) -> None:
    """D-7: the first batch begins below the start, and so does its segment."""
    log = open_log(tmp_path)
    log.restart_at(7)
    log.append_raw(batch(records=5, base_offset=5))
    log.flush()
    bases = {base_offset_of(path.name) for path in tmp_path.iterdir()} - {None}
    assert bases == {5}


def test_a_batch_that_spans_the_start_and_found_no_room_is_appended_again(tmp_path: Path) -> None:
    """Its segment is there already; the second time its indexes were removed as the old one's."""

    class FullSoon(FullFs):
        def open_append(self, path: Path) -> AppendFile:
            self.is_full = self.fills
            return super().open_append(path)

        fills = False

    data = batch(records=10)
    fs = FullSoon()
    log = open_log(tmp_path, fs=fs, high_watermark=0)
    log.restart_at(5)
    fs.fills = True
    assert refusal(lambda: log.append_raw(data)) is ErrorCode.KAFKA_STORAGE_ERROR
    fs.fills = fs.is_full = False
    log.append_raw(data)
    check_sound(log)
    log.close()
    again = open_log(tmp_path, clean_shutdown=True, high_watermark=0)
    check_sound(again)
    assert ([*batches_of(again)], again.log_start_offset) == ([0], 5)
