"""JSON and msgpack as frozen dataclasses, checked against their types, from any thread.

msgspec finds out what a type is made of when it is used first, and keeps that with the type before
it is complete: a second thread that uses the type meanwhile ends the process (0.22: 8 times of 10
where four threads decode a list of logs). So each type gets a decoder here, one at a time; what is
made by then is complete, and may be used by all threads.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

_Decode = Callable[[Any], Any]
_making = Lock()
_of_json: dict[object, _Decode] = {}
_of_msgpack: dict[object, _Decode] = {}


@overload
def from_json(data: bytes | str | memoryview, kind: type[T]) -> T: ...
@overload
def from_json(data: bytes | str | memoryview, kind: Any) -> Any: ...
def from_json(data: bytes | str | memoryview, kind: Any) -> Any:
    """Raises msgspec.MsgspecError, of which DecodeError and ValidationError are."""
    decode = _of_json.get(kind)
    if decode is None:
        with _making:
            decode = _of_json[kind] = msgspec.json.Decoder(kind).decode
    return decode(data)


@overload
def from_msgpack(data: bytes | memoryview, kind: type[T]) -> T: ...
@overload
def from_msgpack(data: bytes | memoryview, kind: Any) -> Any: ...
def from_msgpack(data: bytes | memoryview, kind: Any) -> Any:
    """Raises as `from_json`."""
    decode = _of_msgpack.get(kind)
    if decode is None:
        with _making:
            decode = _of_msgpack[kind] = msgspec.msgpack.Decoder(kind).decode
    return decode(data)
