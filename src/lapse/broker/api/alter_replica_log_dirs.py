"""AlterReplicaLogDirs (key 34): move replicas between this broker's directories (KIP-113).

Needs ALTER cluster.

Behaviour: the answer comes when the moves have begun, as in Kafka; DescribeLogDirs shows how far
they are. LOG_DIR_NOT_FOUND for a path that is not in `log.dirs`, KAFKA_STORAGE_ERROR for one
that is offline or whose disk has no room for the log. A partition that is not here is
REPLICA_NOT_AVAILABLE, and gets its log there if it comes to be: so reassignments say where to. One
that is there already stays, and a move of it to somewhere else ends.

Differs from Kafka: A replica is copied to its new directory while it is used, but one after the
other, and after a restart from its beginning.

v1-2 the same.
"""

from __future__ import annotations

from pathlib import Path

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.request.authorize import CLUSTER_REFUSED, of_cluster
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.security.acls import Operation
from lapse.wire.schema.alter_replica_log_dirs import (
    ALTER_REPLICA_LOG_DIRS,
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


async def handle(
    services: Services, _session: Session, _version: int, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Begin what can be moved."""
    wanted = {
        TopicPartition(topic.name, number): wanted_in.path
        for wanted_in in request.dirs
        for topic in wanted_in.topics
        for number in topic.partitions
    }
    found: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for partition, path in wanted.items():
        code = await _begin(services, partition, path)
        found.setdefault(partition.topic, []).append(
            AlterReplicaLogDirPartitionResult(partition_index=partition.partition, error_code=code)
        )
    return AlterReplicaLogDirsResponse(
        results=tuple(
            AlterReplicaLogDirTopicResult(topic_name=name, partitions=tuple(partitions))
            for name, partitions in found.items()
        )
    )


async def _begin(services: Services, partition: TopicPartition, path: str) -> ErrorCode:
    try:
        await services.moves.begin(partition, Path(path))
    except KafkaError as e:
        return e.code
    return ErrorCode.NONE


def _refusal(request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    numbers: dict[str, list[int]] = {}
    for one in request.dirs:
        for topic in one.topics:
            numbers.setdefault(topic.name, []).extend(topic.partitions)
    return AlterReplicaLogDirsResponse(
        results=tuple(
            AlterReplicaLogDirTopicResult(
                topic_name=name,
                partitions=tuple(
                    AlterReplicaLogDirPartitionResult(
                        partition_index=number, error_code=CLUSTER_REFUSED
                    )
                    for number in of_topic
                ),
            )
            for name, of_topic in numbers.items()
        )
    )


API = Endpoint(
    ALTER_REPLICA_LOG_DIRS,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    handle,
    of_cluster(Operation.ALTER, _refusal),
)
