"""ListPartitionReassignments (key 46): replica moves in progress (KIP-455).

Needs DESCRIBE cluster.

Behaviour: no replica moves so far, so the list is always empty; unknown topics are skipped, as in
Kafka.

v0 the only one.
"""

from __future__ import annotations

from lapse.base.errors import ErrorCode
from lapse.broker.request.authorize import CLUSTER_REFUSAL, of_cluster
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.security.acls import Operation
from lapse.wire.schema.list_partition_reassignments import (
    LIST_PARTITION_REASSIGNMENTS,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


async def handle(
    _services: Services,
    _session: Session,
    _version: int,
    _request: ListPartitionReassignmentsRequest,
) -> ListPartitionReassignmentsResponse:
    """Return an empty list."""
    return ListPartitionReassignmentsResponse(
        error_code=ErrorCode.NONE, error_message=None, topics=()
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
