"""What a producer of v0 or v1 sent, for a topic of the same format: stored as it came (KIP-32).

Only what the broker has to say is written into it. In v1 that is offsets and times: a wrapper says
both for the messages inside, which count from 0 and keep their create times, so that it is inflated
once, to be judged, and never deflated. Messages inside a v0 wrapper have their offsets themselves:
one inflate, one deflate. Whatever is sent in an odd way goes by `convert` instead.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.layout import (
    BASE_OFFSET,
    CODEC_MASK,
    LEGACY_ATTRIBUTES,
    LEGACY_CRC,
    LOG_APPEND_TIME,
    MAGIC,
    V1_TIMESTAMP,
)
from lapse.records.batch import as_array
from lapse.records.compression import has_linked_blocks
from lapse.records.layout import NO_TIMESTAMP, Codec
from lapse.records.legacy import decode_plain, decode_sent, wrapped, wrapped_payload

_put_i64: Callable[..., None] = struct.Struct(">q").pack_into
_put_u32: Callable[..., None] = struct.Struct(">I").pack_into


@dataclass(frozen=True, slots=True, eq=False)
class AsSent:
    """One message set of v0 or v1, read and not yet judged.

    Attributes:
        data: the set: one wrapper, or messages that are in none.
        positions, sizes: where they lie in it.
        plain: what `records` point into: `data`, or what was in the wrapper.
        type_bit: LogAppendTime where some message says that its time is one.
        records: RECORD rows; `timestamp_delta` is the create time, -1 in v0.
    """

    magic: int
    codec: Codec
    type_bit: int
    data: memoryview
    positions: NDArray[np.int64]
    sizes: NDArray[np.int32]
    plain: NDArray[np.uint8]
    records: NDArray[np.void]

    @property
    def attributes(self) -> int:
        """Of all its messages and wrappers together."""
        return self.codec | self.type_bit

    @property
    def is_wrapped(self) -> bool:
        return self.codec is not Codec.NONE

    def placed(self, base_offset: int, append_time_ms: int) -> bytearray:
        """The bytes to be stored from `base_offset` on; -1 keeps the create times."""
        if self.is_wrapped and self.magic == 0:
            return self._wrapped_anew(base_offset)
        out = bytearray(self.data)
        ends = self.positions + self.sizes
        firsts = [base_offset + len(self.records) - 1] if self.is_wrapped else None
        greatest = int(self.records["timestamp_delta"].max())
        for n, (start, end) in enumerate(zip(self.positions.tolist(), ends.tolist(), strict=True)):
            _put_i64(out, start + BASE_OFFSET, firsts[n] if firsts else base_offset + n)
            if self.magic == 1:
                own_ms = greatest if firsts else int(self.records["timestamp_delta"][n])
                _set_time(out, start, end, own_ms, append_time_ms)
        return out

    def _wrapped_anew(self, base_offset: int) -> bytearray:
        """v0: each message inside has its own offset, which its checksum does not cover."""
        inner = bytearray(self.plain)
        for n, start in enumerate(self.records["position"].tolist()):
            _put_i64(inner, start + BASE_OFFSET, base_offset + n)
        last = base_offset + len(self.records) - 1
        return bytearray(wrapped(inner, last, NO_TIMESTAMP, 0, self.codec, 0))


def as_sent(data: memoryview, rows: NDArray[np.void], where: str) -> AsSent | None:
    """The set, whose `rows` of BATCH are of one format; None where it cannot stay as it is.

    That is where there is more than one wrapper, and where a v1 wrapper does not count from 0 or
    has LZ4 blocks that Java does not read. Raises CorruptData.
    """
    codecs = {int(row["attributes"]) & CODEC_MASK for row in rows}
    if codecs != {Codec.NONE} and len(rows) > 1:
        return None
    buf, magic = as_array(data), int(rows[0]["magic"])
    if codecs == {Codec.NONE}:
        plain, records = buf, decode_plain(buf, 0, len(buf), magic, where)
    else:
        plain, records = decode_sent(buf, rows[0], where)
    type_bit = int(np.bitwise_or.reduce(rows["attributes"])) & LOG_APPEND_TIME * magic
    found = AsSent(
        magic, Codec(codecs.pop()), type_bit, data, rows["position"].astype(np.int64),
        rows["size"].astype(np.int32), plain, records,
    )  # fmt: skip
    if found.is_wrapped and magic == 1:
        counts = np.array_equal(records["offset_delta"], np.arange(len(records)))
        linked = found.codec is Codec.LZ4 and has_linked_blocks(wrapped_payload(buf, rows[0]))
        return found if counts and not linked else None
    return found


def _set_time(out: bytearray, start: int, end: int, own_ms: int, append_time_ms: int) -> None:
    """T-3, T-4, T-12: a message's time and what kind it is, with the checksum over both."""
    at = start + LEGACY_ATTRIBUTES
    is_append = append_time_ms >= 0
    out[at] = out[at] & ~LOG_APPEND_TIME | LOG_APPEND_TIME * is_append
    _put_i64(out, start + V1_TIMESTAMP, append_time_ms if is_append else own_ms)
    _put_u32(out, start + LEGACY_CRC, zlib.crc32(memoryview(out)[start + MAGIC : end]))
