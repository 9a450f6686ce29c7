"""ListPartitionReassignments (key 46): moves of replicas under way (KIP-455).

Behaviour: there is one broker and nothing to move to, so none are, whatever is asked for; unknown
topics are passed over, as in Kafka.

v0 the only one.
"""

from __future__ import annotations

from lapse.base.errors import ErrorCode
from lapse.broker.services import Services, Session
from lapse.wire.schema.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


async def handle(
    _services: Services,
    _session: Session,
    _version: int,
    _request: ListPartitionReassignmentsRequest,
) -> ListPartitionReassignmentsResponse:
    """None."""
    return ListPartitionReassignmentsResponse(
        error_code=ErrorCode.NONE, error_message=None, topics=()
    )
