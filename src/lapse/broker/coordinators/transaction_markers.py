"""Writing transaction markers: the control batches by which a transaction ends where it wrote.

Used by the transaction coordinator and by WriteTxnMarkers. Markers for `__consumer_offsets` go
through the group coordinator, which must learn in the order of the log that offsets take effect;
one worker thread appends all other markers, log after log. What another broker leads is sent to it.
A marker is written once all in-sync replicas have it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.coordinators.coordinator_log import Parts, Writer
from lapse.broker.coordinators.groups import OFFSETS_TOPIC, GroupCoordinator
from lapse.broker.coordinators.late_requests import NewestConnections
from lapse.broker.coordinators.transaction_peers import Results, write_markers_at
from lapse.broker.logs.faults import code_of
from lapse.broker.replicas.peers import Peers
from lapse.broker.replicas.replicas import AppendedTo
from lapse.log.markers import EndMarker

COMMIT_SECONDS = 5.0


class MarkerWriter:
    """Writes markers into the logs of this broker, and has others write into theirs.

    Attributes:
        peers: the other brokers.
        heard: by which connection each producer's coordinator asked for markers here last.
    """

    def __init__(self, parts: Parts, groups: GroupCoordinator, peers: Peers) -> None:
        self._parts, self._groups, self.peers = parts, groups, peers
        self.heard = NewestConnections()

    async def write(
        self, writer: Writer, marker: EndMarker, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Write a marker to each partition; returns their errors: NONE where it is in the log."""
        own, by_broker = self._by_leader(partitions)
        sent = [
            write_markers_at(self.peers, broker, writer, marker, theirs)
            for broker, theirs in by_broker.items()
        ]
        answers = await asyncio.gather(self.write_here(writer, marker, own), *sent)
        results: Results = {}
        for answer in answers:
            results |= answer
        return results

    async def write_here(
        self, writer: Writer, marker: EndMarker, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """The same where another broker asks: what this one does not lead is not handed on.

        Two brokers that take each other for the leader, as they do while leadership moves, would
        wait for each other until time is up, and all else that they ask each other with them.
        """
        wanted = list(partitions)
        offsets = [tp for tp in wanted if tp.topic == OFFSETS_TOPIC]
        others = [tp for tp in wanted if tp.topic != OFFSETS_TOPIC]
        ended = [self._groups.end_transaction(tp.partition, writer, marker) for tp in offsets]
        codes, appended = await asyncio.gather(
            asyncio.gather(*ended), self._append_all(writer, marker, others)
        )
        results = dict(zip(offsets, codes, strict=True)) | appended
        for tp, error in results.items():
            if error is ErrorCode.NONE:
                self._parts.purgatory.changed(tp)  # the last stable offset moved
        return results

    def _by_leader(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[list[TopicPartition], dict[int, list[TopicPartition]]]:
        """Those that this broker leads, and what others lead; nobody's are tried here."""
        own: list[TopicPartition] = []
        others: dict[int, list[TopicPartition]] = {}
        for tp in partitions:
            state = self._parts.partitions.state_of(tp)
            leader = None if state is None else state.leader
            if leader is None or leader in {-1, self._parts.partitions.node_id}:
                own.append(tp)
            else:
                others.setdefault(leader, []).append(tp)
        return own, others

    # --- here -----------------------------------------------------------------------------------

    async def _append_all(
        self, writer: Writer, marker: EndMarker, partitions: Sequence[TopicPartition]
    ) -> Results:
        if not partitions:
            return {}
        results = await self._parts.disk.run(self._append, writer, marker, partitions)
        replicas = self._parts.replicas
        appended = [one for one in results.values() if isinstance(one, AppendedTo)]
        for one in appended:
            replicas.appended(one.partition)
        committed = iter(await replicas.committed(appended, COMMIT_SECONDS))
        return {
            tp: next(committed) if isinstance(one, AppendedTo) else one
            for tp, one in results.items()
        }

    def _append(
        self, writer: Writer, marker: EndMarker, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode | AppendedTo]:
        """In a worker thread."""
        return {tp: self._append_to(tp, writer, marker) for tp in partitions}

    def _append_to(
        self, tp: TopicPartition, writer: Writer, marker: EndMarker
    ) -> ErrorCode | AppendedTo:
        try:
            led = self._parts.partitions.led(tp)
            done = led.log.append_marker(
                writer.producer_id,
                writer.producer_epoch,
                marker.commit,
                marker.coordinator_epoch,
                leader_epoch=led.epoch,
                now_ms=self._parts.clock.now_ms(),
            )
        except Exception as e:  # noqa: BLE001  (it is logged there)
            self._parts.partitions.append_failures.note(tp, "a transaction's marker", e)
            return code_of(self._parts.partitions, tp, "WriteTxnMarkers", e)
        return AppendedTo(tp, led.epoch, done.last_offset + 1)
