"""What a producer may send, rule by rule (T-1 … T-8, H-8/L2)."""

from __future__ import annotations

import gzip
import struct
import zlib

import lz4.frame
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.base.config import TopicConfig, topic_config
from lapse.base.errors import ErrorCode
from lapse.kernels.keep import finish_batch
from lapse.kernels.layout import HEADER_SIZE, LENGTH, LOG_OVERHEAD
from lapse.records.batch import Record, headers_of, records_of, row_of, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch, varint
from lapse.records.layout import Codec, TimestampType
from lapse.records.legacy import Message, MessageSpec, build_messages
from lapse.records.timestamps import ANY_TIME, allowed_range
from lapse.records.validate import CheckedBatch, RefusedBatch, check_produced
from tests.reference.crc32c import crc32c

NOW = 1_700_000_000_000
HOUR = 3_600_000
LONG_MAX = (1 << 63) - 1


def topic(**settings: object) -> TopicConfig:
    return topic_config({name.replace("_", "."): str(value) for name, value in settings.items()})


PLAIN = topic()
COMPACTED = topic(cleanup_policy="compact")
APPEND_TIME = topic(message_timestamp_type="LogAppendTime")


def checked(data: bytes | bytearray, config: TopicConfig = PLAIN) -> CheckedBatch:
    return check_produced(data, config, NOW, "t-0")


def refused(data: bytes, config: TopicConfig = PLAIN) -> RefusedBatch:
    with pytest.raises(RefusedBatch) as e:
        checked(data, config)
    assert str(e.value).startswith("t-0: ")
    return e.value


def batch(*records: NewRecord, **spec: object) -> bytes:
    return build_batch(records or [NewRecord(b"k", b"v", NOW)], BatchSpec(**spec))


def at(*times: int) -> bytes:
    return batch(*(NewRecord(b"k", b"v", t) for t in times))


def patched(data: bytes, position: int, pattern: str, value: int) -> bytes:
    """Another header field, with a checksum that fits."""
    out = bytearray(data)
    struct.pack_into(pattern, out, position, value)
    struct.pack_into(">I", out, 17, crc32c(bytes(out[21:])))
    return bytes(out)


def assert_sound(result: CheckedBatch) -> None:
    """The bytes parse, checksum included, and the row tells of them."""
    assert headers_of(scan_batches(result.data, "t-0")) == [result.header]


def records_in(result: CheckedBatch) -> list[Record]:
    return list(records_of(result.data, row_of(result.header), "t-0"))


# --- accepted -------------------------------------------------------------------------------------


def test_a_good_batch_passes_unchanged_and_uncopied() -> None:
    data = bytearray(batch(NewRecord(b"a", b"1", NOW), NewRecord(None, None, NOW - 5)))
    before = bytes(data)
    result = checked(data)
    assert bytes(result.data) == before
    assert (result.tombstones, result.log_append_time_ms) == (1, -1)
    assert_sound(result)
    memoryview(result.data)[0] = 9  # the log patches its base offset in place …
    assert data[0] == 9  # … and in the request's own buffer
    assert not memoryview(checked(before).data).readonly


def test_lz4_blocks_that_java_cannot_read_are_refused() -> None:
    """As Kafka does: a Java consumer would stick there."""
    record = NewRecord(b"k", b"v" * 200_000)  # several blocks
    data = bytearray(batch(record, codec=Codec.LZ4))
    checked(data)
    plain = build_batch([record])[HEADER_SIZE:]
    frame = lz4.frame.compress(plain, block_size=4, block_linked=True, store_size=False)
    linked = bytearray(data[:HEADER_SIZE]) + frame
    struct.pack_into(">i", linked, LENGTH, len(linked) - LOG_OVERHEAD)
    finish_batch(np.frombuffer(linked, np.uint8), 0, len(linked))
    refusal = refused(bytes(linked))
    assert refusal.code is ErrorCode.INVALID_RECORD
    assert "not independent" in str(refusal)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4])
