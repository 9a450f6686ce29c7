"""Entries of the two coordinator topics: typed keys and versioned values.

A key is an int16 *type* and the key's fields in version 0; a value is an int16 *version* and the
value's fields in it; a null value removes the key. `offsets` and `transactions` hold the tables of
types; called by the readers and writers of `__consumer_offsets` or `__transaction_state`.

Bytes that do not parse raise MalformedMessage. An unknown type comes out as UNKNOWN, because
Kafka steps over it when it loads a partition; an unknown version of a known value does not, since
stepping over it would lose what it says.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lapse.wire import codec
from lapse.wire.declaration import message_spec
from lapse.wire.errors import MalformedMessage, UnsupportedVersion

_INT16 = struct.Struct(">h")
NO_VERSION = -1


@dataclass(frozen=True, slots=True)
class EntryType:
    """One row of a coordinator's table.

    Attributes:
        name: Kafka's.
        value: class of the values; None for a kind whose values this version only carries along.
        written: the version of values that Kafka 4.3 writes.
    """

    id: int
    name: str
    key: type[Any]
    value: type[Any] | None
    written: int = 0


Types = Mapping[int, EntryType]


class NoKey:
    """The key of an entry of an unknown type."""


UNKNOWN = EntryType(-1, "UNKNOWN", NoKey, None)


@dataclass(frozen=True, slots=True)
class Entry:
    """A record of a coordinator's topic.

    Attributes:
        key: a message of `type.key`; the raw bytes for UNKNOWN.
        value: a message of `type.value`; None removes the key; raw bytes, version and all, where
            the type has no class.
        version: of the value; -1 where there is none.
    """

    type: EntryType
    key: Any
    value: Any
    version: int


def decode_entry(types: Types, key: bytes | None, value: bytes | None) -> Entry:
    """Read one record; raises MalformedMessage or UnsupportedVersion."""
    if key is None:
        raise MalformedMessage("coordinator record", 0, "no key")
    kind = types.get(_prefix("coordinator key", key), UNKNOWN)
    if kind is UNKNOWN:
        return Entry(kind, key, value, NO_VERSION)
    key_message = _whole(kind.key, 0, key)
    if value is None:
        return Entry(kind, key_message, None, NO_VERSION)
    version = _prefix(f"value of {kind.name}", value)
    if kind.value is None:
        return Entry(kind, key_message, value, version)
    if version not in message_spec(kind.value).versions:
        raise UnsupportedVersion(f"{kind.value.__name__} v{version} is not known")
    return Entry(kind, key_message, _whole(kind.value, version, value), version)


def encode_entry(
    kind: EntryType, key: Any, value: Any, version: int | None = None
) -> tuple[bytes, bytes | None]:
    """Key and value bytes; `version` None means the one Kafka writes.

    Raises UnsupportedVersion where that version lacks a field that holds something.
    """
    key_bytes = _INT16.pack(kind.id) + codec.encode(key, 0)
    if value is None:
        return key_bytes, None
    version = kind.written if version is None else version
    return key_bytes, _INT16.pack(version) + codec.encode(value, version)


def _prefix(what: str, data: bytes) -> int:
    if len(data) < _INT16.size:
        raise MalformedMessage(what, 0, "ends early")
    return int(_INT16.unpack_from(data)[0])


def _whole(cls: type[Any], version: int, data: bytes) -> Any:
    """A message that fills `data` but for its prefix."""
    message, end = codec.decode(cls, version, memoryview(data), _INT16.size)
    if end != len(data):
        left = len(data) - end
        raise MalformedMessage(f"{cls.__name__} v{version}", end, f"{left} bytes are left over")
    return message


# --- folding ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Write:
    """An entry in the log; `producer_id` -1 outside a transaction."""

    offset: int
    entry: Entry
    producer_id: int = -1


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of a producer's transaction."""

    producer_id: int
    commit: bool


# What an entry replaces: the last one with the same type id and key.
Slot = tuple[int, Any]


@dataclass(frozen=True, slots=True)
class Folded:
    """What a log amounts to.

    Attributes:
        latest: the last value of each key that has one.
        pending: by producer, what open transactions wrote; None will remove a key.
    """

    latest: Mapping[Slot, Any] = field(default_factory=dict)
    pending: Mapping[int, Mapping[Slot, Any]] = field(default_factory=dict)

    def of(self, kind: EntryType) -> dict[Any, Any]:
        """Value by key, of one type."""
        return {key: value for (type_id, key), value in self.latest.items() if type_id == kind.id}


def fold(events: Iterable[Write | Marker]) -> Folded:
    """The final state, as a coordinator has it after loading the log in order.

    What a transaction wrote counts from its commit, unless somebody wrote the key after it had;
    an abort drops it. Unknown types are stepped over.
    """
    latest: dict[Slot, tuple[int, Any]] = {}
    pending: dict[int, dict[Slot, tuple[int, Any]]] = {}
    for event in events:
        match event:
            case Marker(producer_id, commit):
                for slot, (offset, value) in pending.pop(producer_id, {}).items():
                    if commit and offset > latest.get(slot, (-1, None))[0]:
                        latest[slot] = (offset, value)
            case Write(entry=entry) if entry.type is UNKNOWN:
                pass
            case Write(offset, entry, producer_id):
                table = latest if producer_id < 0 else pending.setdefault(producer_id, {})
                table[entry.type.id, entry.key] = (offset, entry.value)
    return Folded(
        latest={slot: value for slot, value in _values(latest) if value is not None},
        pending={producer_id: dict(_values(table)) for producer_id, table in pending.items()},
    )


def _values(table: Mapping[Slot, tuple[int, Any]]) -> Iterator[tuple[Slot, Any]]:
    return ((slot, value) for slot, (_, value) in table.items())
