"""AlterPartitionReassignments (key 45): move replicas, or call moves off (KIP-455).

Needs ALTER cluster.

Behaviour: there is one broker. Replicas that are this broker alone are where they shall be: done.
Others are INVALID_REPLICA_ASSIGNMENT; null replicas call a move off, and there is none:
NO_REASSIGNMENT_IN_PROGRESS. UNKNOWN_TOPIC_OR_PARTITION for what is not there.

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

_WORDS = {
    ErrorCode.NONE: None,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is no such partition",
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "it is not being moved",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "there is one broker to be at",
}


async def handle(
    services: Services,
    _session: Session,
    _version: int,
    request: AlterPartitionReassignmentsRequest,
) -> AlterPartitionReassignmentsResponse:
    """Say of each partition whether it is where it shall be."""
    topics, node_id = services.topics.image.topics, services.config.node_id
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=ErrorCode.NONE,
        error_message=None,
        responses=tuple(
            ReassignableTopicResponse(
                name=asked.name,
                partitions=tuple(
                    _answer(partition, topics.get(asked.name), node_id)
                    for partition in asked.partitions
                ),
            )
            for asked in request.topics
        ),
    )


def _answer(
    asked: ReassignablePartition, topic: Topic | None, node_id: int
) -> ReassignablePartitionResponse:
    code = ErrorCode.NONE
    if topic is None or not 0 <= asked.partition_index < topic.partitions:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif asked.replicas is None:
        code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    elif asked.replicas != (node_id,):
        code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    return ReassignablePartitionResponse(
        partition_index=asked.partition_index, error_code=code, error_message=_WORDS[code]
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
)
