"""How a Kafka message is declared; the files in `schema/` are written in these words.

A message is a frozen dataclass whose fields say how they travel:

    @struct
    class TopicProduceData:
        name: str = field(STRING)
        partition_data: tuple[PartitionProduceData, ...] = field(array(PartitionProduceData))

    @request(PRODUCE)
    class ProduceRequest:
        transactional_id: str | None = field(STRING, "3+", nullable="3+", default=None)
        acks: int = field(INT16)

Type checkers compare each annotation with its wire type, so a declaration cannot say two things.
Called by `schema/` at import; read by `decoder`, `encoder` and tests. Terms (versions, nullable,
tag, ignorable) are those of Kafka's own message descriptors (KIP-482 for tags and flexible
versions).

Invariants, checked on import: a field that is missing in some versions, or is tagged, has a
default; the default is what a reader of the other versions sees.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from typing import Any, Generic, Protocol, TypeVar, cast, dataclass_transform, overload

from lapse.wire.frozen import frozen

T = TypeVar("T")

ZERO_UUID = uuid.UUID(int=0)
OWN_TAG = 10_000  # of fields that are ours: far from Kafka's own, which count from 0
OWN_KEYS_FROM = 10_000  # of APIs that are ours, likewise


class RecordsSlice(Protocol):
    """Records that are not in memory: a slice of a file. The codec only uses the size."""

    @property
    def size(self) -> int:
        """Bytes the slice will send."""


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Versions from `low` to `high`, both included; no `high` means for ever."""

    low: int
    high: int | None = None

    def __contains__(self, version: int) -> bool:
        return self.low <= version and (self.high is None or version <= self.high)

    def __str__(self) -> str:
        if self == VersionRange.parse("none"):
            return "none"
        return f"{self.low}+" if self.high is None else f"{self.low}-{self.high}"

    @staticmethod
    @functools.cache
    def parse(text: str) -> VersionRange:
        """Read Kafka's notation: `3+`, `0-12`, `4` or `none`."""
        if text == "none":
            return VersionRange(0, -1)
        low, dash, high = text.removesuffix("+").partition("-")
        if text.endswith("+"):
            return VersionRange(int(low))
        return VersionRange(int(low), int(high) if dash else int(low))


# --- wire types: the parameter is the Python type of a value ---------------------------------


@dataclass(frozen=True, slots=True)
class WireType(Generic[T]):
    """Base of everything a field can be on the wire."""


@dataclass(frozen=True, slots=True)
class Fixed(WireType[T]):
    """A value of fixed width; `format` is its letter in the `struct` module."""

    format: str
    size: int


@dataclass(frozen=True, slots=True)
class Uuid(WireType[uuid.UUID]):
    """16 raw bytes; never null, all zeros stands for none."""


@dataclass(frozen=True, slots=True)
class String(WireType[str]):
    """UTF-8 behind an int16 length, or compact: an unsigned varint of length + 1."""


@dataclass(frozen=True, slots=True)
class Bytes(WireType[bytes]):
    """Opaque bytes behind an int32 or compact length; decoded as a copy."""


@dataclass(frozen=True, slots=True)
class Records(WireType[T]):
    """Record batches behind an int32 or compact length; decoded as a view, never copied."""


@dataclass(frozen=True, slots=True)
class Nested(WireType[T]):
    """Another struct, in place."""

    struct: type[T]


@dataclass(frozen=True, slots=True)
class Array(WireType[tuple[T, ...]]):
    """A count (int32 or compact) and that many elements."""

    element: WireType[T]


BOOL: Fixed[bool] = Fixed("?", 1)
INT8: Fixed[int] = Fixed("b", 1)
INT16: Fixed[int] = Fixed("h", 2)
INT32: Fixed[int] = Fixed("i", 4)
INT64: Fixed[int] = Fixed("q", 8)
FLOAT64: Fixed[float] = Fixed("d", 8)
UUID = Uuid()
STRING = String()
BYTES = Bytes()
RECORDS: Records[bytes | memoryview] = Records()
# What a broker sends may be a file slice instead of bytes.
RECORDS_OR_SLICE: Records[bytes | memoryview | RecordsSlice] = Records()


def nested(struct_type: type[T]) -> WireType[T]:
    """A struct as one field."""
    return Nested(struct_type)


def array(element: WireType[T] | type[T]) -> WireType[tuple[T, ...]]:
    """An array of a wire type, or of structs."""
    return Array(element if isinstance(element, WireType) else Nested(element))


# --- fields -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field as declared. `default` is `dataclasses.MISSING` where the caller must give it."""

    name: str
    type: WireType[Any]
    versions: VersionRange
    nullable: VersionRange | None
    tag: int | None
    default: object
    ignorable: bool
    compact: bool

    def __set_name__(self, _owner: object, name: str) -> None:
        # Python's own call, made once for each field of a class body.
        object.__setattr__(self, "name", name)


