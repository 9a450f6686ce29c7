"""Messages to bytes and back, by functions generated from the declarations.

For each message class and version there is one decode and one encode function, written as plain
Python source at first use (`decoder`, `encoder`), compiled and kept; their source stays in
`linecache`, so a debugger steps through it and tracebacks show it. Called by `envelope`, and by
callers that need a bare message.

Invariants: decoding raises MalformedMessage and nothing else, whatever the bytes; records come out
as slices of the given buffer and go in as parts, so they are never copied; unknown tagged fields
are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from lapse.wire.declaration import MessageSpec, RecordsSlice, message_spec
from lapse.wire.decoder import compile_decoder
from lapse.wire.encoder import compile_encoder
from lapse.wire.errors import UnsupportedVersion

M = TypeVar("M")
F = TypeVar("F")

_IN_MEMORY = (bytes, bytearray, memoryview)

# A piece of an encoded message: bytes, or records given as something else that has a size.
Part: TypeAlias = bytes | memoryview | RecordsSlice


def decode(cls: type[M], version: int, buf: memoryview, pos: int = 0) -> tuple[M, int]:
    """Decode a message of class `cls` at `pos`; returns it and the position after it.

    Raises:
        MalformedMessage: the bytes are not such a message.
        UnsupportedVersion: the class has no such version.
    """
    return _DECODERS[cls, version](buf, pos)


def encode(message: Any, version: int) -> bytes:
    """Encode a message whose records, if it has any, are in memory."""
    return b"".join(encode_parts(message, version))  # type: ignore[arg-type]


def encode_parts(message: Any, version: int, head: bytes = b"") -> list[Part]:
    """Encode a message behind `head` as parts to be sent one after the other.

    Records that are not empty are parts of their own, the very objects that the message holds;
    the part before each of them is bytes. The first part is always bytes.

    Raises:
        UnsupportedVersion: no such version, or it lacks a field that holds a value.
    """
    out = [head]
    parts: list[Part] = []
    _ENCODERS[type(message), version](message, out, parts)
    if out:
        parts.append(b"".join(out))
    return parts


def size_of(parts: list[Part]) -> int:
    """Bytes that the parts will send."""
    size = 0
    for part in parts:
        size += len(part) if isinstance(part, _IN_MEMORY) else part.size
    return size


class _Compiled(dict[tuple[type[Any], int], F]):
    """Functions by message class and version, compiled when first looked up."""

    def __init__(self, compiler: Callable[[MessageSpec, int], F]) -> None:
        super().__init__()
        self._compiler = compiler

    def __missing__(self, key: tuple[type[Any], int]) -> F:
        spec, version = message_spec(key[0]), key[1]
        if version not in spec.versions:
            raise UnsupportedVersion(f"{spec.name} v{version}: versions {spec.versions} are known")
        return self.setdefault(key, self._compiler(spec, version))


_DECODERS = _Compiled(compile_decoder)
_ENCODERS = _Compiled(compile_encoder)
