"""ElectLeaders (key 43): elect leaders now (KIP-183, KIP-460).

Needs ALTER cluster.

Behaviour: a preferred leader, the first of a partition's replicas, leads again where it is in sync;
ELECTION_NOT_NEEDED where it leads, PREFERRED_LEADER_NOT_AVAILABLE where it is not in sync. By an
unclean election a replica leads that lacks records which were acknowledged, and these are lost: the
first that is there, but none that has left the count (L3). ELECTION_NOT_NEEDED where somebody
leads, ELIGIBLE_LEADERS_NOT_AVAILABLE where no replica is there. It never takes place by itself. A
broker that is alone leads all whose log is open. UNKNOWN_TOPIC_OR_PARTITION for a partition that
does not exist. A request for all partitions leaves out those that need no election. An election
type that is neither preferred nor unclean is INVALID_REQUEST.

v0 preferred elections only · v1 unclean ones, and a top-level error · v2 the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.replicas.shown import shown
from lapse.broker.request.authorize import (
    CLUSTER_REFUSAL,
    CLUSTER_REFUSED,
    Caller,
    Handle,
)
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint, always
from lapse.security.acls import Operation
from lapse.wire.schema.elect_leaders import (
    ELECT_LEADERS,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

# By election type: the error of an offline partition.
_OFFLINE_ERRORS = {
    0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    1: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}
PREFERRED = 0
_MESSAGES = {
    ErrorCode.ELECTION_NOT_NEEDED: "it has a leader",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is no such partition",
    ErrorCode.INVALID_REQUEST: "elections are preferred (0) or unclean (1)",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "its preferred leader is not in sync, or not there",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "none of its replicas is there",
}


async def handle(
    services: Services, _session: Session, _version: int, request: ElectLeadersRequest
) -> ElectLeadersResponse:
    """Elect what can be; report of each partition what came of it."""
    image, kind = services.topics.image, request.election_type
    partitions: dict[str, Iterable[int]]
    if request.topic_partitions is None:
        partitions = {topic.name: range(topic.partitions) for topic in image.topics.values()}
    else:
        partitions = {topic.topic: topic.partitions for topic in request.topic_partitions}
    elected = await _elected(services, partitions, kind) if kind in _OFFLINE_ERRORS else {}
    results = []
    for name, numbers in partitions.items():
        codes = {
            n: elected.get(TopicPartition(name, n), _code(services, TopicPartition(name, n), kind))
            for n in numbers
        }
        if request.topic_partitions is None:
            codes = {n: c for n, c in codes.items() if c != ErrorCode.ELECTION_NOT_NEEDED}
        results.append(
            ReplicaElectionResult(
                topic=name,
                partition_result=tuple(
                    PartitionResult(
                        partition_id=n, error_code=code, error_message=_MESSAGES.get(code)
                    )
                    for n, code in codes.items()
                ),
            )
        )
    error = ErrorCode.NONE if kind in _OFFLINE_ERRORS else ErrorCode.INVALID_REQUEST
    return ElectLeadersResponse(error_code=error, replica_election_results=tuple(results))


async def _elected(
    services: Services, partitions: Mapping[str, Iterable[int]], kind: int
) -> Mapping[TopicPartition, ErrorCode]:
    """What came of the elections of partitions that may have several replicas."""
    topics = services.topics.image.topics
    known = [
        TopicPartition(name, n)
        for name, numbers in partitions.items()
        if name in topics and topics[name].states
        for n in numbers
        if 0 <= n < topics[name].partitions
    ]
    try:
        elect = services.topics.prefer if kind == PREFERRED else services.topics.elect_unclean
        return await elect(known) if known else {}
    except KafkaError as e:
        return dict.fromkeys(known, e.code)


def _code(services: Services, partition: TopicPartition, kind: int) -> ErrorCode:
    if kind not in _OFFLINE_ERRORS:
        return ErrorCode.INVALID_REQUEST
    topic = services.topics.image.topics.get(partition.topic)
    if topic is None or not 0 <= partition.partition < topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    one = shown(topic, partition.partition, services.partitions, services.topics.members)
    return _OFFLINE_ERRORS[kind] if one.error else ErrorCode.ELECTION_NOT_NEEDED


# --- authorization --------------------------------------------------------------------------------


async def _authorize(
    caller: Caller, version: int, request: ElectLeadersRequest, handle: Handle
) -> Any:
    """Refused as a whole and each partition, as in Kafka: version 0 has no top-level error."""
    if caller.may_cluster(Operation.ALTER):
        return await handle(request)
    return ElectLeadersResponse(
        error_code=CLUSTER_REFUSED if version else ErrorCode.NONE,
        replica_election_results=tuple(
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=tuple(
                    PartitionResult(partition_id=number, **CLUSTER_REFUSAL)
                    for number in topic.partitions
                ),
            )
            for topic in request.topic_partitions or ()
        ),
    )


API = Endpoint(
    ELECT_LEADERS, ElectLeadersRequest, ElectLeadersResponse, handle, _authorize,
    by_controller=always,
)  # fmt: skip
