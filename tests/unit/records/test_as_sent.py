"""Messages of v0 and v1 to a topic of their own format: stored as sent, inflated once."""

from __future__ import annotations

import struct
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import lz4.frame
import numpy as np
import pytest

from lapse.base.config import topic_config
from lapse.base.errors import ErrorCode
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.partition_log import PartitionLog
from lapse.records import compression
from lapse.records.batch import Record, as_array, records_of, scan_batches
from lapse.records.compression import has_linked_blocks
from lapse.records.layout import Codec, TimestampType
from lapse.records.legacy import Message, MessageSpec, build_messages, wrapped, wrapped_payload
from lapse.records.validate import RefusedBatch, check_produced
from lapse.testing.clock import ManualClock
from tests.property.strategies import OLD_CODECS

T = 1_700_000_000_000
NOW = T + 5000
VERSION = {0: "0.9.0", 1: "0.10.2"}


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[LogDirectory]:
    opened = LogDirectory.open(tmp_path, LogEnv(RealFs(), ManualClock(NOW)))
    yield opened
    opened.close()


def log_of(directory: LogDirectory, magic: int, **settings: str) -> PartitionLog:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    config = topic_config({"message.format.version": VERSION[magic], **named})
    return directory.create_log(TopicPartition("t", 0), config)


def sent(
    magic: int, codec: Codec, count: int = 5, kind: TimestampType = TimestampType.CREATE_TIME
) -> bytes:
    """Keys and values k0 v0 and so on, the last a tombstone; times are T to T + 2."""
    values = [None if n == count - 1 else b"v%d" % n * 20 for n in range(count)]
    found = [
        Message(n, T + (n + 1) % 3 if magic else -1, b"k%d" % n, value)
        for n, value in enumerate(values)
    ]
    return build_messages(found, MessageSpec(magic, codec, kind))


def append(log: PartitionLog, data: bytes, now_ms: int = NOW) -> None:
    log.append(check_produced(data, log.config, now_ms, "t-0"), leader_epoch=0, now_ms=now_ms)


