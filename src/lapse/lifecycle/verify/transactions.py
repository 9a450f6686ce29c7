"""How each transaction of a log ended, according to its markers (X-1 … X-7).

The markers are the only authority here: transaction indexes are what is checked against them.
Producers' last batches (P-1) are folded on the way, since both need nothing but headers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field

from lapse.kernels.layout import TRANSACTIONAL
from lapse.lifecycle.verify.files import Batch
from lapse.log.markers import EndMarker

_SEQUENCE_WRAP = 1 << 31


@dataclass(slots=True)
class EndedTransaction:
    """A marker and what it ends; `batches` counts those of its data that are there."""

    producer_id: int
    marker_offset: int
    committed: bool
    batches: int


@dataclass(frozen=True, slots=True)
class LastBatch:
    """What a broker that replays the log knows of a producer (P-1).

    Attributes:
        sequence, offset: of its last data batch in that epoch; -1 where there is none.
        seen_ms: greatest time of the last batch, by which it expires.
        bare: that batch is a marker's bare header, which a replay passes over (W-7).
    """

    epoch: int
    sequence: int
    offset: int
    seen_ms: int
    bare: bool = False


@dataclass(slots=True)
class Transactions:
    """The transactions and producers of one log, from its headers and markers.

    Attributes:
        log_start: what lies wholly below it is of no transaction: the marker may have gone with
            the records, and Kafka replays from there on.
        ended: by marker offset; ascending as they were added.
        open: producer id → (offset of the first batch, batches) of transactions without a marker.
        producers: producer id → its last batch.
    """

    log_start: int = 0
    ended: dict[int, EndedTransaction] = field(default_factory=dict)
    open: dict[int, tuple[int, int]] = field(default_factory=dict)
    producers: dict[int, LastBatch] = field(default_factory=dict)
    _markers: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, batch: Batch) -> None:
        """Account for the next batch. Raises CorruptData where a marker does not parse."""
        head = batch.head
        if batch.is_control:
            self._add_control(batch, batch.marker())
            return
        if head.magic < 2 or head.producer_id < 0:
            return
        sequence = (head.base_sequence + head.last_offset - head.base_offset) % _SEQUENCE_WRAP
        self.producers[head.producer_id] = LastBatch(
            head.producer_epoch, sequence, head.last_offset, head.max_timestamp
        )
        if self.has(batch):
            first, count = self.open.get(head.producer_id, (head.base_offset, 0))
            self.open[head.producer_id] = first, count + 1

    def _add_control(self, batch: Batch, marker: EndMarker | None) -> None:
        head = batch.head
        if head.producer_id < 0:
            return
        last = self.producers.get(head.producer_id)
        if last is None or last.epoch != head.producer_epoch:
            last = LastBatch(head.producer_epoch, -1, -1, head.max_timestamp)
        self.producers[head.producer_id] = LastBatch(
            last.epoch, last.sequence, last.offset, head.max_timestamp, head.count == 0
        )
        if marker is not None:
            offset = head.base_offset
            _, count = self.open.pop(head.producer_id, (offset, 0))
            self.ended[offset] = EndedTransaction(head.producer_id, offset, marker.commit, count)
            self._markers[head.producer_id].append(offset)

    def has(self, batch: Batch) -> bool:
        """Whether data is of a transaction, be it but an emptied batch."""
        head = batch.head
        is_of_one = head.magic == 2 and bool(head.attributes & TRANSACTIONAL)
        return is_of_one and head.last_offset >= self.log_start

    def outcome(self, head_offset: int, producer_id: int) -> EndedTransaction | None:
        """How the transaction of a producer's data at an offset ended; None while it is open."""
        markers = self._markers.get(producer_id, [])
        at = bisect_right(markers, head_offset)
        return self.ended[markers[at]] if at < len(markers) else None

    def commits_between(self, producer_id: int, first: int, last: int) -> int | None:
        """A commit of the producer in offsets first..last, None if there is none."""
        for offset in self._markers.get(producer_id, []):
            if first <= offset <= last and self.ended[offset].committed:
                return offset
        return None