def test_bytes_behind_what_is_compressed_are_accepted_as_in_kafka(codec: Codec) -> None:
    data = bytearray(batch(NewRecord(b"k", b"v", NOW), codec=codec)) + b"..tail.."
    struct.pack_into(">i", data, LENGTH, len(data) - LOG_OVERHEAD)
    finish_batch(np.frombuffer(data, np.uint8), 0, len(data))
    result = checked(bytes(data))
    assert bytes(result.data) == data
    assert [record.key for record in records_in(result)] == [b"k"]


def test_a_gzip_of_several_members_is_accepted_as_in_kafka() -> None:
    plain = batch(NewRecord(b"a", b"1", NOW), NewRecord(b"b", b"2", NOW))
    data = bytearray(plain[:HEADER_SIZE])
    data[22] |= Codec.GZIP
    data += gzip.compress(plain[HEADER_SIZE:70]) + gzip.compress(plain[70:])
    struct.pack_into(">i", data, LENGTH, len(data) - LOG_OVERHEAD)
    finish_batch(np.frombuffer(data, np.uint8), 0, len(data))
    result = checked(bytes(data))
    assert [record.key for record in records_in(result)] == [b"a", b"b"]


def test_tombstones_are_counted() -> None:
    data = batch(*(NewRecord(b"k", v, NOW) for v in (None, b"", None, b"x")))
    assert checked(data, COMPACTED).tombstones == 2  # an empty value is none


# --- times ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("time", "fine"),
    [
        (NOW - 500, True),
        (NOW - 501, False),
        (NOW + HOUR, True),
        (NOW + HOUR + 1, False),
        (-1, True),  # none at all is always accepted
        (0, False),
        (-2, False),
    ],
)
def test_t1_range(time: int, fine: bool) -> None:
    config = topic(message_timestamp_before_max_ms=500)
    data = at(NOW, time, NOW)
    if fine:
        assert checked(data, config).header.max_timestamp == max(NOW, time)
        return
    error = refused(data, config)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in error.record_errors] == [1]
    assert "message.timestamp" in str(error)


def test_t1_defaults_are_an_hour_ahead_and_for_ever_back() -> None:
    assert checked(at(0, NOW + HOUR))
    assert refused(at(NOW + HOUR + 1)).code is ErrorCode.INVALID_TIMESTAMP
    assert allowed_range(PLAIN, NOW).greatest == NOW + HOUR
    wide = topic(message_timestamp_after_max_ms=LONG_MAX)
    assert allowed_range(wide, NOW).greatest == LONG_MAX  # no overflow
    assert checked(at(LONG_MAX - 9), wide).header.max_timestamp == LONG_MAX - 9


def test_t1_invalid_timestamp_wins_and_every_offence_is_told() -> None:
    data = batch(
        NewRecord(None, b"v", NOW),
        NewRecord(b"k", b"v", NOW),
        NewRecord(b"k", b"v", NOW + 2 * HOUR),
        NewRecord(None, b"v", NOW + 2 * HOUR),
    )
    error = refused(data, COMPACTED)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert "record 2 of the batch" in str(error)
    assert [index for index, _ in error.record_errors] == [0, 2, 3]
    assert "key" in error.record_errors[0][1]
    assert "timestamp" in error.record_errors[1][1]
    assert "key" in error.record_errors[2][1]


def test_t2_producers_may_not_claim_append_time() -> None:
    claims = {"timestamp_type": TimestampType.LOG_APPEND_TIME, "append_time": NOW}
    assert refused(batch(**claims), APPEND_TIME).code is ErrorCode.INVALID_TIMESTAMP
    claims["append_time"] = -1
    assert refused(batch(**claims), PLAIN).code is ErrorCode.INVALID_TIMESTAMP


def test_t2_t3_on_a_create_time_topic_the_bit_is_taken_away() -> None:
    data = batch(
        NewRecord(b"k", b"v", NOW - 7), NewRecord(b"k", b"v", NOW - 9),
        timestamp_type=TimestampType.LOG_APPEND_TIME, append_time=NOW,
    )  # fmt: skip
    result = checked(data)
    assert result.header.attributes == 0
    assert result.header.max_timestamp == NOW - 7
    assert_sound(result)


