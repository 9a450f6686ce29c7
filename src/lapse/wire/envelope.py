"""Header and message together: what one frame holds.

The broker's connection calls `decode_request` and `encode_response`; the client's calls
`encode_request`, `correlation_id_of` and `decode_response`. What is encoded here starts with the
frame's size, ready to be sent; what is decoded is a frame's content as `framing` cuts it out.

Bytes after the end of a message are ignored, as Kafka does.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from lapse.base.errors import ErrorCode
from lapse.wire.codec import Part, decode, encode, encode_parts, size_of
from lapse.wire.declaration import Api, message_spec
from lapse.wire.errors import MalformedMessage, UnsupportedVersion
from lapse.wire.schema.api_versions import ApiVersionsResponse
from lapse.wire.schema.header import RequestHeader, ResponseHeader
from lapse.wire.versions import (
    FALLBACK_VERSION,
    request_header_version,
    response_header_version,
)

M = TypeVar("M")

_KEY_AND_VERSION = struct.Struct(">hh")
_INT32 = struct.Struct(">i")
_TWO_INT32 = struct.Struct(">ii")
_INT16 = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class Request:
    """A decoded request. `message` is of the class of the API that its key names."""

    header: RequestHeader
    message: Any


class Served(Protocol):
    """An API that is answered, in all versions that it has."""

    @property
    def api(self) -> Api: ...

    @property
    def request(self) -> type[Any]: ...


class UnsupportedRequest(UnsupportedVersion):
    """A known API in a version we do not serve; for ApiVersions there is an answer to that."""

    def __init__(self, name: str, header: RequestHeader) -> None:
        super().__init__(
            f"{name} v{header.request_api_version} from client {header.client_id!r} is not served"
        )
        self.header = header


# --- the broker's side ------------------------------------------------------------------------


def decode_request(frame: memoryview, apis: Mapping[int, Served]) -> Request:
    """Decode a request of one of `apis`, by key; its records are slices of `frame`.

    Raises:
        MalformedMessage: the bytes make no sense: close the connection.
        UnsupportedRequest: the version is not served: send `versions.too_new` if this is
            ApiVersions, else close the connection.
        UnsupportedVersion: the API key is not known: close the connection.
    """
    if len(frame) < _KEY_AND_VERSION.size:
        raise MalformedMessage("request header", len(frame), "ends early")
    key, version = _KEY_AND_VERSION.unpack_from(frame)
    row = apis.get(key)
    if row is None:
        raise UnsupportedVersion(f"API key {key} v{version} is not served")
    header, pos = decode(RequestHeader, request_header_version(row.api, version), frame)
    if version not in row.api.versions:
        raise UnsupportedRequest(row.api.name, header)
    message, _ = decode(row.request, version, frame, pos)
    return Request(header, message)


def encode_response(message: Any, *, version: int, correlation_id: int) -> list[Part]:
    """Encode a response as a whole frame, in parts: bytes, then records, then bytes, and so on.

    Parts that are neither bytes nor memoryview are the slices which the message held as records.
    """
    api = message_spec(type(message)).api
    assert api is not None, "headers are not responses"
    # By hand what ResponseHeader declares: this is done for every request.
    tags = b"\0" if response_header_version(api, version) else b""
    parts = encode_parts(message, version, tags)
    size = _INT32.size + size_of(parts)
    parts[0] = _TWO_INT32.pack(size, correlation_id) + parts[0]  # type: ignore[operator]
    return parts


# --- the client's side ------------------------------------------------------------------------


def encode_request(
    message: Any, *, version: int, correlation_id: int, client_id: str | None
) -> list[Part]:
    """Encode a request as a whole frame, in parts."""
    api = message_spec(type(message)).api
    assert api is not None, "headers are not requests"
    header = RequestHeader(
        request_api_key=api.key,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    parts = encode_parts(message, version, encode(header, request_header_version(api, version)))
    parts[0] = _INT32.pack(size_of(parts)) + parts[0]  # type: ignore[operator]
    return parts


def correlation_id_of(frame: memoryview) -> int:
    """Which request a response frame answers."""
    if len(frame) < _INT32.size:
        raise MalformedMessage("response header", len(frame), "ends early")
    return int(_INT32.unpack_from(frame)[0])


def decode_response(cls: type[M], version: int, frame: memoryview) -> M:
    """Decode the answer to a request sent in `version`.

    An ApiVersions answer with error 35 is in version 0, whatever was requested (KIP-511).
    """
    api = message_spec(cls).api
    assert api is not None, "headers are not responses"
    _, pos = decode(ResponseHeader, response_header_version(api, version), frame)
    if cls is ApiVersionsResponse and _says_too_new(frame, pos):
        version = FALLBACK_VERSION
    return decode(cls, version, frame, pos)[0]


def _says_too_new(frame: memoryview, pos: int) -> bool:
    if len(frame) < pos + _INT16.size:
        return False
    return bool(_INT16.unpack_from(frame, pos)[0] == ErrorCode.UNSUPPORTED_VERSION)
