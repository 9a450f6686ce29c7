"""Batches of a round converted back into the formats of their segment (KIP-32's way back).

A round reads messages of v0 and v1 as v2 batches (`round/upgrade`). While `message.format.version`
is below 0.11 some consumers do not know v2, so old messages must stay old: what the round left
unchanged is taken from the segment, byte for byte, and a wrapper that lost messages is wrapped
anew. Batches of v2 stay v2. The old formats have no empty batch: an emptied batch is removed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lapse.lifecycle.round.source import SourceSegment, Stored
from lapse.records.batch import decode_rows, scan_batches
from lapse.records.convert import to_messages


@dataclass(frozen=True, slots=True, eq=False)
class AsStored:
    """Batches in the formats of their segment.

    Attributes:
        rows: rows of BATCH, as the batches lie in `data`.
        nulls: number of tombstones in batches of old formats.
    """

    data: bytes
    rows: NDArray[np.void]
    nulls: int


def as_stored(
    segment: SourceSegment, stored: Stored, out: NDArray[np.uint8], rows: NDArray[np.void]
) -> AsStored:
    """The batches `rows` in `out`, written by the round from `segment`, in the segment's formats.

    Raises CorruptData.
    """
    at = np.searchsorted(segment.rows["base_offset"], rows["base_offset"])
    source, old = segment.rows[at], segment.old_format[at]
    same = old & (rows["crc"] == source["crc"]) & (rows["size"] == source["size"])
    parts: list[bytes] = []
    found: list[NDArray[np.void]] = []
    nulls = 0
    for lo, hi in _runs(at, old, same):
        if not old[lo]:
            parts.append(_bytes(out, rows[lo], rows[hi - 1]))
            found.append(rows[lo:hi])
        elif same[lo]:
            kept = stored.rows[at[lo] : at[lo] + hi - lo]
            parts.append(_bytes(stored.file.data, kept[0], kept[-1]))
            found.append(kept)
            nulls += int(stored.nulls[at[lo] : at[lo] + hi - lo].sum())
        elif rows[lo]["count"]:
            magic, where = int(stored.rows[at[lo]]["magic"]), str(segment.path)
            parts.append(to_messages(out, rows[lo], magic, where))
            found.append(scan_batches(parts[-1], where, check_crc=False))
            _, records = decode_rows(out, rows[lo], where)
            nulls += int((records["value_length"] < 0).sum())
    if not found:
        return AsStored(b"", rows[:0], 0)
    result = np.concatenate(found)
    result["position"] = np.cumsum(result["size"]) - result["size"]
    return AsStored(b"".join(parts), result, nulls)


def _runs(
    at: NDArray[np.int64], old: NDArray[np.bool_], same: NDArray[np.bool_]
) -> list[tuple[int, int]]:
    """Runs of neighbours to convert together: (first, after); changed batches go one by one."""
    together = (old[1:] == old[:-1]) & (same[1:] == same[:-1]) & (same[1:] | ~old[1:])
    together &= (at[1:] == at[:-1] + 1) | ~old[1:]
    borders = np.flatnonzero(~together) + 1
    return list(zip([0, *borders.tolist()], [*borders.tolist(), len(at)], strict=True))


def _bytes(data: NDArray[np.uint8], first: np.void, last: np.void) -> bytes:
    return data[int(first["position"]) : int(last["position"] + last["size"])].tobytes()
