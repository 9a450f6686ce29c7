"""How Kafka's cleaner treats transactions, for `--kafka-exact`: X-1 … X-7 as Kafka does them.

Kafka uses the aborts listed in its indexes, and not markers alone: an entry is in force from its
first offset until the next ABORT marker of its producer, whichever transaction that marker ends;
data whose abort no index lists counts as committed. So an entry that was lost, or whose marker is
gone or is not read, changes the verdict on a producer's other data. Lapse determines the outcome of
each transaction (`transactions.fold`).
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.layout import CONTROL, TRANSACTIONAL
from lapse.kernels.markers import ABORT, COMMIT, OTHER
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.source import SourceSegment, marker_types_of
from lapse.lifecycle.round.transactions import NO_TXN, RoundTxns, SegmentTxns
from lapse.log.offset_index import OffsetIndex, read_entries
from lapse.log.segment import INDEX, TXN_INDEX, base_offset_of, segment_path
from lapse.log.txn_index import AbortedTxn, parse_entries


@dataclass(frozen=True, slots=True)
class Read:
    """The part of a segment that Kafka's cleaner reads.

    Attributes:
        rows, types: the segment's batches, and the types of its control batches.
        first: the batch at which the cleaner begins.
        listed: the aborts that the cleaner looks up before (`listed_for`).
    """

    rows: NDArray[np.void]
    types: NDArray[np.uint8]
    first: int
    listed: Sequence[AbortedTxn]


@dataclass(frozen=True, slots=True)
class SegmentTransactions:
    """The cleaner's judgement on the batches of one segment.

    Attributes:
        aborted: bool[batches], data of an aborted transaction.
        spent: bool[batches], markers that the cleaner considers no longer needed.
        entries: by the offset of an ABORT marker that stays, the entry for the new index.
    """

    aborted: NDArray[np.bool_]
    spent: NDArray[np.bool_]
    entries: Mapping[int, AbortedTxn]


@dataclass(slots=True)
class _Metadata:
    """Kafka's CleanedTransactionMetadata."""

    listed: list[tuple[int, int, AbortedTxn]] = field(default_factory=list)
    committed: set[int] = field(default_factory=set)
    aborted: dict[int, AbortedTxn] = field(default_factory=dict)
    observed: set[int] = field(default_factory=set)  # aborted ones of which data was read
    added: int = 0

    def add(self, entries: Iterable[AbortedTxn]) -> None:
        for entry in entries:
            self.added += 1  # for ties, the entry added first
            heapq.heappush(self.listed, (entry.first_offset, self.added, entry))

    def take_up_to(self, offset: int) -> None:
        while self.listed and self.listed[0][0] <= offset:
            entry = heapq.heappop(self.listed)[2]
            self.aborted.setdefault(entry.producer_id, entry)

    def read_data(self, producer_id: int) -> bool:
        """Whether the batch is data of an aborted transaction."""
        if producer_id in self.aborted:
            self.observed.add(producer_id)
            return True
        self.committed.add(producer_id)
        return False

    def read_marker(self, producer_id: int, kind: int) -> tuple[bool, AbortedTxn | None]:
        """Whether a marker is spent; and the index entry of an ABORT marker that is not."""
        if kind == COMMIT:
            spent = producer_id not in self.committed
            self.committed.discard(producer_id)
            return spent, None
        if kind != ABORT:
            return False, None
        entry = self.aborted.pop(producer_id, None)
        if entry is None or producer_id not in self.observed:
            return True, None
        self.observed.discard(producer_id)
        return False, entry


def replay(reads: Sequence[Read]) -> list[SegmentTransactions]:
    """The cleaner's judgement on segments that it reads one after the other."""
    metadata = _Metadata()
    return [_replay(metadata, read) for read in reads]


def _replay(metadata: _Metadata, read: Read) -> SegmentTransactions:
    rows, types = read.rows, read.types
    judged = SegmentTransactions(np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_), {})
    metadata.add(read.listed)
    entries: dict[int, AbortedTxn] = {}
    for b in np.flatnonzero(rows["attributes"] & (TRANSACTIONAL | CONTROL)).tolist():
        if b < read.first:
            continue
        row = rows[b]
        producer_id, last_offset = int(row["producer_id"]), int(row["last_offset"])
        metadata.take_up_to(last_offset)
        if not int(row["attributes"]) & CONTROL:
            judged.aborted[b] = metadata.read_data(producer_id)
        elif row["count"]:
            judged.spent[b], entry = metadata.read_marker(producer_id, int(types[b]))
            if entry is not None:
                entries[last_offset] = entry
        else:
            judged.spent[b] = True
    return SegmentTransactions(judged.aborted, judged.spent, entries)


