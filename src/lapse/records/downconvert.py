"""Batches for a client that cannot read them as they are stored.

Two reasons: the client is older than the format (Fetch 0-1 reads v0, 2-3 reads v1), or it does not
know tombstones that carry a value (KIP-87) and would take one for a live value. Called by
`broker.logs.fetch_records`, only where `reads_all` says no: everything else goes out untouched.

As in Kafka's own down-conversion headers, producers, control batches and leader epochs are dropped,
and a batch keeps its codec. Unlike there, records below the requested offset are left out of
compressed batches too, so that what is converted always lets the client go on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData
from lapse.kernels.layout import CONTROL
from lapse.records.batch import Buffer, as_array, scan_prefix
from lapse.records.convert import CannotSay, to_messages
from lapse.records.tombstone import holds_valued_tombstones, valued_rows, without_values


@dataclass(frozen=True, slots=True)
class Reads:
    """What a client can read of one topic.

    Attributes:
        magic_max: the newest record format, 0 to 2.
        tombstone_values: tombstones that carry a value, or there can be none.
    """

    magic_max: int = 2
    tombstone_values: bool = True


@dataclass(frozen=True, slots=True)
class Converted:
    """What became of some batches.

    Attributes:
        data: whole batches or messages.
        first_size: bytes that the first batch came to.
        next_offset: the first offset above what was converted or dropped.
    """

    data: bytes
    first_size: int
    next_offset: int


EVERYTHING = Reads()


def reads_all(rows: NDArray[np.void], reads: Reads) -> bool:
    """Whether a client can read these batches (rows of BATCH) as they are."""
    magic = rows["magic"]
    if (magic > reads.magic_max).any():
        return False
    return reads.tombstone_values or not bool(valued_rows(rows).any())


def convert_for(
    buffer: Buffer, rows: NDArray[np.void], reads: Reads, offset: int, where: str
) -> Converted:
    """Batches of one buffer as a client can read them, from `offset` on.

    Ends before the first that cannot be converted. Raises what is wrong with that (CannotSay or
    CorruptData) where nothing comes before it. `rows` may not be empty.
    """
    parts: list[bytes | bytearray | memoryview] = []
    next_offset = offset
    for row in rows:
        try:
            part = _one(buffer, row, reads, offset, where)
        except (CannotSay, CorruptData):
            if not parts:
                raise
            break
        if part:
            parts.append(part)
        next_offset = max(next_offset, int(row["last_offset"]) + 1)
    return Converted(b"".join(parts), len(parts[0]) if parts else 0, next_offset)


def _one(
    buffer: Buffer, row: np.void, reads: Reads, offset: int, where: str
) -> bytes | bytearray | memoryview:
    start = int(row["position"])
    stored = as_array(buffer)[start : start + int(row["size"])]
    newer = row["magic"] > reads.magic_max
    if not newer and (reads.tombstone_values or not holds_valued_tombstones(row)):
        return stored.data
    _, _, damage = scan_prefix(stored)
    if damage is not None:  # what is converted gets a checksum that is right
        raise CorruptData(where, start, damage)
    if not newer:
        return without_values(buffer, row, where)
    if int(row["attributes"]) & CONTROL and row["magic"] == 2:
        return b""  # the old formats know no transactions
    return to_messages(
        buffer, row, reads.magic_max, where,
        from_offset=offset, tombstone_values=reads.tombstone_values,
    )  # fmt: skip
