"""OffsetForLeaderEpoch (key 23): where a leader epoch ended in a partition (KIP-101, KIP-320).

Needs DESCRIBE topic, or CLUSTER_ACTION cluster.

Behaviour: consumers send the epoch of the record before their position, and go back, or reset
their position, where the epoch ended below it. The response has the largest epoch that is not above
the requested one, and the offset after its last; for the current epoch that is the log's end, above
the high watermark too. An epoch above all known ones: -1, -1. Another `current_leader_epoch` than
the broker's is FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH; -1 is not checked. A partition that is
led elsewhere is NOT_LEADER_OR_FOLLOWER, one that does not exist UNKNOWN_TOPIC_OR_PARTITION, one
whose log is offline KAFKA_STORAGE_ERROR. Replica ids change nothing.

v2 the oldest · v3 replica id · v4 flexible.
"""

from __future__ import annotations

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.logs.leader_epochs import check_leader_epoch
from lapse.broker.logs.partitions import Partitions
from lapse.broker.request.authorize import TOPIC_REFUSED, Items, each
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.security.acls import Operation
from lapse.wire.schema.offset_for_leader_epoch import (
    OFFSET_FOR_LEADER_EPOCH,
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)


async def handle(
    services: Services, _session: Session, _version: int, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Look up each partition; epochs are in memory."""
    return OffsetForLeaderEpochResponse(
        topics=tuple(
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(
                    _result(services.partitions, TopicPartition(topic.topic, p.partition), p)
                    for p in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _result(
    partitions: Partitions, where: TopicPartition, requested: OffsetForLeaderPartition
) -> EpochEndOffset:
    try:
        led = partitions.led(where)
        check_leader_epoch(requested.current_leader_epoch, led)
    except KafkaError as e:
        return EpochEndOffset(error_code=e.code, partition=where.partition)
    end = led.log.end_of_epoch(requested.leader_epoch)
    if end is None:
        return EpochEndOffset(error_code=ErrorCode.NONE, partition=where.partition)
    return EpochEndOffset(
        error_code=ErrorCode.NONE,
        partition=where.partition,
        leader_epoch=end.epoch,
        end_offset=end.end_offset,
    )


# --- authorization --------------------------------------------------------------------------------


def _without_epoch(
    topic: OffsetForLeaderTopic,
) -> OffsetForLeaderTopicResult:
    return OffsetForLeaderTopicResult(
        topic=topic.topic,
        partitions=tuple(
            EpochEndOffset(error_code=TOPIC_REFUSED, partition=requested.partition)
            for requested in topic.partitions
        ),
    )


API = Endpoint(
    OFFSET_FOR_LEADER_EPOCH,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    handle,
    each(
        # CLUSTER_ACTION, the right of brokers, is enough for any replica id in the request.
        Items(
            "topics",
            "topics",
            lambda caller, topic: (
                caller.may_cluster(Operation.CLUSTER_ACTION)
                or caller.may_topic(Operation.DESCRIBE, topic.topic)
            ),
            _without_epoch,
        )
    ),
)