def listed_for(
    indexes: Sequence[Sequence[AbortedTxn]], log_start: int, upper: int
) -> list[AbortedTxn]:
    """Kafka's collectAbortedTransactions: from the index of one segment on, and of those above.

    Kafka bounds them by the log start, not by where the cleaner begins to read.
    """
    found = []
    for index in indexes:
        for entry in index:
            if entry.last_offset >= log_start and entry.first_offset < upper:
                found.append(entry)
            if entry.last_stable_offset >= upper:
                return found
    return found


def as_round(
    judged: Sequence[SegmentTransactions],
    mapped: Sequence[NDArray[np.bool_]],
    types: Sequence[NDArray[np.uint8]],
) -> RoundTxns:
    """The result as RoundTxns: each marker is one transaction, observed unless it is spent.

    `mapped`: per segment, data that counts as aborted when the map is built.
    """
    segments, observed, count = [], [], 0
    entries: dict[int, AbortedTxn] = {}
    for one, unmapped, kinds in zip(judged, mapped, types, strict=True):
        markers = np.flatnonzero(kinds != OTHER)
        txns = np.full(len(kinds), NO_TXN, np.int32)
        txns[markers] = np.arange(count, count + len(markers))
        count += len(markers)
        observed.append((~one.spent[markers]).astype(np.uint8))
        nothing = np.zeros(len(kinds), np.bool_)
        segments.append(SegmentTxns(txns, one.aborted, nothing, unmapped, kinds))
        entries |= one.entries
    seen = np.concatenate(observed)
    return RoundTxns(tuple(segments), np.zeros(len(seen), np.int64), seen, entries)


def kafkas_transactions(plan: RoundPlan, segments: Sequence[SourceSegment]) -> RoundTxns:
    """M-2 and X-1 … X-7 as Kafka does them; raises BadSegment, CorruptData."""
    indexes = _indexes(Path(plan.dir))

    def listed(base_offset: int, upper: int) -> list[AbortedTxn]:
        above = [entries for base, entries in indexes if base >= base_offset]
        return listed_for(above, plan.forgotten_below, upper)

    types = [marker_types_of(segment) for segment in segments]
    bases = [segment.plan.base_offset for segment in segments]
    uppers = [*bases[1:], _end_of(segments[-1])]
    reads = [
        Read(segment.rows, kinds, 0, listed(base, upper))
        for segment, kinds, base, upper in zip(segments, types, bases, uppers, strict=True)
    ]
    at = max(bisect_right(bases, plan.dirty) - 1, 0)
    first = Read(
        segments[at].rows, types[at], _first_mapped(segments[at], plan.dirty),
        listed(bases[at], plan.upper),
    )  # fmt: skip
    others = zip(segments[at + 1 :], types[at + 1 :], strict=True)
    dirty = [first, *(Read(segment.rows, kinds, 0, ()) for segment, kinds in others)]
    clean = [np.zeros(len(segment.rows), np.bool_) for segment in segments[:at]]
    return as_round(replay(reads), [*clean, *(judged.aborted for judged in replay(dirty))], types)


def _end_of(segment: SourceSegment) -> int:
    rows = segment.rows
    return int(rows[-1]["last_offset"]) + 1 if len(rows) else segment.plan.base_offset


def _indexes(directory: Path) -> list[tuple[int, list[AbortedTxn]]]:
    """All aborted transactions of a log, by the base offset of the segment."""
    found = []
    for path in sorted(directory.glob(f"*{TXN_INDEX}")):
        base_offset = base_offset_of(path.name)
        if base_offset is not None:
            found.append((base_offset, parse_entries(path.read_bytes(), str(path))))
    return found


def _first_mapped(segment: SourceSegment, dirty: int) -> int:
    """Where Kafka begins to read for its map: where the offset index leads it."""
    base_offset = segment.plan.base_offset
    path = segment_path(segment.path.parent, base_offset, INDEX)
    if not path.exists():
        return 0
    entries = read_entries(path, OffsetIndex.ENTRY.size)
    _, position = OffsetIndex(path, base_offset, entries, from_file=True).entry_before(dirty)
    return int(np.searchsorted(segment.positions, position))
