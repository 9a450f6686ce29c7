"""Headers in front of every request and response.

Which header version goes with which API version is in `versions`: flexible API versions carry
request header 2 and response header 1, except that ApiVersions always answers with response
header 0, so that a client too new for us can still read the answer (KIP-511).
"""

from __future__ import annotations

from lapse.wire.declaration import INT16, INT32, STRING, field, header


@header(versions="0-2", flexible="2+")
class RequestHeader:
    """In front of a request.

    v0 has no client id, v1 is the common one, v2 adds tagged fields; the client id keeps the old
    string form even there.
    """

    request_api_key: int = field(INT16)
    request_api_version: int = field(INT16)
    correlation_id: int = field(INT32)
    client_id: str | None = field(STRING, "1+", nullable="1+", default=None, compact=False)


@header(versions="0-1", flexible="1+")
class ResponseHeader:
    """In front of a response; v1 adds tagged fields."""

    correlation_id: int = field(INT32)