@pytest.mark.parametrize("claimed", [0, NOW + 5, -1, LONG_MAX])
def test_t3_a_wrong_max_timestamp_is_put_right(claimed: int) -> None:
    data = patched(at(NOW - 5, NOW - 2, NOW - 3), 35, ">q", claimed)
    result = checked(data)
    assert result.header.max_timestamp == NOW - 2
    assert bytes(result.data) == at(NOW - 5, NOW - 2, NOW - 3)
    assert_sound(result)


@pytest.mark.parametrize("codec", Codec)
def test_t4_append_time_is_written_and_the_producers_time_survives(codec: Codec) -> None:
    """ADR-5: only the header changes, the deltas still hold the CreateTime."""
    sent = bytearray(batch(NewRecord(b"k", b"v", 70), NewRecord(b"k", b"w", 90), codec=codec))
    payload = bytes(sent[61:])
    result = checked(sent, APPEND_TIME)
    assert result.log_append_time_ms == NOW
    assert result.header.max_timestamp == NOW
    assert result.header.attributes == codec | 0x08
    assert bytes(result.data[61:]) == payload
    assert_sound(result)
    records = records_in(result)
    assert [(r.timestamp, r.create_time) for r in records] == [(NOW, 70), (NOW, 90)]


def test_t6_limits_are_not_for_append_time_topics() -> None:
    narrow = topic(
        message_timestamp_type="LogAppendTime",
        message_timestamp_before_max_ms=1, message_timestamp_after_max_ms=1,
    )  # fmt: skip
    assert allowed_range(narrow, NOW) == ANY_TIME
    assert checked(at(3, NOW + 9 * HOUR), narrow).log_append_time_ms == NOW


# --- keys -----------------------------------------------------------------------------------------


def test_t7_one_keyless_record_refuses_the_whole_batch() -> None:
    data = batch(*(NewRecord(b"k" if n != 3 else None, b"v", NOW) for n in range(6)))
    error = refused(data, COMPACTED)
    assert error.code is ErrorCode.INVALID_RECORD
    assert [index for index, _ in error.record_errors] == [3]
    assert "cleanup.policy" in str(error)
    assert checked(data, topic(cleanup_policy="delete"))
    assert refused(data, topic(cleanup_policy="compact,delete")).code is ErrorCode.INVALID_RECORD
    assert checked(batch(NewRecord(b"", b"v", NOW)), COMPACTED)  # a key of no bytes is a key


