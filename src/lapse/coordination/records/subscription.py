"""What consumers put into the opaque bytes of a classic group: KIP-54's and later versions.

A broker only passes these on; tools read them to say who subscribed to what and was given which
partitions. Each is an int16 version and a message in it. v1 partitions owned so far (KIP-429) ·
v2 the generation they are of · v3 rack (KIP-881).
"""

from __future__ import annotations

import struct as structs
from typing import TypeVar

from lapse.wire import codec
from lapse.wire.declaration import (
    BYTES,
    INT32,
    STRING,
    array,
    field,
    header,
    message_spec,
    struct,
)
from lapse.wire.errors import MalformedMessage

PROTOCOL_TYPE = "consumer"

M = TypeVar("M")
_INT16 = structs.Struct(">h")


@struct
class TopicPartitions:
    """Partitions of one topic."""

    topic: str = field(STRING)
    partitions: tuple[int, ...] = field(array(INT32))


@header(versions="0-3", flexible="4+")
class ConsumerProtocolSubscription:
    """What a consumer wants."""

    topics: tuple[str, ...] = field(array(STRING))
    user_data: bytes | None = field(BYTES, nullable="0+", default=None)
    owned_partitions: tuple[TopicPartitions, ...] = field(
        array(TopicPartitions), "1+", default=(), ignorable=True
    )
    generation_id: int = field(INT32, "2+", default=-1, ignorable=True)
    rack_id: str | None = field(STRING, "3+", nullable="3+", default=None, ignorable=True)


@header(versions="0-3", flexible="4+")
class ConsumerProtocolAssignment:
    """What a consumer was given."""

    assigned_partitions: tuple[TopicPartitions, ...] = field(array(TopicPartitions))
    user_data: bytes | None = field(BYTES, nullable="0+", default=None)


def read_versioned(cls: type[M], data: bytes) -> tuple[M, int]:
    """The message and its version; a newer version is read as the newest known, as Kafka does.

    Raises MalformedMessage.
    """
    if len(data) < _INT16.size:
        raise MalformedMessage(cls.__name__, 0, "ends early")
    versions = message_spec(cls).versions
    assert versions.high is not None
    version = min(int(_INT16.unpack_from(data)[0]), versions.high)
    if version < versions.low:
        raise MalformedMessage(cls.__name__, 0, f"version {version}")
    return codec.decode(cls, version, memoryview(data), _INT16.size)[0], version


def write_versioned(
    message: ConsumerProtocolSubscription | ConsumerProtocolAssignment, version: int | None = None
) -> bytes:
    """In that version, else in the newest."""
    if version is None:
        version = message_spec(type(message)).versions.high
    assert version is not None
    return _INT16.pack(version) + codec.encode(message, version)
