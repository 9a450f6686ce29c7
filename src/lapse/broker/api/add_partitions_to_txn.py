"""AddPartitionsToTxn (key 24): partitions that a transaction is about to write (KIP-98).

Needs WRITE transactional id; WRITE topics.

Behaviour: either all partitions are added or none. If one does not exist
(UNKNOWN_TOPIC_OR_PARTITION) or is of an internal topic (TOPIC_AUTHORIZATION_FAILED), the other
partitions are OPERATION_NOT_ATTEMPTED. The broker responds when the transaction's state is in the
transaction log.

v0-1 INVALID_PRODUCER_EPOCH · v2 PRODUCER_FENCED (KIP-588). From v4 on Kafka's brokers send this
request to each other, for several transactions at a time and only to verify them; here
`Transactions.verify_here` does that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.coordinators.late_requests import LateRequestError
from lapse.broker.coordinators.transactions import without_fenced
from lapse.broker.request.authorize import TOPIC_REFUSED, TRANSACTION_REFUSED, Caller, Handle
from lapse.broker.request.context import CloseConnection, Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.coordination.transactions.state import ProducerIdAndEpoch
from lapse.metadata.image import INTERNAL_TOPICS, Image
from lapse.security.acls import Operation
from lapse.wire.schema.add_partitions_to_txn import (
    ADD_PARTITIONS_TO_TXN,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)

_FENCED_FROM = 2


async def handle(
    services: Services, session: Session, version: int, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Check each partition, then add all of them."""
    partitions_to_add = [
        TopicPartition(topic.name, number)
        for topic in request.v3_and_below_topics
        for number in topic.partitions
    ]
    producer = ProducerIdAndEpoch(
        request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
    )
    if request.verify_only:
        verified = await services.transactions.verify_here(
            request.v3_and_below_transactional_id, producer, partitions_to_add
        )
        return _answer(request, verified)
    refusals = {tp: _refusal(services.topics.image, tp) for tp in partitions_to_add}
    if any(refusals.values()):
        untried = ErrorCode.OPERATION_NOT_ATTEMPTED
        return _answer(request, {tp: code or untried for tp, code in refusals.items()})
    try:
        error = await services.transactions.add_partitions(
            request.v3_and_below_transactional_id, producer, partitions_to_add, session.number
        )
    except LateRequestError as e:
        raise CloseConnection(str(e)) from e
    code = error if version >= _FENCED_FROM else without_fenced(error)
    return _answer(request, dict.fromkeys(partitions_to_add, code))


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


# --- authorization --------------------------------------------------------------------------------


async def _authorize(
    caller: Caller,
    _version: int,
    request: AddPartitionsToTxnRequest,
    handle: Handle,
) -> Any:
    """All or none: if one topic is refused, the other topics are not attempted."""
    topics = request.v3_and_below_topics
    if request.verify_only and caller.may_cluster(Operation.CLUSTER_ACTION):
        return await handle(request)
    if not caller.may_transaction(Operation.WRITE, request.v3_and_below_transactional_id):
        codes = dict.fromkeys((topic.name for topic in topics), TRANSACTION_REFUSED)
    else:
        codes = {
            topic.name: ErrorCode.OPERATION_NOT_ATTEMPTED
            if caller.may_topic(Operation.WRITE, topic.name)
            else TOPIC_REFUSED
            for topic in topics
        }
        if TOPIC_REFUSED not in codes.values():
            return await handle(request)
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=tuple(
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    AddPartitionsToTxnPartitionResult(
                        partition_index=number, partition_error_code=codes[topic.name]
                    )
                    for number in topic.partitions
                ),
            )
            for topic in topics
        )
    )


API = Endpoint(
    ADD_PARTITIONS_TO_TXN,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    handle,
    _authorize,
)
