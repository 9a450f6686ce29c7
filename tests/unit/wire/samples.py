"""Random messages of every declared class and version, and the list of both.

`Sampler` makes values of all a field may hold in a version, edges more often than the middle. What
it spares is what the independent codec kio, with its richer types, cannot hold:

- error codes are Kafka's known ones (kio has an enum),
- int64 times in ms are ones that a datetime or a timedelta can hold, and below 0 only where -1 is
  the default.
"""

from __future__ import annotations

import random
import uuid
from typing import Any

from kio.schema.errors import ErrorCode

from lapse.wire.declaration import (
    INT64,
    Array,
    Bytes,
    FieldSpec,
    Fixed,
    Nested,
    Records,
    String,
    StructSpec,
    Uuid,
    WireType,
    message_spec,
    struct_spec,
)
from lapse.wire.declared import DECLARED
from lapse.wire.schema.header import RequestHeader, ResponseHeader

CLASSES: tuple[type[Any], ...] = (
    RequestHeader,
    ResponseHeader,
    *(cls for row in DECLARED.values() for cls in (row.request, row.response)),
)


def versions_of(cls: type[Any]) -> range:
    """The declared versions of a message."""
    versions = message_spec(cls).versions
    assert versions.high is not None
    return range(versions.low, versions.high + 1)


MESSAGES = [(cls, version) for cls in CLASSES for version in versions_of(cls)]


def name_of(case: tuple[type[Any], int]) -> str:
    """A test id."""
    return f"{case[0].__name__}-v{case[1]}"


def is_own(item: FieldSpec) -> bool:
    """A tagged field that Kafka has not; others would not read it, and it is never in a sample."""
    return item.tag is not None and item.tag >= 10_000


class Sampler:
    """Makes messages; the same seed makes the same ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def message(self, cls: type[Any], version: int) -> Any:
        return self.struct(message_spec(cls).struct, version)

    def struct(self, spec: StructSpec, version: int) -> Any:
        values = {
            item.name: self.field(item, version) for item in spec.fields if version in item.versions
        }
        return spec.cls(**values)

    def field(self, item: FieldSpec, version: int) -> object:
        if item.tag is not None and (is_own(item) or self.random.random() < 0.3):
            return item.default
        if item.nullable is not None and version in item.nullable and self.random.random() < 0.3:
            return None
        if item.name.endswith("error_code"):
            return self.random.choice(list(ErrorCode)).value
        if item.name.endswith("_ms") and item.type == INT64:
            least = -1 if item.default == -1 else 0
            return self.random.choice([least, 0, 1_378_000_000_123, self.random.randrange(2**41)])
        return self.value(item.type, version)

    def value(self, type_: WireType[Any], version: int) -> Any:
        draw = self.random
        match type_:
            case Fixed(format="?"):
                return draw.random() < 0.5
            case Fixed(format="d"):
                return draw.choice([0.0, -0.0, -1.5, 1e300, float("inf"), draw.random() * 2**40])
            case Fixed(size=size):
                top = 1 << (8 * size - 1)
                return draw.choice([0, -1, 1, top - 1, -top, draw.randrange(-top, top)])
            case Uuid():
                return draw.choice([uuid.UUID(int=0), uuid.UUID(bytes=draw.randbytes(16))])
            case String():
                return draw.choice(["", "t", "Größe-✓-🦆", "a" * draw.choice([126, 127, 128, 300])])
            case Records() | Bytes():
                return draw.randbytes(draw.choice([0, 1, 61, 126, 127, 128, 20_000]))
            case Array(element=element):
                few = draw.choice([0, 0, 1, 1, 2, 3])
                many = draw.choice([few, few, 15, 16, 126, 127, 200])
                count = few if isinstance(element, Nested) else many
                return tuple(self.value(element, version) for _ in range(count))
            case Nested(struct=cls):
                return self.struct(struct_spec(cls), version)
        raise AssertionError(type_)
