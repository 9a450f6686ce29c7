"""AlterPartitionReassignments (key 45): move replicas to other brokers, or cancel moves (KIP-455).

Needs ALTER cluster.

Behaviour: the answer comes when the move is stored; the replicas that come fetch then, and once all
are in sync the others go, with their files. A list that only orders the replicas anew is in force
at once. Brokers that are not there, a broker named twice and an empty list are
INVALID_REPLICA_ASSIGNMENT. Null replicas cancel a move; without one under way
NO_REASSIGNMENT_IN_PROGRESS. UNKNOWN_TOPIC_OR_PARTITION for a partition that does not exist. On a
broker that is alone replicas stay where they are: any other list is INVALID_REPLICA_ASSIGNMENT.

v0 the replication factor may change · v1 only if the request allows it, else
INVALID_REPLICATION_FACTOR (KIP-860).
"""

from __future__ import annotations

from collections.abc import Mapping

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.request.authorize import CLUSTER_REFUSAL, of_cluster
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint, always
from lapse.metadata.image import Image
from lapse.metadata.reassignment import Wish
from lapse.security.acls import Operation
from lapse.wire.schema.alter_partition_reassignments import (
    ALTER_PARTITION_REASSIGNMENTS,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

_NO_PARTITION = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition")
_NOTHING_MOVES = KafkaError(
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "the partition is not being reassigned"
)
_STAYS = KafkaError(
    ErrorCode.INVALID_REPLICA_ASSIGNMENT, "this broker is alone: its replicas stay where they are"
)


async def handle(
    services: Services,
    _session: Session,
    _version: int,
    request: AlterPartitionReassignmentsRequest,
) -> AlterPartitionReassignmentsResponse:
    """Begin or cancel the moves, and answer for each partition."""
    wishes = {
        TopicPartition(topic.name, one.partition_index): Wish(
            one.replicas, request.allow_replication_factor_change
        )
        for topic in request.topics
        for one in topic.partitions
    }
    answers = await _answers(services, wishes)
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=ErrorCode.NONE,
        error_message=None,
        responses=tuple(
            ReassignableTopicResponse(
                name=topic.name,
                partitions=tuple(
                    _answer(
                        one.partition_index,
                        answers[TopicPartition(topic.name, one.partition_index)],
                    )
                    for one in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


async def _answers(
    services: Services, wishes: Mapping[TopicPartition, Wish]
) -> Mapping[TopicPartition, KafkaError | None]:
    image = services.topics.image
    known = {tp: wish for tp, wish in wishes.items() if _exists(image, tp)}
    answers: dict[TopicPartition, KafkaError | None] = dict.fromkeys(wishes, _NO_PARTITION)
    alone = {tp for tp in known if not image.topics[tp.topic].states}
    for tp in alone:
        target = known[tp].target
        stays = None if target == (services.config.node_id,) else _STAYS
        answers[tp] = _NOTHING_MOVES if target is None else stays
    moving = {tp: wish for tp, wish in known.items() if tp not in alone}
    try:
        answers |= await services.topics.reassign(moving)
    except KafkaError as e:
        answers |= dict.fromkeys(moving, e)
    return answers


def _exists(image: Image, partition: TopicPartition) -> bool:
    topic = image.topics.get(partition.topic)
    return topic is not None and 0 <= partition.partition < topic.partitions


def _answer(number: int, error: KafkaError | None) -> ReassignablePartitionResponse:
    return ReassignablePartitionResponse(
        partition_index=number,
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else str(error),
    )


API = Endpoint(
    ALTER_PARTITION_REASSIGNMENTS,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    handle,
    of_cluster(
        Operation.ALTER,
        AlterPartitionReassignmentsResponse(**CLUSTER_REFUSAL, responses=()),
    ),
    by_controller=always,
)
