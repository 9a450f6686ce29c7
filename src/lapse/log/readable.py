"""How much of a segment can be read: batches in order whose control batches say what they mean.

Recovery ends a segment where this ends (W-7); a look through a sealed one keeps rounds below that
place (L10). Called by `loader` and `look`, which must not judge one segment differently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData
from lapse.kernels.layout import CONTROL
from lapse.log.headers import read_at, walk
from lapse.log.markers import kind_of, parse_marker
from lapse.log.segment import RELATIVE_OFFSET_MAX
from lapse.log.summary import Marker
from lapse.records.batch import Header, headers_of, scan_batches


@dataclass(frozen=True, slots=True)
class SegmentBytes:
    """A segment's log file, open, as far as it is to be read.

    Attributes:
        next_base: of the segment behind it, before which its offsets end; None without one.
        where: its name, for errors.
        has_copies: what is cut off here is at other brokers.
    """

    fd: int
    size: int
    base_offset: int
    next_base: int | None
    where: str
    has_copies: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Readable:
    """Batches, one at least, as rows of `BATCH`, and what control batches among them say."""

    rows: NDArray[np.void]
    markers: Mapping[int, Marker]

    def marker_of(self, batch: Header) -> Marker:
        """The marker of a control batch that is not emptied."""
        return self.markers[batch.position]


def readable(
    segment: SegmentBytes, *, check_crc: bool = False, check_markers: bool = False
) -> Iterator[Readable]:
    """The batches of a segment, in runs.

    `check_crc` looks at all checksums, `check_markers` at those of control batches. Raises
    CorruptData, with the position in the file, after everything before that was handed out.
    """
    where, end_offset = segment.where, segment.base_offset
    reach = _reach_of(segment)
    for rows in walk(segment.fd, 0, segment.size, where, check_crc=check_crc):
        good = _in_order(rows, end_offset, reach, blames_gaps=segment.has_copies)
        markers, sound, bad = _markers(segment, good, check_crc=check_markers)
        good = good[:sound]
        if len(good):
            yield Readable(good, markers)
            end_offset = int(good["last_offset"][-1]) + 1
        if len(good) < len(rows):
            position = int(rows["position"][len(good)])
            raise CorruptData(where, position, bad or "offsets out of order")


def _reach_of(segment: SegmentBytes) -> int:
    """Where offsets of a segment must end: at the next one, and within what its indexes can say."""
    most = segment.base_offset + RELATIVE_OFFSET_MAX + 1
    return most if segment.next_base is None else min(segment.next_base, most)


def _in_order(
    rows: NDArray[np.void], end_offset: int, reach: int, *, blames_gaps: bool
) -> NDArray[np.void]:
    """The rows up to the first one whose offsets overlap what came before, or go beyond `reach`.

    With `blames_gaps`, of two that overlap the earlier one is wrong if it has left offsets out, and
    the later one would fit in its place: no checksum covers a batch's base offset, and what is
    appended has no gaps. Else it stays: it may be behind a gap that a round has made.
    """
    begins, ends = rows["base_offset"], np.concatenate([[end_offset - 1], rows["last_offset"]])
    overlaps = begins <= ends[:-1]
    wrong = overlaps | (ends[1:] < begins) | (ends[1:] >= reach)
    if not wrong.any():
        return rows
    first = int(np.argmax(wrong))
    if first and overlaps[first] and blames_gaps:
        before = ends[first - 1]
        if begins[first - 1] > before + 1 and before < begins[first] <= ends[first + 1] < reach:
            first -= 1
    return rows[:first]


def _markers(
    segment: SegmentBytes, rows: NDArray[np.void], *, check_crc: bool
) -> tuple[dict[int, Marker], int, str | None]:
    """What control batches say, by position; rows before the first that does not parse; why."""
    found: dict[int, Marker] = {}
    control = (rows["magic"] == 2) & (rows["attributes"] & CONTROL != 0) & (rows["count"] > 0)
    for n in np.flatnonzero(control):
        [batch] = headers_of(rows[n : n + 1])
        data = read_at(segment.fd, batch.position, batch.size)
        try:
            if check_crc:  # a flipped bit would make a commit of an abort
                scan_batches(data, segment.where, check_crc=True)
            found[batch.position] = kind_of(parse_marker(data, segment.where))
        except CorruptData as e:
            return found, int(n), e.reason
    return found, len(rows), None
