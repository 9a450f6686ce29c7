"""Questions about leader epochs, and a log as a Kafka with several leaders leaves it."""

from __future__ import annotations

from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.wire.schema.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

T0 = TopicPartition("t", 0)
EPOCHS = (2, 2, 5)  # of the batches, two records each, at 100, 200, ... ms
CURRENT = 5


def led_before(node: Node, partition: TopicPartition = T0) -> None:
    """What is in an empty log from here on was written by leaders of these epochs."""
    log = node.services.partitions.get(partition)
    for n, epoch in enumerate(EPOCHS):
        records = [NewRecord(b"k", b"v", 200 * n + 100 * m) for m in (1, 2)]
        spec = BatchSpec(base_offset=log.log_end_offset, leader_epoch=epoch)
        log.append_raw(build_batch(records, spec))


def epoch_request(*asked: tuple[int, int], topic: str = "t", current: int = -1) -> (
    OffsetForLeaderEpochRequest
):  # fmt: skip
    """Of (partition, leader epoch) pairs of one topic."""
    partitions = tuple(
        OffsetForLeaderPartition(partition=n, leader_epoch=epoch, current_leader_epoch=current)
        for n, epoch in asked
    )
    topics = (OffsetForLeaderTopic(topic=topic, partitions=partitions),)
    return OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)


async def epoch_ends(
    connection: BrokerConnection, request: OffsetForLeaderEpochRequest, version: int = 4
) -> list[EpochEndOffset]:
    """Answers for all partitions, in order."""
    answer = await connection.request(request, OffsetForLeaderEpochResponse, version=version)
    return [partition for topic in answer.topics for partition in topic.partitions]
