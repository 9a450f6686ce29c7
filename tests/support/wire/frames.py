"""Whole frames of requests, and what may happen to one on its way."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import strategies as st

from lapse.wire.envelope import encode_request

SIZE_BYTES = 4


def frame_of(
    message: Any, version: int, *, correlation_id: int = 1, client_id: str | None = "c"
) -> bytes:
    """As it goes through a socket: its size, then its content."""
    parts = encode_request(
        message, version=version, correlation_id=correlation_id, client_id=client_id
    )
    return b"".join(cast("list[bytes]", parts))  # there are no slices of files in a request


def garbled(frame: bytes, data: st.DataObject) -> tuple[str, bytes]:
    """A frame with some bits flipped, cut off, or followed by more; and which of them."""
    kind = data.draw(st.sampled_from(["flip", "cut", "more"]))
    out = bytearray(frame)
    if kind == "flip":
        for _ in range(data.draw(st.integers(1, 3))):
            out[data.draw(st.integers(0, len(out) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "cut":
        del out[data.draw(st.integers(0, len(out) - 1)) :]
    else:
        out += data.draw(st.binary(min_size=1, max_size=3))
    return kind, bytes(out)