# --- codecs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", Codec)
@pytest.mark.parametrize("wanted", ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("append_time", [False, True])
def test_t8_topic_codec(sent: Codec, wanted: str, append_time: bool) -> None:
    records = [NewRecord(b"k%d" % n, b"value" * n, NOW - n, (("h", None),)) for n in range(9)]
    data = build_batch(records, BatchSpec(codec=sent, producer_id=7, producer_epoch=1,
                                          base_sequence=3, leader_epoch=4))  # fmt: skip
    config = topic(
        compression_type=wanted,
        message_timestamp_type="LogAppendTime" if append_time else "CreateTime",
    )
    result = checked(data, config)
    names = {"producer": sent, "uncompressed": Codec.NONE}
    expected = names[wanted] if wanted in names else Codec[wanted.upper()]
    assert int(result.header.attributes) == expected | 0x08 * append_time
    assert_sound(result)
    for field, value in (("producer_id", 7), ("base_sequence", 3), ("leader_epoch", 4)):
        assert getattr(result.header, field) == value
    got = records_in(result)
    assert [(r.key, r.value, r.create_time, r.headers) for r in got] == [
        (r.key, r.value, r.timestamp, r.headers) for r in records
    ]
    if expected == sent:
        assert bytes(result.data[61:]) == data[61:]  # not deflated anew


# --- refused by the header ------------------------------------------------------------------------

GOOD = batch()
IDEMPOTENT = batch(producer_id=5, producer_epoch=0, base_sequence=0)


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (b"", ErrorCode.INVALID_RECORD, "exactly one batch"),
        (GOOD + GOOD, ErrorCode.INVALID_RECORD, "exactly one batch"),
        (GOOD[:-1], ErrorCode.CORRUPT_MESSAGE, "cut off"),
        (b"abc", ErrorCode.CORRUPT_MESSAGE, "cut off"),
        (GOOD + b"abc", ErrorCode.INVALID_RECORD, "exactly one batch"),
        (GOOD[:-1] + b"\x01", ErrorCode.CORRUPT_MESSAGE, "checksum"),
        (bytes(200), ErrorCode.CORRUPT_MESSAGE, "length"),
        (patched(GOOD, 16, ">b", 1), ErrorCode.CORRUPT_MESSAGE, "checksum"),
        (patched(GOOD, 16, ">b", 3), ErrorCode.INVALID_RECORD, "unknown message format"),
        (batch(control=True), ErrorCode.INVALID_RECORD, "control"),
        (batch(horizon_ms=5), ErrorCode.INVALID_RECORD, "bit 6"),  # H-8, L2
        (batch(attributes_more=0x80), ErrorCode.INVALID_RECORD, "0x80"),
        (batch(attributes_more=0x8000), ErrorCode.INVALID_RECORD, "0x8000"),
        (patched(GOOD, 21, ">h", 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "codec 5"),
        (batch(transactional=True), ErrorCode.INVALID_RECORD, "producer id"),
        (batch(transactional=True, producer_id=-5, producer_epoch=0, base_sequence=0),
         ErrorCode.INVALID_RECORD, "producer id"),
        (patched(GOOD, 57, ">i", 0), ErrorCode.INVALID_RECORD, "count"),
        (patched(GOOD, 57, ">i", 2), ErrorCode.INVALID_RECORD, "count"),
        (patched(GOOD, 57, ">i", -1), ErrorCode.INVALID_RECORD, "negative"),
        (patched(GOOD, 23, ">i", 1), ErrorCode.INVALID_RECORD, "count"),
        (patched(patched(GOOD, 23, ">i", (1 << 31) - 2), 57, ">i", (1 << 31) - 1),
         ErrorCode.INVALID_RECORD, "records in"),
        (patched(IDEMPOTENT, 53, ">i", -1), ErrorCode.INVALID_RECORD, "sequence"),
        (patched(IDEMPOTENT, 51, ">h", -1), ErrorCode.INVALID_RECORD, "epoch"),
        (patched(batch(codec=Codec.NONE), 21, ">h", Codec.GZIP), ErrorCode.CORRUPT_MESSAGE, "gzip"),
        (patched(batch(codec=Codec.NONE), 21, ">h", Codec.ZSTD), ErrorCode.CORRUPT_MESSAGE, "zstd"),
        (batch(NewRecord(b"k", b"v", NOW, (), 1), last_offset_delta=0),
         ErrorCode.INVALID_RECORD, "offset deltas"),
    ],
)  # fmt: skip
def test_refused(data: bytes, code: ErrorCode, words: str) -> None:
    error = refused(data)
    assert error.code is code
    assert words in str(error)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_old_formats_become_a_v2_batch(magic: int, codec: Codec) -> None:
    """KIP-32's migration: what an old producer sends, numbered from wherever it likes (T-8)."""
    sent = [Message(7 + 2 * n, NOW - n, b"k%d" % n, None if n == 2 else b"v" * n) for n in range(5)]
    data = build_messages(sent, MessageSpec(magic, codec))
    result = checked(data, COMPACTED)
    assert_sound(result)
    assert result.header.magic == 2
    assert result.header.attributes == codec
    assert result.tombstones == 1
    assert [(r.offset - result.header.base_offset, r.key, r.value) for r in records_in(result)] == [
        (n, m.key, m.value) for n, m in enumerate(sent)
    ]
    assert [r.timestamp for r in records_in(result)] == [m.timestamp if magic else -1 for m in sent]


