"""AddPartitionsToTxn (key 24): partitions that a transaction is about to write (KIP-98).

Behaviour: all are added or none: where one does not exist (UNKNOWN_TOPIC_OR_PARTITION) or is of an
internal topic (TOPIC_AUTHORIZATION_FAILED), the others are OPERATION_NOT_ATTEMPTED. Answered when
the transaction's state is in its log.

v0-1 INVALID_PRODUCER_EPOCH · v2 PRODUCER_FENCED (KIP-588). Kafka's brokers ask each other from v4
on, several transactions at a time and to verify them only; here that is `Transactions.verify`.
"""

from __future__ import annotations

from collections.abc import Mapping

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.services import Services, Session
from lapse.broker.transaction_coordinator import without_fenced
from lapse.coordination.transaction_state import ProducerIdAndEpoch
from lapse.metadata.image import INTERNAL_TOPICS, Image
from lapse.wire.schema.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)

_FENCED_FROM = 2


async def handle(
    services: Services, _session: Session, version: int, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Look at each, and add all."""
    asked = [
        TopicPartition(topic.name, number)
        for topic in request.v3_and_below_topics
        for number in topic.partitions
    ]
    refusals = {tp: _refusal(services.topics.image, tp) for tp in asked}
    if any(refusals.values()):
        untried = ErrorCode.OPERATION_NOT_ATTEMPTED
        return _answer(request, {tp: why or untried for tp, why in refusals.items()})
    producer = ProducerIdAndEpoch(
        request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
    )
    error = await services.transactions.add_partitions(
        request.v3_and_below_transactional_id, producer, asked
    )
    told = error if version >= _FENCED_FROM else without_fenced(error)
    return _answer(request, dict.fromkeys(asked, told))


def _refusal(image: Image, tp: TopicPartition) -> ErrorCode:
    if tp.topic in INTERNAL_TOPICS:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = image.topics.get(tp.topic)
    if topic is None or not 0 <= tp.partition < topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


def _answer(
    request: AddPartitionsToTxnRequest, errors: Mapping[TopicPartition, ErrorCode]
) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=tuple(
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    AddPartitionsToTxnPartitionResult(
                        partition_index=number,
                        partition_error_code=errors[TopicPartition(topic.name, number)],
                    )
                    for number in topic.partitions
                ),
            )
            for topic in request.v3_and_below_topics
        )
    )
