"""The batches of both sides, each beside what has become of it.

Batches are never merged or split, so a batch of v2 is found again by its offsets; a v0 or v1
message was upgraded to a batch that spans what is left of it (F-3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lapse.lifecycle.verify.files import Batch, LogFiles, Tick, batches
from lapse.lifecycle.verify.findings import Findings


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A batch before and after; None on the side where there is none."""

    before: Batch | None
    after: Batch | None


def pairs(before: LogFiles, after: LogFiles, tick: Tick, findings: Findings) -> Iterator[Pair]:
    """All pairs, ascending; batches appended since are left out. Raises CorruptData."""
    old = batches(before, tick)
    current, low = next(old, None), 0
    for batch in _in_order(after, tick, findings):
        base, last = batch.head.base_offset, batch.head.last_offset
        while current is not None and current.head.last_offset < base:
            yield Pair(current, None)
            low, current = current.head.last_offset + 1, next(old, None)
        if current is None and base >= low:
            return  # appended since
        if current is None or not _is_of(batch, current, low):
            findings.add("F-3", base, f"a batch {base}–{last} that was not there before")
            yield Pair(None, batch)
            continue
        yield Pair(current, batch)
        low, current = current.head.last_offset + 1, next(old, None)
    while current is not None:
        yield Pair(current, None)
        current = next(old, None)


def _is_of(batch: Batch, before: Batch, low: int) -> bool:
    head = before.head
    if head.magic == 2:
        return (head.base_offset, head.last_offset) == (
            batch.head.base_offset, batch.head.last_offset,
        )  # fmt: skip
    return low <= batch.head.base_offset and batch.head.last_offset <= head.last_offset


def _in_order(log: LogFiles, tick: Tick, findings: Findings) -> Iterator[Batch]:
    """Batches of the log; those that do not ascend are reported and left out."""
    reached = -1
    for batch in batches(log, tick):
        head, segment = batch.head, batch.segment
        inside = segment.base_offset <= head.last_offset < segment.next_base
        if head.base_offset <= reached or head.base_offset > head.last_offset or not inside:
            where = f"segment {segment.base_offset}, byte {head.position}"
            findings.add("G-3", head.base_offset, f"offsets do not ascend in {where}")
            continue
        reached = head.last_offset
        yield batch
