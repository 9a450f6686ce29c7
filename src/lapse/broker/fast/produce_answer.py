"""The answer to a Produce request all of whose batches were appended, put together by hand.

As `wire.schema.produce` declares it, without record errors, messages and leaders.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from lapse.broker.fast.led_topics import LedPartition, LedTopic
from lapse.kernels.produce_frame import BY_ID_FROM, FLEXIBLE_FROM
from lapse.log.plain_appender import PlainBatch
from lapse.records.batch import Header
from lapse.wire.primitives import uvarint

_SIZE_AND_ID = struct.Struct(">ii")
_INT32 = struct.Struct(">i")
_NO_TAGS = b"\0"
_TOGETHER = 64  # partitions that one struct packs


@dataclass(frozen=True, slots=True)
class _Shape:
    """What some versions say of a partition after index, error, base offset and LogAppendTime.

    Attributes:
        codes: of all of it, for `struct`.
        empty: what follows the log start in success: no record errors, no message, no tags.
    """

    codes: str
    has_log_start: bool
    empty: tuple[int, ...]


# By the first version that answers so, the newest first.
_SHAPES = (
    (FLEXIBLE_FROM, _Shape("ihqqqbbb", has_log_start=True, empty=(1, 0, 0))),
    (8, _Shape("ihqqqih", has_log_start=True, empty=(0, -1))),
    (5, _Shape("ihqqq", has_log_start=True, empty=())),
    (3, _Shape("ihqq", has_log_start=False, empty=())),
)


@cache
def _shape(version: int) -> _Shape:
    return next(shape for since, shape in _SHAPES if version >= since)


@cache
def _packer(codes: str, count: int) -> struct.Struct:
    return struct.Struct(">" + codes * count)


@cache
def _count(count: int, *, is_flexible: bool) -> bytes:
    """Of an array; there are few different ones, since a request has few partitions."""
    return uvarint(count + 1) if is_flexible else _INT32.pack(count)


def answer(
    asked: Sequence[tuple[LedPartition, PlainBatch]],
    appended: Sequence[tuple[Header, int]],
    version: int,
    correlation_id: int,
    wait_ms: int,
) -> bytes:
    """The whole frame; `appended` are headers and LogAppendTimes, in the order of `asked`.

    `wait_ms`: how long the client is throttled.
    """
    shape, is_flexible = _shape(version), version >= FLEXIBLE_FROM
    tags = _NO_TAGS if is_flexible else b""
    parts: list[bytes] = []
    n = topics = 0
    while n < len(asked):
        partition, batch = asked[n]
        end = n + 1
        while end < len(asked) and asked[end][1].topic == batch.topic:
            end += 1
        topic = partition.topic
        parts.append(_name(topic, version))
        parts.append(_count(end - n, is_flexible=is_flexible))
        parts.append(_partitions(asked, appended, n, end, shape))
        parts.append(tags)
        n, topics = end, topics + 1
    count = _count(topics, is_flexible=is_flexible)
    body = b"".join((tags, count, *parts, _INT32.pack(wait_ms), tags))
    return _SIZE_AND_ID.pack(len(body) + 4, correlation_id) + body


def _name(topic: LedTopic, version: int) -> bytes:
    """How an answer names a topic."""
    if version >= BY_ID_FROM:
        return topic.topic.topic_id.bytes
    return topic.compact_name if version >= FLEXIBLE_FROM else topic.name


def _partitions(
    asked: Sequence[tuple[LedPartition, PlainBatch]],
    appended: Sequence[tuple[Header, int]],
    begin: int,
    end: int,
    shape: _Shape,
) -> bytes:
    if end - begin > _TOGETHER:
        pieces = range(begin, end, _TOGETHER)
        some = [_partitions(asked, appended, n, min(n + _TOGETHER, end), shape) for n in pieces]
        return b"".join(some)
    fields: list[int] = []
    for n in range(begin, end):
        (partition, batch), (header, time_ms) = asked[n], appended[n]
        fields += batch.partition, 0, header.base_offset, time_ms
        if shape.has_log_start:
            fields.append(partition.log.log_start_offset)
        fields += shape.empty
    return _packer(shape.codes, end - begin).pack(*fields)
