"""DescribeProducers (key 61): the producers a log remembers (KIP-664).

Needs READ topic.

Behaviour: by partition, UNKNOWN_TOPIC_OR_PARTITION or KAFKA_STORAGE_ERROR where there is no log to
look at. A producer is remembered for `producer.id.expiration.ms`, or while its transaction is open.
"""

from __future__ import annotations

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.logs.partitions import Partitions
from lapse.broker.request.authorize import TOPIC_REFUSED, Items, each, message_of, of_topic
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.security.acls import Operation
from lapse.wire.schema.describe_producers import (
    DESCRIBE_PRODUCERS,
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicRequest,
    TopicResponse,
)


async def handle(
    services: Services, _session: Session, _version: int, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """Look at each log, in a worker thread: it may have to wait for an append."""
    return await services.disk.run(_look, services.partitions, request)


def _look(partitions: Partitions, request: DescribeProducersRequest) -> DescribeProducersResponse:
    wanted = {TopicPartition(t.name, n): None for t in request.topics for n in t.partition_indexes}
    found = {tp: _partition(partitions, tp) for tp in wanted}  # once, however often it is named
    return DescribeProducersResponse(
        topics=tuple(
            TopicResponse(
                name=topic.name,
                partitions=tuple(
                    found[TopicPartition(topic.name, number)] for number in topic.partition_indexes
                ),
            )
            for topic in request.topics
        )
    )


def _partition(partitions: Partitions, tp: TopicPartition) -> PartitionResponse:
    try:
        producers = partitions.led(tp).log.producers()
    except KafkaError as e:
        return PartitionResponse(
            partition_index=tp.partition,
            error_code=e.code,
            error_message=str(e),
            active_producers=(),
        )
    return PartitionResponse(
        partition_index=tp.partition,
        error_code=ErrorCode.NONE,
        active_producers=tuple(
            ProducerState(
                producer_id=p.producer_id,
                producer_epoch=p.epoch,
                last_sequence=p.last_sequence,
                last_timestamp=p.last_timestamp,
                coordinator_epoch=p.coordinator_epoch,
                current_txn_start_offset=p.transaction_first_offset,
            )
            for p in producers
        ),
    )


# --- authorization --------------------------------------------------------------------------------


def _without_producers(topic: TopicRequest) -> TopicResponse:
    return TopicResponse(
        name=topic.name,
        partitions=tuple(
            PartitionResponse(
                partition_index=number,
                error_code=TOPIC_REFUSED,
                error_message=message_of(TOPIC_REFUSED),
                active_producers=(),
            )
            for number in topic.partition_indexes
        ),
    )


API = Endpoint(
    DESCRIBE_PRODUCERS,
    DescribeProducersRequest,
    DescribeProducersResponse,
    handle,
    each(Items("topics", "topics", of_topic(Operation.READ), _without_producers)),
)
