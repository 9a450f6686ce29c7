"""The answer to a Fetch request without an error, put together by hand.

As `wire.schema.fetch` declares it, for no follower.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from lapse.broker.fast.led_topics import LedTopic
from lapse.kernels.fetch_frame import (
    BY_ID_FROM,
    FLEXIBLE_FROM,
    LOG_START_FROM,
    RACK_FROM,
    SESSIONS_FROM,
)
from lapse.log.state import LogSlice
from lapse.wire.codec import Part
from lapse.wire.primitives import uvarint

_INT32 = struct.Struct(">i")
_SIZE_AND_ID = struct.Struct(">ii")
_NO_TAGS = b"\0"
_NO_WAIT = bytes(4)
_ERROR_AND_SESSION = struct.Struct(">hi")
_NO_READER = -1  # that it is to read from instead (KIP-392)
_NULL = -1


class Seen(NamedTuple):
    """What a partition has for the client, as `PartitionData` says it.

    Attributes:
        is_at_end: there is nothing beyond the offset that may be seen.
    """

    high_watermark: int
    stable: int
    log_start_offset: int
    records: bytes | LogSlice
    size: int
    is_at_end: bool = False


@dataclass(frozen=True, slots=True)
class _Shape:
    """What some versions say of a partition: index, error, watermarks and what follows."""

    fields: struct.Struct
    has_log_start: bool
    has_reader: bool
    is_flexible: bool


def _shape(version: int) -> _Shape:
    is_flexible = version >= FLEXIBLE_FROM
    has_log_start, has_reader = version >= LOG_START_FROM, version >= RACK_FROM
    codes = "ihqq" + "q" * has_log_start + ("b" if is_flexible else "i") + "i" * has_reader
    return _Shape(struct.Struct(">" + codes), has_log_start, has_reader, is_flexible)


_SHAPES = {version: _shape(version) for version in range(4, 19)}


class FetchAnswer:
    """One answer in the making: topics, each with its partitions, in the order of the request."""

    def __init__(self, version: int) -> None:
        self._version, self._shape = version, _SHAPES[version]
        self._parts: list[bytes | LogSlice] = []
        self._topics = 0
        self._topic: LedTopic | None = None
        self._partitions: list[bytes | LogSlice] = []
        self._count = 0

    def begin(self, topic: LedTopic) -> None:
        """What is added from now on is of this topic."""
        self._end_topic()
        self._topic = topic

    def add(self, partition: int, seen: Seen, *, is_committed: bool) -> None:
        """A partition; `is_committed`: the client is to know that no transaction was aborted."""
        shape, size = self._shape, seen.size
        fields = [partition, 0, seen.high_watermark, seen.stable]
        if shape.has_log_start:
            fields.append(seen.log_start_offset)
        fields.append((0 if is_committed else _NULL) + shape.is_flexible)
        if shape.has_reader:
            fields.append(_NO_READER)
        packed = shape.fields.pack(*fields)
        parts = self._partitions
        parts.append(packed + (uvarint(size + 1) if shape.is_flexible else _INT32.pack(size)))
        if size:
            parts.append(seen.records)
        if shape.is_flexible:
            parts.append(_NO_TAGS)
        self._count += 1

    def _end_topic(self) -> None:
        topic, is_flexible = self._topic, self._shape.is_flexible
        if topic is None:
            return
        if self._version >= BY_ID_FROM:
            name = topic.topic.topic_id.bytes
        else:
            name = topic.compact_name if is_flexible else topic.name
        self._parts.append(name + self._of_array(self._count))
        self._parts += self._partitions
        if is_flexible:
            self._parts.append(_NO_TAGS)
        self._topics, self._partitions, self._count = self._topics + 1, [], 0

    def _of_array(self, count: int) -> bytes:
        return uvarint(count + 1) if self._shape.is_flexible else _INT32.pack(count)

    def frame(self, correlation_id: int, session_id: int) -> list[Part]:
        """All of it: bytes, then a slice of a file, then bytes, and so on."""
        self._end_topic()
        tags = _NO_TAGS if self._shape.is_flexible else b""
        session = _ERROR_AND_SESSION.pack(0, session_id) if self._version >= SESSIONS_FROM else b""
        head = tags + _NO_WAIT + session + self._of_array(self._topics)
        joined = _joined([head, *self._parts, tags])
        size = sum([len(part) if isinstance(part, bytes) else part.size for part in joined])
        return [_SIZE_AND_ID.pack(size + 4, correlation_id) + cast("bytes", joined[0]), *joined[1:]]


def _joined(parts: Sequence[bytes | LogSlice]) -> list[bytes | LogSlice]:
    """The same with what lies between two slices as one."""
    joined: list[bytes | LogSlice] = []
    run: list[bytes] = []
    for part in parts:
        if isinstance(part, bytes):
            run.append(part)
        else:
            joined += b"".join(run), part
            run = []
    if run:
        joined.append(b"".join(run))
    return joined
