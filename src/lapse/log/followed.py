"""Batches that a follower takes over, and what its leader says of them beside their bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from lapse.base.errors import CorruptData
from lapse.log.epochs import NO_EPOCH
from lapse.log.segment import OFFSET_MAX, RELATIVE_OFFSET_MAX
from lapse.records.batch import Header


def with_epochs(rows: list[Header], epochs: Sequence[tuple[int, int]]) -> list[Header]:
    """Batches with the epochs that a leader says of them, where they do not say it themselves."""
    if not epochs or all(row.leader_epoch != NO_EPOCH for row in rows):
        return rows
    starts = [start for _, start in epochs]
    said = [NO_EPOCH, *(epoch for epoch, _ in epochs)]
    return [
        row
        if row.leader_epoch != NO_EPOCH
        else row._replace(leader_epoch=said[bisect_right(starts, row.base_offset)])
        for row in rows
    ]


def require_ascending(
    batches: Sequence[Header], firsts: Sequence[int], expected: int, where: str
) -> None:
    """Raise CorruptData where they do not go on from the `expected` offset, with gaps or without.

    `firsts` are their first offsets.
    """
    for batch, first in zip(batches, firsts, strict=True):
        ascends = expected <= first <= batch.last_offset < OFFSET_MAX
        if not ascends or batch.last_offset - first > RELATIVE_OFFSET_MAX:
            reason = f"offset {first} where {expected} or more is expected"
            raise CorruptData(where, batch.position, reason)
        expected = batch.last_offset + 1


def runs(
    batches: Sequence[Header], firsts: Sequence[int], entries: Sequence[int | None]
) -> Iterator[tuple[int, int]]:
    """Ranges of those appended at one time that fit into a segment, with 32 bits for offsets."""
    begin = 0
    for n, batch in enumerate(batches):
        is_far = batch.last_offset - firsts[begin] > RELATIVE_OFFSET_MAX
        if is_far or entries[n] != entries[begin]:
            yield begin, n
            begin = n
    yield begin, len(batches)
