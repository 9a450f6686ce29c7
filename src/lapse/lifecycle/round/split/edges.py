"""Transactions that cross from one segment of a round into another, folded from receipts.

A task sees one segment or one group, and can judge the transactions within it alone. For those that
cross its borders the driver passes on more: the outcome of a transaction open at the end; and of a
transaction that was open before, where it began and whether any of its data stays. This is worked
out from each segment's `Edge`s: one per producer, however many transactions there are. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.markers import COMMIT, OTHER
from lapse.lifecycle.round.transactions import NO_TXN, RoundTxns, fold


@dataclass(frozen=True, slots=True)
class Edge:
    """The transactions of one producer at the borders of one segment.

    Attributes:
        ends: the marker that ends its first transaction there, ABORT or COMMIT; OTHER without one.
        open_from: first offset there of the transaction open at the segment's end, -1 for none.
    """

    producer_id: int
    ends: int
    open_from: int

    @property
    def spans(self) -> bool:
        """One transaction, open at the end; it may have been open before too."""
        return self.ends == OTHER


@dataclass(frozen=True, slots=True)
class Begun:
    """A transaction that was open before a group.

    Attributes:
        first_offset: of its first batch in the round.
        alive: whether any of its data before the group stays.
    """

    producer_id: int
    first_offset: int
    alive: bool


Outcomes = tuple[tuple[int, bool], ...]  # producer id, whether what is open at the end is committed


def edges_of(rows: NDArray[np.void], types: NDArray[np.uint8]) -> tuple[Edge, ...]:
    """Of one segment: its batches, and what its control batches say."""
    folded = fold([(rows, types)], {})
    firsts, lasts = _firsts_and_lasts(rows["producer_id"], folded.segments[0].txns)
    txns = folded.segments[0].txns
    ended = np.full(len(folded.first_offsets), OTHER, np.uint8)
    marked = np.flatnonzero((types != OTHER) & (txns != NO_TXN))
    ended[txns[marked]] = types[marked]
    return tuple(
        Edge(
            producer_id, int(ended[first]),
            int(folded.first_offsets[lasts[producer_id]])
            if ended[lasts[producer_id]] == OTHER else -1,
        )
        for producer_id, first in firsts.items()
    )  # fmt: skip


def _firsts_and_lasts(
    producers: NDArray[np.int64], txns: NDArray[np.int32]
) -> tuple[dict[int, int], dict[int, int]]:
    """The first and the last transaction of each producer, which are numbered in order."""
    mine = txns != NO_TXN
    if not mine.any():
        return {}, {}
    order = np.lexsort((txns[mine], producers[mine]))
    ids, numbers = producers[mine][order], txns[mine][order]
    found, at = np.unique(ids, return_index=True)
    after = np.append(at[1:], len(ids)) - 1
    return (
        dict(zip(found.tolist(), numbers[at].tolist(), strict=True)),
        dict(zip(found.tolist(), numbers[after].tolist(), strict=True)),
    )


def outcomes_after(edges: Sequence[Iterable[Edge]], above: Mapping[int, bool]) -> list[Outcomes]:
    """For each segment, how what is open at its end ends: further on in the round, or `above`."""
    fates = dict(above)
    found: list[Outcomes] = []
    for segment in reversed(edges):
        found.append(
            tuple(
                (e.producer_id, fates[e.producer_id])
                for e in segment
                if e.open_from >= 0 and e.producer_id in fates
            )
        )
        fates |= {e.producer_id: e.ends == COMMIT for e in segment if not e.spans}
    return found[::-1]


class Openings:
    """What is open, walked forward over the segments of a round."""

    def __init__(self) -> None:
        self._open: dict[int, Begun] = {}

    def before(self, group: Sequence[Iterable[Edge]]) -> tuple[Begun, ...]:
        """What was open before these segments, of producers that are in them."""
        seen = {e.producer_id for segment in group for e in segment}
        return tuple(self._open[p] for p in sorted(seen) if p in self._open)

    def take(self, segment: Iterable[Edge], staying: frozenset[int] | None) -> None:
        """Go on behind a segment.

        `staying`: producers of which some data of the transaction open at its end stays; None if
        all of the segment does.
        """
        for e in segment:
            before = self._open.pop(e.producer_id, None)
            if e.open_from < 0:
                continue
            stays = staying is None or e.producer_id in staying
            if e.spans and before is not None:
                first_offset, stays = before.first_offset, stays or before.alive
            else:
                first_offset = e.open_from
            self._open[e.producer_id] = Begun(e.producer_id, first_offset, stays)


def outcomes_of_group(edges: Sequence[Iterable[Edge]], outcomes: Sequence[Outcomes]) -> Outcomes:
    """From those after each segment of a group: of a producer the last one that has it says all.

    That may be nothing, although an earlier segment knew how another transaction of it ends.
    """
    merged: dict[int, bool] = {}
    for segment, after in zip(edges, outcomes, strict=True):
        for e in segment:
            merged.pop(e.producer_id, None)
        merged |= dict(after)
    return tuple(merged.items())


def continue_begun(
    found: RoundTxns, rows: Sequence[NDArray[np.void]], begun: Iterable[Begun],
    alive: NDArray[np.uint8],
) -> None:  # fmt: skip
    """Make the first transaction of each such producer in a group that which was open before."""
    producers = np.concatenate([r["producer_id"] for r in rows])
    txns = np.concatenate([s.txns for s in found.segments])
    firsts, _ = _firsts_and_lasts(producers, txns)
    for before in begun:
        number = firsts.get(before.producer_id)
        if number is not None:
            found.first_offsets[number] = before.first_offset
            alive[number] |= before.alive


def open_at_end(
    rows: NDArray[np.void], txns: NDArray[np.int32], edges: Iterable[Edge]
) -> dict[int, int]:
    """(producer id → number of its transaction) of those that are open at a segment's end."""
    _, lasts = _firsts_and_lasts(rows["producer_id"], txns)
    return {e.producer_id: lasts[e.producer_id] for e in edges if e.open_from >= 0}
