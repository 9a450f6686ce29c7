"""Formats v0 and v1, which Kafka wrote before 0.10 and before 0.11 (T-10 to T-12).

A log of these formats is a run of *messages*. A compressed message is a *wrapper*: its value holds
the messages. On disk all have absolute offsets but one: inside a v1 wrapper they count from its
first message, and the wrapper's own offset is that of its last one.

`decode_message` gives the same rows as a v2 batch gives, so that callers need not know;
`build_messages` writes them, for topics whose `message.format.version` is that old.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData
from lapse.kernels import legacy as kernel
from lapse.kernels.layout import (
    CODEC_MASK,
    LEGACY_CRC,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    RECORD,
    V0_KEY,
    V1_KEY,
)
from lapse.records.compression import BadCompression, Spans, deflate, inflate, inflate_and_tell
from lapse.records.layout import NO_TIMESTAMP, Codec, TimestampType

_REFUSALS = {
    kernel.BAD_MESSAGE: "a message inside does not parse",
    kernel.BAD_MESSAGE_CRC: "the checksum of a message inside does not match",
    kernel.NESTED: "a wrapper inside a wrapper",
}


_NOWHERE = np.empty(0, np.uint8)
_SPAN_MAX = (1 << 31) - 1  # no batch of v2 could hold more


def decode_message(
    data: NDArray[np.uint8], row: np.void, where: str
) -> tuple[NDArray[np.uint8], NDArray[np.void]]:
    """(plain bytes, rows of RECORD that point into them) of one v0 or v1 message or wrapper.

    Deltas count from the row's own offset and timestamp, so inside a wrapper they are mostly
    negative. Raises CorruptData.
    """
    plain, rows = decode_sent(data, row, where)
    rows["offset_delta"] -= _offset_inside(row, rows, where)
    rows["timestamp_delta"] -= row["base_timestamp"]
    return plain, rows


def decode_sent(
    data: NDArray[np.uint8], row: np.void, where: str
) -> tuple[NDArray[np.uint8], NDArray[np.void]]:
    """(plain bytes, rows of RECORD that point into them) of one message or wrapper from a producer.

    Offsets and timestamps are what the messages say. Nobody may rely on the offsets: inside a
    wrapper the Java clients of 0.9 write 0 for each, and brokers always numbered anew (T-8).
    Raises CorruptData.
    """
    start, size, magic = int(row["position"]), int(row["size"]), int(row["magic"])
    codec = int(row["attributes"]) & CODEC_MASK
    if codec == Codec.NONE:
        plain, begin, end = data, start, start + size
    else:
        plain = _inflated(data, start, size, magic, codec, where)
        begin, end = 0, len(plain)
    count = kernel.count_messages(plain, begin, end)
    if count < 1:
        raise CorruptData(where, start, "a wrapper without a whole number of messages")
    rows = np.empty(count, RECORD)
    # A message on disk was checked with its batch row; those inside a wrapper have their own CRC.
    refused = kernel.decode_messages(plain, begin, end, magic, codec != Codec.NONE, rows)
    if refused:
        raise CorruptData(where, start, _REFUSALS[refused])
    return plain, rows


def decode_plain(
    data: NDArray[np.uint8], start: int, end: int, magic: int, where: str
) -> NDArray[np.void]:
    """Rows of RECORD of the uncompressed messages of a log in data[start:end], CRCs not checked.

    Offsets and timestamps are what the messages say. Raises CorruptData.
    """
    count = kernel.count_messages(data, start, end)
    if count < 0:
        raise CorruptData(where, start, _REFUSALS[kernel.BAD_MESSAGE])
    rows = np.empty(count, RECORD)
    refused = kernel.decode_messages(data, start, end, magic, False, rows)
    if refused:
        raise CorruptData(where, start, _REFUSALS[refused])
    return rows


def _offset_inside(row: np.void, rows: NDArray[np.void], where: str) -> int:
    """What the messages' offset fields say for the offset of the wrapper itself (T-11)."""
    own, last = int(row["base_offset"]), int(rows["offset_delta"][-1])
    stored = rows["offset_delta"]
    if (np.diff(stored) <= 0).any() or stored[0] < 0:
        raise CorruptData(where, int(row["position"]), "offsets inside a wrapper do not ascend")
    if last - int(stored[0]) > _SPAN_MAX:
        reason = "offsets inside a wrapper lie further apart than those of a segment"
        raise CorruptData(where, int(row["position"]), reason)
    relative = int(row["magic"]) == 1 and int(row["attributes"]) & CODEC_MASK
    if not relative or own == 0:  # early librdkafka left wrappers at 0: they begin there
        return own
    if own < last:
        raise CorruptData(
            where, int(row["position"]), f"a wrapper at offset {own} of {last + 1} messages"
        )
    return last


