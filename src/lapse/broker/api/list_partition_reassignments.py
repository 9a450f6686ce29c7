"""ListPartitionReassignments (key 46): replica moves in progress (KIP-455).

Needs DESCRIBE cluster.

Behaviour: of the partitions that are asked for, or of all, those whose replicas move just now.
Unknown ones are skipped, as in Kafka.

v0 the only one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lapse.base.errors import ErrorCode
from lapse.broker.request.authorize import CLUSTER_REFUSAL, of_cluster
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.metadata.image import Topic
from lapse.security.acls import Operation
from lapse.wire.schema.list_partition_reassignments import (
    LIST_PARTITION_REASSIGNMENTS,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


async def handle(
    services: Services,
    _session: Session,
    _version: int,
    request: ListPartitionReassignmentsRequest,
) -> ListPartitionReassignmentsResponse:
    """List them, by topic."""
    topics = services.topics.image.topics
    asked: Mapping[str, Iterable[int]] = (
        {name: range(topic.partitions) for name, topic in topics.items()}
        if request.topics is None
        else {one.name: one.partition_indexes for one in request.topics}
    )
    moving = {
        name: _moving(topics[name], numbers) for name, numbers in asked.items() if name in topics
    }
    return ListPartitionReassignmentsResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        topics=tuple(
            OngoingTopicReassignment(name=name, partitions=found)
            for name, found in moving.items()
            if found
        ),
    )


def _moving(topic: Topic, numbers: Iterable[int]) -> tuple[OngoingPartitionReassignment, ...]:
    return tuple(
        OngoingPartitionReassignment(
            partition_index=number,
            replicas=state.replicas,
            adding_replicas=state.adding,
            removing_replicas=state.removing,
        )
        for number in numbers
        if 0 <= number < len(topic.states)
        for state in (topic.states[number],)
        if state.is_reassigned
    )


API = Endpoint(
    LIST_PARTITION_REASSIGNMENTS,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    handle,
    of_cluster(
        Operation.DESCRIBE,
        ListPartitionReassignmentsResponse(**CLUSTER_REFUSAL, topics=()),
    ),
)
