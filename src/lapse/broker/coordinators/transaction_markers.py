"""Writing transaction markers: the control batches by which a transaction ends where it wrote.

Used by the transaction coordinator and by WriteTxnMarkers. Markers for `__consumer_offsets` go
through the group coordinator, which must learn in the order of the log that offsets take effect;
one worker thread appends all other markers, log after log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.coordinators.coordinator_log import Parts, Writer
from lapse.broker.coordinators.groups import OFFSETS_TOPIC, GroupCoordinator
from lapse.broker.logs.faults import code_of
from lapse.log.markers import EndMarker

Results = dict[TopicPartition, ErrorCode]


class MarkerWriter:
    """Writes markers into the logs of this broker."""

    def __init__(self, parts: Parts, groups: GroupCoordinator) -> None:
        self._parts, self._groups = parts, groups

    async def write(
        self, writer: Writer, marker: EndMarker, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Write a marker to each partition; returns their errors: NONE where it is in the log."""
        targets = list(partitions)
        offsets = [tp for tp in targets if tp.topic == OFFSETS_TOPIC]
        others = [tp for tp in targets if tp.topic != OFFSETS_TOPIC]
        ended = (self._groups.end_transaction(tp.partition, writer, marker) for tp in offsets)
        results = dict(zip(offsets, await asyncio.gather(*ended), strict=True))
        if others:
            results |= await self._parts.disk.run(self._append, writer, marker, others)
        for tp, error in results.items():
            if error is ErrorCode.NONE:
                self._parts.purgatory.changed(tp)  # the last stable offset moved
        return results

    def _append(
        self, writer: Writer, marker: EndMarker, partitions: Sequence[TopicPartition]
    ) -> Results:
        """In a worker thread."""
        return {tp: self._append_to(tp, writer, marker) for tp in partitions}

    def _append_to(self, tp: TopicPartition, writer: Writer, marker: EndMarker) -> ErrorCode:
        try:
            log = self._parts.partitions.get(tp)
            log.append_marker(
                writer.producer_id,
                writer.producer_epoch,
                marker.commit,
                marker.coordinator_epoch,
                leader_epoch=log.leader_epoch,
                now_ms=self._parts.clock.now_ms(),
            )
        except Exception as e:  # noqa: BLE001  (it is logged there)
            self._parts.partitions.append_failures.note(tp, "a transaction's marker", e)
            return code_of(self._parts.partitions, tp, "WriteTxnMarkers", e)
        return ErrorCode.NONE
