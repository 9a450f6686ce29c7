"""Which transaction each batch of a round belongs to, and its outcome (X-1 … X-7).

The counterpart of Kafka's CleanedTransactionMetadata.

Headers and markers suffice: a producer's transactional batches up to its next marker are one
transaction, and the marker has the outcome. For a transaction that ends above the round, the plan
has the outcome. `.txnindex` files are not read, so a missing or wrong one does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.layout import CONTROL, TRANSACTIONAL
from lapse.kernels.markers import ABORT, OTHER, marker_types
from lapse.log.txn_index import AbortedTxn

NO_TXN = -1
_KINDS = TRANSACTIONAL | CONTROL


@dataclass(frozen=True, slots=True, eq=False)
class SegmentTxns:
    """The batches of one segment, by their place in it.

    Attributes:
        txns: int32[batches], number of its transaction in the round, -1 for none.
        aborted: bool[batches], data of an aborted transaction.
        undecided: bool[batches], data of a transaction whose outcome is unknown: it stays and is
            not mapped, as its records may not supersede anything yet.
        unmapped: bool[batches], data that is not mapped: aborted or undecided.
        types: uint8[batches], ABORT, COMMIT or OTHER; OTHER for a batch that is no control batch.
    """

    txns: NDArray[np.int32]
    aborted: NDArray[np.bool_]
    undecided: NDArray[np.bool_]
    unmapped: NDArray[np.bool_]
    types: NDArray[np.uint8]

    @staticmethod
    def none(count: int) -> SegmentTxns:
        """For `count` batches without transactions, or where they do not matter, as in a trim."""
        return SegmentTxns(
            np.full(count, NO_TXN, np.int32), np.zeros(count, np.bool_), np.zeros(count, np.bool_),
            np.zeros(count, np.bool_), np.full(count, OTHER, np.uint8),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class RoundTxns:
    """All transactions that batches of the round belong to.

    Attributes:
        segments: the batches of each segment, in the order given.
        first_offsets: int64[transactions], of the first batch, or of the marker if there is none.
        observed: uint8[transactions], 1 if any data batch is there, emptied ones included.
        entries: under Kafka's rules, the index entry for an ABORT marker that stays, by its offset.
    """

    segments: tuple[SegmentTxns, ...]
    first_offsets: NDArray[np.int64]
    observed: NDArray[np.uint8]
    entries: Mapping[int, AbortedTxn] = field(default_factory=dict)


def no_transactions(counts: Sequence[int]) -> RoundTxns:
    """Of segments with so many batches."""
    segments = tuple(SegmentTxns.none(count) for count in counts)
    return RoundTxns(segments, np.zeros(0, np.int64), np.zeros(0, np.uint8))


def types_of(data: NDArray[np.uint8], rows: NDArray[np.void]) -> tuple[NDArray[np.uint8], int]:
    """The marker type of each control batch; and the first that does not parse, or -1."""
    types = np.full(len(rows), OTHER, np.uint8)
    control = np.flatnonzero(rows["attributes"] & CONTROL)
    found = np.empty(len(control), np.uint8)
    read = marker_types(data, rows[control], found)
    if read < len(control):
        return types, int(control[read])
    types[control] = found
    return types, -1


def fold(
    segments: Sequence[tuple[NDArray[np.void], NDArray[np.uint8]]],
    outcomes: Mapping[int, bool],
) -> RoundTxns:
    """Fold (rows, types) of each segment, ascending; `outcomes` are of transactions ending later.

    A round ends below the last stable offset, so that each transaction's outcome is known; data of
    a transaction whose outcome is unknown for any reason is undecided.
    """
    mine = [
        np.flatnonzero((rows["attributes"] & _KINDS == TRANSACTIONAL) | (types != OTHER))
        for rows, types in segments
    ]
    rows = np.concatenate([rows[at] for (rows, _), at in zip(segments, mine, strict=True)])
    types = np.concatenate([types[at] for (_, types), at in zip(segments, mine, strict=True)])
    if not len(rows):
        return no_transactions([len(rows) for rows, _ in segments])
    order = np.argsort(rows["producer_id"], kind="stable")
    ends = types[order]
    first = np.ones(len(rows), np.bool_)  # of its transaction: another producer, or after a marker
    producers = rows["producer_id"][order]
    first[1:] = (producers[1:] != producers[:-1]) | (ends[:-1] != OTHER)
    txn = np.cumsum(first) - 1
    last = rows[order][np.append(np.flatnonzero(first)[1:], len(rows)) - 1]
    ended = ends[np.append(np.flatnonzero(first)[1:], len(rows)) - 1]
    aborted, observed = _how_they_ended(last, ended, outcomes), np.zeros(len(last), np.uint8)
    observed[txn[ends == OTHER]] = 1
    txns = np.empty(len(rows), np.int32)
    txns[order] = txn
    undecided = (ended == OTHER) & ~np.isin(last["producer_id"], list(outcomes))
    is_data = types == OTHER
    either = aborted | undecided
    per_batch = (txns, *(of_txn[txns] & is_data for of_txn in (aborted, undecided, either)))
    found = _by_segment(segments, mine, per_batch)
    return RoundTxns(found, rows["base_offset"][order][first], observed)


def _how_they_ended(
    last: NDArray[np.void], ended: NDArray[np.uint8], outcomes: Mapping[int, bool]
) -> NDArray[np.bool_]:
    """Which transactions are aborted, from the last batch of each and its marker type."""
    aborts = [producer_id for producer_id, committed in outcomes.items() if not committed]
    above = (ended == OTHER) & np.isin(last["producer_id"], aborts)
    found: NDArray[np.bool_] = (ended == ABORT) | above
    return found


def _by_segment(
    segments: Sequence[tuple[NDArray[np.void], NDArray[np.uint8]]],
    places: Sequence[NDArray[np.int64]],
    per_batch: tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.bool_]],
) -> tuple[SegmentTxns, ...]:
    """From the batches of transactions, segment after segment, to all batches."""
    cuts = np.cumsum([len(at) for at in places])[:-1]
    txns, aborted, undecided, unmapped = (np.split(values, cuts) for values in per_batch)
    return tuple(
        SegmentTxns(
            _spread(len(rows), at, txns[n], NO_TXN),
            _spread(len(rows), at, aborted[n], 0),
            _spread(len(rows), at, undecided[n], 0),
            _spread(len(rows), at, unmapped[n], 0),
            types,
        )
        for n, ((rows, types), at) in enumerate(zip(segments, places, strict=True))
    )


def _spread(size: int, at: NDArray[np.int64], values: NDArray[Any], elsewhere: int) -> NDArray[Any]:
    out = np.full(size, elsewhere, values.dtype)
    out[at] = values
    return out