def stored(log: PartitionLog) -> list[Record]:
    data = b"".join(path.read_bytes() for path in sorted(log.dir.glob("*.log")))
    rows = scan_batches(data, "t-0")
    assert set(rows["magic"]) == {log.config.message_format_version}
    return [record for row in rows for record in records_of(data, row, "t-0")]


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """How often something is inflated and deflated here."""
    codes = {compression._inflate.__code__: "inflated", compression.deflate.__code__: "deflated"}
    calls: Counter[str] = Counter()

    def see(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in codes:
            calls[codes[frame.f_code]] += 1

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        yield calls
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("append_time", [False, True], ids=["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_inflated_once_and_deflated_where_offsets_are_inside(
    directory: LogDirectory, magic: int, codec: Codec, append_time: bool
) -> None:
    """KIP-32: and create times stay wherever the format has room for both."""
    kind = "LogAppendTime" if append_time else "CreateTime"
    log = log_of(directory, magic, message_timestamp_type=kind,
                 message_timestamp_before_max_ms=str(1 << 60))  # fmt: skip
    data = sent(magic, codec)
    append(log, data)
    with counted() as calls:
        append(log, data)
    if codec is Codec.NONE:
        assert calls == {}
    else:
        assert calls == ({"inflated": 1} if magic else {"inflated": 1, "deflated": 1})
    records = stored(log)
    assert [record.offset for record in records] == list(range(10))
    assert [(r.key, r.value) for r in records[5:]] == [(r.key, r.value) for r in records[:5]]
    assert [r.value for r in records[:5]] == [*(b"v%d" % n * 20 for n in range(4)), None]
    create = [T + (n + 1) % 3 if magic else -1 for n in range(5)] * 2
    shown = [NOW] * 10 if append_time and magic else create
    lost = append_time and magic == 1 and codec is Codec.NONE  # one field, and it is taken
    assert [record.timestamp for record in records] == shown
    assert [record.create_time for record in records] == (shown if lost else create)
    assert log.facts().segments[0].summary.tombstones == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_a_wrapper_of_v1_is_stored_as_it_came(directory: LogDirectory, codec: Codec) -> None:
    log = log_of(directory, 1, message_timestamp_before_max_ms=str(1 << 60))
    data = sent(1, codec)
    append(log, data)
    append(log, data)
    [file] = log.dir.glob("*.log")
    assert file.read_bytes()[8:] == data[8:] + (9).to_bytes(8) + data[8:]


def test_append_times_do_not_go_back(directory: LogDirectory) -> None:
    """L12, as for batches of v2."""
    log = log_of(directory, 1, message_timestamp_type="LogAppendTime")
    for now_ms in (NOW, NOW - 10):
        append(log, sent(1, Codec.GZIP), now_ms)
    assert {record.timestamp for record in stored(log)} == {NOW}


def test_a_time_that_a_wrapper_says_is_that_of_its_messages(directory: LogDirectory) -> None:
    """T-3, T-12: whatever it was sent with."""
    log = log_of(directory, 1, message_timestamp_before_max_ms=str(1 << 60))
    append(log, wrapped(sent(1, Codec.NONE), 4, T - 9, 1, Codec.GZIP, 0))
    [row] = scan_batches(next(iter(log.dir.glob("*.log"))).read_bytes(), "t")
    assert int(row["max_timestamp"]) == T + 2


def odd_wrapper() -> bytes:
    """Offsets inside are all 0, as some clients leave them."""
    message = [build_messages([Message(0, T, b"k", b"%d" % n)], MessageSpec(1)) for n in range(5)]
    return wrapped(b"".join(message), 0, T, 1, Codec.GZIP, 0)


def linked_wrapper() -> bytes:
    """LZ4 blocks that lean on each other, as a library left to itself writes them."""
    several = [Message(n, T, b"k", bytes(30_000)) for n in range(5)]  # more than one block
    plain = build_messages(several, MessageSpec(1))
    inner = lz4.frame.compress(plain, block_linked=True, block_size=4, store_size=False)
    assert has_linked_blocks(np.frombuffer(inner, np.uint8))
    covered = struct.pack(">bbqii", 1, Codec.LZ4, T + 2, -1, len(inner)) + inner
    head = struct.pack(">qi", 4, len(covered) + 4)
    return head + struct.pack(">I", zlib.crc32(covered)) + covered


@pytest.mark.parametrize(
    ("settings", "data", "what"),
    [
        ({"compression_type": "gzip"}, sent(1, Codec.SNAPPY), {Codec.GZIP}),
        ({"compression_type": "uncompressed"}, sent(1, Codec.GZIP), {Codec.NONE}),
        ({}, sent(1, Codec.GZIP) + sent(1, Codec.GZIP), {Codec.GZIP}),
        ({}, sent(1, Codec.NONE) + sent(1, Codec.SNAPPY), {Codec.SNAPPY}),
        ({}, sent(0, Codec.GZIP), {Codec.GZIP}),
        ({}, odd_wrapper(), {Codec.GZIP}),
        ({}, linked_wrapper(), {Codec.LZ4}),
    ],
    ids=["another codec", "none", "two wrappers", "mixed", "another format", "zeros", "linked"],
)
def test_what_cannot_stay_is_converted(
    directory: LogDirectory, settings: dict[str, str], data: bytes, what: set[Codec]
) -> None:
    log = log_of(directory, 1, message_timestamp_before_max_ms=str(1 << 60), **settings)
    append(log, data)
    raw = next(iter(log.dir.glob("*.log"))).read_bytes()
    assert {Codec(int(a) & 7) for a in scan_batches(raw, "t")["attributes"]} == what
    records = stored(log)
    assert [r.offset for r in records] == list(range(len(records)))
    assert len(records) in {5, 10}
    for row in scan_batches(raw, "t"):
        linked = int(row["attributes"]) & 7 == Codec.LZ4
        assert not linked or not has_linked_blocks(wrapped_payload(as_array(raw), row))


KEYLESS = build_messages([Message(0, T, b"k", b""), Message(1, T, None, b"")], MessageSpec(1))
LATE = [Message(0, NOW, b"k", b"1"), Message(1, NOW - 10_000, b"k", b"2")]


@pytest.mark.parametrize(
    ("data", "code", "to_blame"),
    [
        (KEYLESS, ErrorCode.INVALID_RECORD, [1]),
        (build_messages(LATE, MessageSpec(1)), ErrorCode.INVALID_TIMESTAMP, [1]),
        (build_messages(LATE, MessageSpec(1, Codec.GZIP)), ErrorCode.INVALID_TIMESTAMP, [1]),
        (
            build_messages(
                [Message(0, -1, b"k", b"")], MessageSpec(1, Codec.NONE, TimestampType(1), -1)
            ),
            ErrorCode.INVALID_TIMESTAMP, [],
        ),
        (build_messages([Message(0, NOW, b"k", b"x" * 2000)], MessageSpec(1)),
         ErrorCode.MESSAGE_TOO_LARGE, []),
        (sent(1, Codec.GZIP)[:-1] + b"!", ErrorCode.CORRUPT_MESSAGE, []),
    ],
    ids=["keyless", "late", "late inside", "LogAppendTime", "large", "garbled"],
)  # fmt: skip
def test_it_is_judged_as_any_batch(data: bytes, code: ErrorCode, to_blame: list[int]) -> None:
    config = topic_config({
        "message.format.version": "0.10.2", "cleanup.policy": "compact",
        "message.timestamp.before.max.ms": "6000", "max.message.bytes": "1000",
    })  # fmt: skip
    with pytest.raises(RefusedBatch) as refused:
        check_produced(data, config, NOW, "t-0")
    assert refused.value.code is code
    assert [index for index, _ in refused.value.record_errors] == to_blame


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_v2_has_room_for_both_times(directory: LogDirectory, codec: Codec) -> None:
    """Whatever v1 comes in: what is lost in a v1 message of its own is not lost there."""
    config = topic_config({"message.timestamp.type": "LogAppendTime"})
    log = directory.create_log(TopicPartition("t", 0), config)
    append(log, sent(1, codec))
    times = [(record.timestamp, record.create_time) for record in stored(log)]
    assert times == [(NOW, T + (n + 1) % 3) for n in range(5)]