def _inflated(
    data: NDArray[np.uint8], start: int, size: int, magic: int, codec: int, where: str
) -> NDArray[np.uint8]:
    key_at, end = start + (V1_KEY if magic else V0_KEY), start + size
    value_at = _wrapped_at(data, key_at)
    if _int32(data, key_at) < -1 or value_at > end or _int32(data, value_at - 4) != end - value_at:
        raise CorruptData(where, start, "a wrapper whose value does not fill it")
    payload = _wrapped(data[value_at:end], magic, codec)
    if codec > Codec.LZ4:
        raise CorruptData(where, start, f"codec {codec} in message format v{magic}")
    try:
        return inflate(codec, payload)
    except BadCompression as e:
        raise CorruptData(where, start, str(e)) from e


def _wrapped_at(data: NDArray[np.uint8], key_at: int) -> int:
    return key_at + 8 + max(_int32(data, key_at), 0)


def _wrapped(payload: NDArray[np.uint8], magic: int, codec: int) -> NDArray[np.uint8]:
    is_broken = codec == Codec.LZ4 and magic == 0
    return _with_header_checksum(payload, broken=False) if is_broken else payload


def unread_of_wrapper(data: NDArray[np.uint8], row: np.void) -> Spans:
    """The bytes of `data` that could be anything, of a wrapper that `decode_message` has read.

    They are its own key, which is not used, and what `compression.inflate_and_tell` reports.
    """
    start, magic = int(row["position"]), int(row["magic"])
    codec = int(row["attributes"]) & CODEC_MASK
    key_at, end = start + (V1_KEY if magic else V0_KEY), start + int(row["size"])
    value_at = _wrapped_at(data, key_at)
    own_key = ((key_at + 4, value_at - 4),) if value_at > key_at + 8 else ()
    payload = _wrapped(data[value_at:end], magic, codec)
    _, unread = inflate_and_tell(codec, payload, _NOWHERE)
    return own_key + tuple((value_at + a, value_at + b) for a, b in unread)


def wrapped_payload(data: NDArray[np.uint8], row: np.void) -> NDArray[np.uint8]:
    """What a wrapper that `decode_sent` has read holds, deflated."""
    start, magic = int(row["position"]), int(row["magic"])
    value_at = _wrapped_at(data, start + (V1_KEY if magic else V0_KEY))
    return _wrapped(data[value_at : start + int(row["size"])], magic, int(row["attributes"]))


def _int32(data: NDArray[np.uint8], at: int) -> int:
    return int.from_bytes(data[at : at + 4].tobytes(), "big", signed=True)