@overload
def field(
    type_: WireType[T],
    versions: str = "0+",
    *,
    tag: int | None = None,
    ignorable: bool = False,
    compact: bool = True,
) -> T: ...
@overload
def field(
    type_: WireType[T],
    versions: str = "0+",
    *,
    default: T,
    tag: int | None = None,
    ignorable: bool = False,
    compact: bool = True,
) -> T: ...
@overload
def field(
    type_: WireType[T],
    versions: str = "0+",
    *,
    nullable: str,
    tag: int | None = None,
    ignorable: bool = False,
    compact: bool = True,
) -> T | None: ...
@overload
def field(
    type_: WireType[T],
    versions: str = "0+",
    *,
    nullable: str,
    default: T | None,
    tag: int | None = None,
    ignorable: bool = False,
    compact: bool = True,
) -> T | None: ...
def field(
    type_: WireType[Any],
    versions: str = "0+",
    *,
    nullable: str | None = None,
    default: Any = MISSING,
    tag: int | None = None,
    ignorable: bool = False,
    compact: bool = True,
) -> Any:
    """Declare one field.

    Args:
        type_: how it travels.
        versions: the message versions that have it.
        nullable: the versions in which it may be null.
        default: its value where a version lacks it, and when the caller leaves it out.
        tag: its tag number, if it travels in the tagged section.
        ignorable: in a version that lacks it a value is dropped silently; otherwise encoding a
            value other than the default there is refused.
        compact: False for the one string (client id) that keeps the old form in flexible versions.
    """
    return FieldSpec(
        name="",
        type=type_,
        versions=VersionRange.parse(versions),
        nullable=None if nullable is None else VersionRange.parse(nullable),
        tag=tag,
        default=default,
        ignorable=ignorable,
        compact=compact,
    )


# --- structs and messages ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StructSpec:
    """A declared struct."""

    cls: type[Any]
    fields: tuple[FieldSpec, ...]

    @property
    def draft(self) -> type[Any]:
        """The mutable twin of the class, which decoders fill and then freeze."""
        return cast(type[Any], self.cls.__draft__)


@dataclass(frozen=True, slots=True)
class Api:
    """One request/response pair: the versions served, and the first flexible one (KIP-482)."""

    key: int
    name: str
    versions: VersionRange
    flexible: VersionRange

    @property
    def newest(self) -> int:
        """The newest version."""
        assert self.versions.high is not None
        return self.versions.high


@dataclass(frozen=True, slots=True)
class MessageSpec:
    """A struct that stands alone on the wire; `api` is None for the headers."""

    struct: StructSpec
    versions: VersionRange
    flexible: VersionRange
    api: Api | None

    @property
    def name(self) -> str:
        """The class name, which is Kafka's name of the message."""
        return self.struct.cls.__name__


def api(key: int, name: str, *, versions: str, flexible: str) -> Api:
    """Declare an API; its two messages follow with `@request` and `@response`."""
    return Api(key, name, VersionRange.parse(versions), VersionRange.parse(flexible))


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def struct(cls: type[T]) -> type[T]:
    """Make a declaration a frozen, slotted, keyword-only class, to all purposes a dataclass."""
    fields = tuple(item for item in vars(cls).values() if isinstance(item, FieldSpec))
    made = frozen(cls, {item.name: item.default for item in fields})
    setattr(made, "__wire_struct__", StructSpec(made, fields))  # noqa: B010
    return made


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def request(owner: Api) -> Callable[[type[T]], type[T]]:
    """Declare the request of an API."""
    return lambda cls: _message(cls, owner.versions, owner.flexible, owner)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def response(owner: Api) -> Callable[[type[T]], type[T]]:
    """Declare the response of an API."""
    return lambda cls: _message(cls, owner.versions, owner.flexible, owner)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def header(*, versions: str, flexible: str) -> Callable[[type[T]], type[T]]:
    """Declare a message header, which has versions of its own."""
    own, flex = VersionRange.parse(versions), VersionRange.parse(flexible)
    return lambda cls: _message(cls, own, flex, None)


def struct_spec(cls: type[Any]) -> StructSpec:
    """The declaration behind a struct or message class."""
    return cast(StructSpec, cls.__wire_struct__)


def message_spec(cls: type[Any]) -> MessageSpec:
    """The declaration behind a message class."""
    return cast(MessageSpec, cls.__wire_message__)


def _message(
    cls: type[T], versions: VersionRange, flexible: VersionRange, owner: Api | None
) -> type[T]:
    made = struct(cls)
    spec = MessageSpec(struct_spec(made), versions, flexible, owner)
    _check_defaults(spec.struct, versions)
    setattr(made, "__wire_message__", spec)  # noqa: B010
    return made


def _check_defaults(spec: StructSpec, versions: VersionRange) -> None:
    """A field that some served version lacks must say what its absence means."""
    assert versions.high is not None, "a message's versions have an end"
    for item in spec.fields:
        everywhere = versions.low in item.versions and versions.high in item.versions
        if item.default is MISSING and (item.tag is not None or not everywhere):
            raise TypeError(f"{spec.cls.__name__}.{item.name} needs a default")
        element = item.type.element if isinstance(item.type, Array) else item.type
        if isinstance(element, Nested):
            # Inside, only the versions count in which this struct travels at all.
            low = max(versions.low, item.versions.low)
            high = versions.high if item.versions.high is None else item.versions.high
            _check_defaults(
                struct_spec(element.struct), VersionRange(low, min(high, versions.high))
            )
