"""AlterPartitionReassignments (key 45): move replicas, or cancel moves (KIP-455).

Needs ALTER cluster.

Behaviour: replicas stay where they are so far. If the request lists the replicas that there are,
they are in place already and the partition succeeds. Any other list is INVALID_REPLICA_ASSIGNMENT.
Null replicas cancel a move, but no move is ever in progress: NO_REASSIGNMENT_IN_PROGRESS.
UNKNOWN_TOPIC_OR_PARTITION for a partition that does not exist.

v0 the replication factor may change · v1 only if the request allows it (it never does).
"""

from __future__ import annotations

from lapse.base.errors import ErrorCode
from lapse.broker.request.authorize import CLUSTER_REFUSAL, of_cluster
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.metadata.image import Topic
from lapse.security.acls import Operation
from lapse.wire.schema.alter_partition_reassignments import (
    ALTER_PARTITION_REASSIGNMENTS,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

_MESSAGES = {
    ErrorCode.NONE: None,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is no such partition",
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "the partition is not being reassigned",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "its replicas stay where they are",
}


async def handle(
    services: Services,
    _session: Session,
    _version: int,
    request: AlterPartitionReassignmentsRequest,
) -> AlterPartitionReassignmentsResponse:
    """Check for each partition that the requested replicas are those that it has."""
    topics, node_id = services.topics.image.topics, services.config.node_id
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=ErrorCode.NONE,
        error_message=None,
        responses=tuple(
            ReassignableTopicResponse(
                name=topic.name,
                partitions=tuple(
                    _answer(partition, topics.get(topic.name), node_id)
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def _answer(
    requested: ReassignablePartition, topic: Topic | None, node_id: int
) -> ReassignablePartitionResponse:
    code = ErrorCode.NONE
    if topic is None or not 0 <= requested.partition_index < topic.partitions:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif requested.replicas is None:
        code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    elif requested.replicas != _replicas(topic, requested.partition_index, node_id):
        code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    return ReassignablePartitionResponse(
        partition_index=requested.partition_index, error_code=code, error_message=_MESSAGES[code]
    )


def _replicas(topic: Topic, number: int, node_id: int) -> tuple[int, ...]:
    return topic.states[number].replicas if topic.states else (node_id,)


API = Endpoint(
    ALTER_PARTITION_REASSIGNMENTS,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    handle,
    of_cluster(
        Operation.ALTER,
        AlterPartitionReassignmentsResponse(**CLUSTER_REFUSAL, responses=()),
    ),
)
