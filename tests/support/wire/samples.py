"""Random messages of every declared class and version, and the list of both.

`Sampler` makes values of all a field may hold in a version, edges more often than the middle. What
it spares is what the independent codec kio, with its richer types, cannot hold:

- error codes are Kafka's known ones (kio has an enum),
- int64 times in ms are ones that a datetime or a timedelta can hold, and below 0 only where -1 is
  the default.
"""

from __future__ import annotations

import functools
import random
import uuid
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from lapse.broker.api.table import APIS
from lapse.wire.declaration import (
    INT64,
    Array,
    Bytes,
    FieldSpec,
    Fixed,
    Nested,
    Records,
    String,
    Uuid,
    WireType,
    message_spec,
    struct_spec,
)
from lapse.wire.schema.header import RequestHeader, ResponseHeader

CLASSES: tuple[type[Any], ...] = (
    RequestHeader,
    ResponseHeader,
    *(cls for row in APIS.values() for cls in (row.request, row.response)),
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
        return _struct(message_spec(cls).struct.cls, version)(self.random)  # type: ignore[arg-type]


# --- how a value of each type is drawn: made once a type, since hundreds of thousands are --------

Draw = Callable[[random.Random], Any]
_ERROR_CODES = tuple(code.value for code in ErrorCode)


def _one_of(*edges: Any, beside: Draw | None = None) -> Draw:
    """One of the edges or, as often as each of them, something else."""
    count = len(edges) + (beside is not None)

    def draw(chance: random.Random) -> Any:
        n = int(chance.random() * count)
        return edges[n] if beside is None or n < len(edges) else beside(chance)

    return draw


@functools.cache
def _struct(cls: type[Any], version: int) -> Draw:
    fields = struct_spec(cls).fields
    drawn = [
        (f.name, _field(f, version)) for f in fields if version in f.versions and not is_own(f)
    ]
    return lambda chance: cls(**{name: draw(chance) for name, draw in drawn})


def _field(item: FieldSpec, version: int) -> Draw:
    draw, default = _of_field(item, version), item.default
    if item.nullable is not None and version in item.nullable:
        draw = _at_times(None, draw)
    return draw if item.tag is None else _at_times(default, draw)


def _at_times(rarely: Any, draw: Draw) -> Draw:
    return lambda chance: rarely if chance.random() < 0.3 else draw(chance)


def _of_field(item: FieldSpec, version: int) -> Draw:
    if item.name.endswith("error_code"):
        return _one_of(*_ERROR_CODES)
    if item.name.endswith("_ms") and item.type == INT64:
        least = -1 if item.default == -1 else 0
        return _one_of(least, 0, 1_378_000_000_123, beside=lambda chance: chance.getrandbits(41))
    return _value(item.type, version)


def _value(type_: WireType[Any], version: int) -> Draw:
    match type_:
        case Fixed(format="?"):
            return _one_of(False, True)
        case Fixed(format="d"):
            edges = [0.0, -0.0, -1.5, 1e300, float("inf")]
            return _one_of(*edges, beside=lambda chance: chance.random() * 2**40)
        case Fixed(size=size):
            top = 1 << (8 * size - 1)
            beside: Draw = lambda chance: chance.getrandbits(8 * size) - top  # noqa: E731
            return _one_of(0, -1, 1, top - 1, -top, beside=beside)
        case Uuid():
            zero = uuid.UUID(int=0)
            return _one_of(zero, beside=lambda chance: uuid.UUID(bytes=chance.randbytes(16)))
        case String():
            longer = _one_of(126, 127, 128, 300)
            return _one_of("", "t", "Größe-✓-🦆", beside=lambda chance: "a" * longer(chance))
        case Records() | Bytes():
            length = _one_of(0, 1, 61, 126, 127, 128, 20_000)
            return lambda chance: chance.randbytes(length(chance))
        case Array(element=element):
            few = _one_of(0, 0, 1, 1, 2, 3)
            long = _one_of(15, 16, 126, 127, 200)
            many: Draw = lambda c: few(c) if c.random() < 2 / 7 else long(c)  # noqa: E731
            count = few if isinstance(element, Nested) else many
            one = _value(element, version)
            return lambda chance: tuple([one(chance) for _ in range(count(chance))])
        case Nested(struct=cls):
            return _struct(cls, version)  # type: ignore[arg-type]
    raise AssertionError(type_)
