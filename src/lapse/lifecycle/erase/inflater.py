"""Inflates compressed batches one after the other into a buffer that is reused.

So one kernel call looks through many batches: a batch of some KB inflates in less time than such a
call takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.layout import CODEC_MASK, HEADER_SIZE
from lapse.records.batch import as_array
from lapse.records.compression import BadCompression, Spans, inflate_and_tell

ROOM_BYTES = 1 << 20
_ROOM_LEFT_MIN = 256 << 10  # what does not fit is inflated twice


@dataclass(frozen=True, slots=True, eq=False)
class Inflated:
    """Some batches' records: those of batch which[n] are plain[starts[n]:ends[n]].

    Attributes:
        unread: by number in `which`: byte ranges of the data that could be anything.
    """

    which: list[int]
    plain: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    unread: dict[int, Spans]


@dataclass(frozen=True, slots=True)
class Refused:
    """A batch that does not inflate, and why."""

    which: int
    reason: str


class Inflater:
    """Owns the buffer, which holds the records it yielded last."""

    def __init__(self) -> None:
        self._room: NDArray[np.uint8] | None = None

    def inflate(
        self, data: NDArray[np.uint8], rows: NDArray[np.void]
    ) -> Iterator[Inflated | Refused]:
        """All of `rows`, compressed v2 batches in `data`, some at a time."""
        if self._room is None:
            self._room = np.empty(ROOM_BYTES, np.uint8)
        room, held, ends = self._room, list[int](), list[int]()
        unread: dict[int, Spans] = {}
        fields = (rows[name].tolist() for name in ("position", "size", "attributes"))
        for n, (position, size, attributes) in enumerate(zip(*fields, strict=True)):
            if held and len(room) - ends[-1] < _ROOM_LEFT_MIN:
                yield _laid(held, room, ends, unread)
                held, ends, unread = [], [], {}
            target = room[ends[-1] if held else 0 :]
            start = position + HEADER_SIZE
            payload = data[start : position + size]
            try:
                plain, spans = inflate_and_tell(attributes & CODEC_MASK, payload, target)
            except BadCompression as e:
                yield Refused(n, str(e))
                continue
            unread_here = {n: tuple((start + a, start + b) for a, b in spans)} if spans else {}
            if len(plain) > len(target):  # it has memory of its own
                yield _laid([n], plain, [len(plain)], unread_here)
                continue
            unread |= unread_here
            ends.append((ends[-1] if held else 0) + len(plain))
            held.append(n)
        if held:
            yield _laid(held, room, ends, unread)


def _laid(
    held: list[int], plain: NDArray[np.uint8], ends: list[int], unread: dict[int, Spans]
) -> Inflated:
    starts = np.array([0, *ends[:-1]], np.int64)
    return Inflated(held, as_array(plain[: ends[-1]]), starts, np.array(ends, np.int64), unread)