# --- writing --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Message:
    """A message to be written; formats before v2 have no headers."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class MessageSpec:
    """How messages are written: `append_time` counts only where the type is LogAppendTime."""

    magic: int
    codec: Codec = Codec.NONE
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    append_time: int = NO_TIMESTAMP


def build_messages(messages: Sequence[Message], spec: MessageSpec) -> bytes:
    """Messages with ascending offsets as a v0 or v1 message set; one wrapper if compressed."""
    append_time = spec.timestamp_type is TimestampType.LOG_APPEND_TIME and spec.magic == 1
    if spec.codec is Codec.NONE:
        type_bit = LOG_APPEND_TIME * append_time
        return b"".join(
            _message(m.offset, spec.append_time if append_time else m.timestamp, m.key, m.value,
                     spec.magic, type_bit)
            for m in messages
        )  # fmt: skip
    if spec.codec > Codec.LZ4:
        raise ValueError(f"{spec.codec.name.lower()} needs message format v2")
    base_offset = messages[0].offset if spec.magic == 1 else 0
    inner = b"".join(
        _message(m.offset - base_offset, m.timestamp, m.key, m.value, spec.magic, 0)
        for m in messages
    )
    greatest = max(m.timestamp for m in messages)
    timestamp = spec.append_time if append_time else greatest
    type_bit = LOG_APPEND_TIME * append_time
    return wrapped(inner, messages[-1].offset, timestamp, spec.magic, spec.codec, type_bit)


def wrapped(
    inner: bytes | bytearray, offset: int, timestamp: int, magic: int, codec: Codec, type_bit: int
) -> bytes:
    """The wrapper of a run of messages; its offset is that of the last one."""
    value = np.frombuffer(deflate(codec, np.frombuffer(inner, np.uint8)), np.uint8)
    if codec is Codec.LZ4 and magic == 0:
        value = _with_header_checksum(value, broken=True)  # what its readers expect
    return _message(offset, timestamp, None, value.tobytes(), magic, codec | type_bit)


def _message(
    offset: int, timestamp: int, key: bytes | None, value: bytes | None, magic: int, attributes: int
) -> bytes:
    covered = struct.pack(">bb", magic, attributes)
    if magic == 1:
        covered += struct.pack(">q", timestamp)
    covered += _field(key) + _field(value)
    head = struct.pack(">qi", offset, len(covered) + MAGIC - LOG_OVERHEAD)
    assert len(head) == LEGACY_CRC
    return head + struct.pack(">I", zlib.crc32(covered)) + covered


def _field(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


# --- lz4 in v0 ------------------------------------------------------------------------------------

# Kafka's first lz4 writer took the frame's magic number into the checksum of the frame's header.
# Readers of v0 ignore the checksum, and its other readers expect the wrong one.
_FRAME_MAGIC = b"\x04\x22\x4d\x18"
_CONTENT_SIZE, _DICTIONARY = 0x08, 0x01  # flags: eight, or four more header bytes
_MASK = 0xFFFFFFFF


def _with_header_checksum(frame: NDArray[np.uint8], *, broken: bool) -> NDArray[np.uint8]:
    """An lz4 frame with the right checksum of its header, or with the one that v0 has."""
    if len(frame) < 7 or frame[:4].tobytes() != _FRAME_MAGIC:
        return frame  # no frame: inflating says so
    flags = int(frame[4])
    end = 6 + 8 * bool(flags & _CONTENT_SIZE) + 4 * bool(flags & _DICTIONARY)
    if len(frame) <= end:
        return frame
    mended = frame.copy()
    mended[end] = _xxh32(frame[0 if broken else 4 : end].tobytes()) >> 8 & 0xFF
    return mended


def _xxh32(data: bytes) -> int:
    """XXH32 with seed 0; of the long form only what a header of 18 bytes needs."""
    lanes = [0x9E3779B1 + 0x85EBCA77, 0x85EBCA77, 0, -0x9E3779B1]
    at, total = 0, 0x165667B1
    if len(data) >= 16:
        words = struct.unpack_from("<4I", data)
        mixed = [
            _rotated(lane + word * 0x85EBCA77, 13) * 0x9E3779B1
            for lane, word in zip(lanes, words, strict=True)
        ]
        at, total = 16, sum(_rotated(m, r) for m, r in zip(mixed, (1, 7, 12, 18), strict=True))
    total += len(data)
    while at + 4 <= len(data):
        (word,) = struct.unpack_from("<I", data, at)
        total = _rotated(total + word * 0xC2B2AE3D, 17) * 0x27D4EB2F
        at += 4
    for byte in data[at:]:
        total = _rotated(total + byte * 0x165667B1, 11) * 0x9E3779B1
    total &= _MASK
    for shift, prime in ((15, 0x85EBCA77), (13, 0xC2B2AE3D)):
        total = (total ^ total >> shift) * prime & _MASK
    return total ^ total >> 16


def _rotated(value: int, bits: int) -> int:
    value &= _MASK
    return (value << bits | value >> 32 - bits) & _MASK
