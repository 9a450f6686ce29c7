"""AlterReplicaLogDirs (key 34): move replicas between a broker's directories (KIP-113).

v1 the oldest still spoken · v2 flexible.
"""

from __future__ import annotations

from lapse.wire.declaration import (
    INT16,
    INT32,
    STRING,
    api,
    array,
    field,
    request,
    response,
    struct,
)

ALTER_REPLICA_LOG_DIRS = api(34, "AlterReplicaLogDirs", versions="1-2", flexible="2+")


@struct
class AlterReplicaLogDirTopic:
    """Partitions of a topic that are to be in one directory."""

    name: str = field(STRING)
    partitions: tuple[int, ...] = field(array(INT32))


@struct
class AlterReplicaLogDir:
    """A directory by its absolute path, and what is to be there."""

    path: str = field(STRING)
    topics: tuple[AlterReplicaLogDirTopic, ...] = field(array(AlterReplicaLogDirTopic))


@request(ALTER_REPLICA_LOG_DIRS)
class AlterReplicaLogDirsRequest:
    """What is to be where."""

    dirs: tuple[AlterReplicaLogDir, ...] = field(array(AlterReplicaLogDir))


@struct
class AlterReplicaLogDirPartitionResult:
    """What came of one partition."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)


@struct
class AlterReplicaLogDirTopicResult:
    """What came of a topic's."""

    topic_name: str = field(STRING)
    partitions: tuple[AlterReplicaLogDirPartitionResult, ...] = field(
        array(AlterReplicaLogDirPartitionResult)
    )


@response(ALTER_REPLICA_LOG_DIRS)
class AlterReplicaLogDirsResponse:
    """Answers per topic."""

    throttle_time_ms: int = field(INT32, default=0)
    results: tuple[AlterReplicaLogDirTopicResult, ...] = field(array(AlterReplicaLogDirTopicResult))