def test_old_formats_obey_the_same_rules() -> None:
    keyless = build_messages([Message(0, NOW, None, b"v")], MessageSpec(0))
    assert refused(keyless, COMPACTED).record_errors[0][0] == 0  # T-7
    late = build_messages([Message(0, NOW + 2 * HOUR, b"k", b"v")], MessageSpec(1, Codec.GZIP))
    assert refused(late).code is ErrorCode.INVALID_TIMESTAMP  # T-1
    stamped = MessageSpec(1, Codec.NONE, TimestampType.LOG_APPEND_TIME, NOW)
    error = refused(build_messages([Message(0, NOW, b"k", b"v")], stamped), APPEND_TIME)
    assert error.code is ErrorCode.INVALID_TIMESTAMP  # T-2
    two = keyless + build_messages([Message(1, -1, b"k", b"w")], MessageSpec(0))
    assert [r.value for r in records_in(checked(two))] == [b"v", b"w"]
    assert refused(two + GOOD).code is ErrorCode.INVALID_RECORD
    for broken in (keyless[:-1], keyless[:-1] + b"w"):
        assert refused(broken).code is ErrorCode.CORRUPT_MESSAGE
    torn_inside = bytearray(build_messages([Message(0, 1, b"k", b"v")], MessageSpec(1, Codec.GZIP)))
    torn_inside[-4] ^= 1  # gzip's own length
    torn_inside[12:16] = zlib.crc32(torn_inside[16:]).to_bytes(4, "big")
    assert refused(bytes(torn_inside)).code is ErrorCode.CORRUPT_MESSAGE


def test_a_topic_of_an_old_format_refuses_what_it_would_lose() -> None:
    old = topic(message_format_version="0.10.2")
    assert checked(GOOD, old).write_magic == 1
    assert checked(GOOD).write_magic == 2
    for data, words in (
        (IDEMPOTENT, "idempotent"),
        (batch(codec=Codec.ZSTD), "zstd"),
        (batch(NewRecord(b"k", b"v", NOW, (("h", b"1"),))), "record headers"),
    ):
        error = refused(data, old)
        assert error.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
        assert words in str(error)
        assert "message.format.version" in str(error)


def test_a_batch_that_recompression_makes_too_large_is_refused() -> None:
    sent = batch(NewRecord(b"k", b"v" * 5000, NOW), codec=Codec.GZIP)
    config = topic(compression_type="uncompressed", max_message_bytes=1000)
    assert refused(sent, config).code is ErrorCode.MESSAGE_TOO_LARGE
    assert checked(sent, topic(max_message_bytes=1000))


# --- KIP-87 (ADR-4) -------------------------------------------------------------------------

VALUED = [
    NewRecord(b"a", b"live", NOW),
    NewRecord(b"b", b"gone, and why", NOW, (("h", b"1"),), tombstone=True),
    NewRecord(b"c", None, NOW, tombstone=True),
]
ENABLED = topic_config({"cleanup.policy": "compact", "lapse.tombstone.values.enable": "true"})


@pytest.mark.parametrize("codec", Codec)
def test_a_valued_tombstone_is_nulled_where_nobody_knows_the_flag(codec: Codec) -> None:
    sent = batch(*VALUED, codec=codec, producer_id=3, producer_epoch=0, base_sequence=5)
    result = checked(sent, COMPACTED)
    assert_sound(result)
    assert result.header.attributes == codec
    assert result.header.base_sequence == 5
    got = records_in(result)
    assert [(r.key, r.value, r.flagged) for r in got] == [
        (b"a", b"live", False), (b"b", None, False), (b"c", None, False),
    ]  # fmt: skip
    assert got[1].headers == (("h", b"1"),)
    assert result.tombstones == 2


def test_a_valued_tombstone_stays_where_the_topic_knows_it_or_nothing_compacts() -> None:
    for config in (ENABLED, PLAIN):
        result = checked(batch(*VALUED), config)
        assert [r.flagged for r in records_in(result)] == [False, True, True]
        assert records_in(result)[1].value == b"gone, and why"


@pytest.mark.parametrize("config", [ENABLED, COMPACTED])
def test_bits_that_do_not_agree_are_refused(config: TopicConfig) -> None:
    error = refused(batch(attributes_more=0x4000), config)
    assert (error.code, "KIP-87" in str(error)) == (ErrorCode.INVALID_RECORD, True)
    lonely = bytearray(batch(*VALUED))
    lonely[21] = 0  # the batch no longer says so
    if config is ENABLED:
        assert refused(patched(bytes(lonely), 12, ">i", 0), config).code is error.code
    else:  # nobody reads a record's bit then
        assert checked(patched(bytes(lonely), 12, ">i", 0), config)


@pytest.mark.parametrize("config", [ENABLED, COMPACTED])
def test_a_null_value_that_is_to_be_no_tombstone_is_refused(config: TopicConfig) -> None:
    """Who knows the flag and leaves it out means that; a batch without flags says nothing."""
    records = [*VALUED, NewRecord(b"d", None, NOW), NewRecord(b"e", None, NOW)]
    error = refused(batch(*records), config)
    assert (error.code, [n for n, _ in error.record_errors]) == (ErrorCode.INVALID_RECORD, [3, 4])
    assert "record 3 of the batch: a null value without the flag" in str(error)
    assert checked(batch(*records[3:]), config).tombstones == 2


def test_idempotent_batches_pass() -> None:
    assert checked(IDEMPOTENT).header.producer_id == 5
    assert checked(batch(transactional=True, producer_id=5, producer_epoch=0, base_sequence=0))


def test_too_large_is_told_with_the_setting() -> None:
    config = topic(max_message_bytes=len(GOOD) - 1)
    error = refused(GOOD, config)
    assert error.code is ErrorCode.MESSAGE_TOO_LARGE
    assert "max.message.bytes" in str(error)
    assert checked(GOOD, topic(max_message_bytes=len(GOOD)))


def test_records_that_do_not_parse_fault_the_rest() -> None:
    data = batch(*(NewRecord(b"k", b"v", NOW) for _ in range(4)))
    size = (len(data) - 61) // 4
    broken = bytearray(data)
    broken[61 + 2 * size] = 0xFF
    error = refused(patched(bytes(broken), 12, ">i", 0))
    assert error.code is ErrorCode.INVALID_RECORD
    assert [index for index, _ in error.record_errors] == [2, 3]
    left_over = patched(data[:-size] + data[-size:] + b"\0", 8, ">i", len(data) - 11)
    assert [index for index, _ in refused(left_over).record_errors] == [3]


@pytest.mark.parametrize(
    "headers",
    [
        b"\x02",  # one, none there
        b"\x00\x00",  # none, but a byte is left over
        b"\x01",  # minus one
        b"\x02\x01\x01",  # a name that is null
        b"\x02\x04a\x01",  # a name longer than what is left
        b"\x02\x02a\x04b",  # a value longer than what is left
        b"\x02\x02a\x03",  # a value of length -2
        b"\xfe\xff\xff\xff\x0f\x00",  # two thousand million
    ],
)
def test_headers_that_do_not_parse_are_not_let_in(headers: bytes) -> None:
    """No consumer would get past them."""
    good = batch(NewRecord(b"k", b"v", NOW))
    body = good[62:-1] + headers
    data = good[:61] + varint(len(body)) + body
    error = refused(patched(data, 8, ">i", len(data) - 12))
    assert error.code is ErrorCode.INVALID_RECORD
    assert [index for index, _ in error.record_errors] == [0]


@given(st.data())
def test_whatever_is_sent_is_accepted_or_refused(choose: st.DataObject) -> None:
    """Nothing but RefusedBatch ever comes out, and nothing unsound goes in."""
    codec = choose.draw(st.sampled_from(Codec))
    data = bytearray(batch(*(NewRecord(b"k", b"v" * n, NOW) for n in range(3)), codec=codec))
    for _ in range(choose.draw(st.integers(0, 3))):
        data[choose.draw(st.integers(16, len(data) - 1))] = choose.draw(st.integers(0, 255))
    if choose.draw(st.booleans()):  # or else the checksum alone refuses it
        struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    try:
        result = checked(data, COMPACTED)
    except RefusedBatch:
        return
    assert_sound(result)
    assert len(records_in(result)) == result.header.count
