"""DescribeLogDirs (key 35): sizes of logs and volumes by log directory (KIP-113).

Needs DESCRIBE cluster.

Behaviour: every directory of `log.dirs` by its absolute path, an offline one with
KAFKA_STORAGE_ERROR and nothing else. A log's size is that of its segments' records, as in Kafka;
its offset lag is 0, it is the leader's own. One that is on its way to another directory is there
as well, as a future one with its lag. Null topics mean all; what is not there is passed over.

v1-2 the same · v3 an error for the whole (none) · v4 size of the volume and what is free there for
us, -1 where that is unknown.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.logs.partitions import Partitions
from lapse.broker.replicas.moves import Move
from lapse.broker.request.authorize import CLUSTER_REFUSED, of_cluster
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.log.partition_log import PartitionLog
from lapse.security.acls import Operation
from lapse.wire.schema.describe_log_dirs import (
    DESCRIBE_LOG_DIRS,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

UNKNOWN = -1


async def handle(
    services: Services, _session: Session, _version: int, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """Describe each directory in a worker thread: reading its volume's size may wait."""
    moving = {one.path: services.moves.to(one) for one in services.partitions.directories}
    return await services.disk.run(_describe_all, services.partitions, moving, request)


def _describe_all(
    partitions: Partitions, moving: Mapping[Path, Sequence[Move]], request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    wanted = None
    if request.topics is not None:
        wanted = {TopicPartition(t.topic, n) for t in request.topics for n in t.partitions}
    logs = [log for log in partitions.all() if wanted is None or log.partition in wanted]
    online = [
        _online(
            one.path, logs,
            [m for m in moving.get(one.path, ()) if wanted is None or m.log.partition in wanted],
        )
        for one in partitions.directories
    ]  # fmt: skip
    offline = [
        DescribeLogDirsResult(
            error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=str(path.absolute()), topics=()
        )
        for path in partitions.offline_directories
    ]
    return DescribeLogDirsResponse(results=(*online, *offline))


def _online(
    path: Path, logs: Sequence[PartitionLog], moves: Sequence[Move]
) -> DescribeLogDirsResult:
    by_topic: dict[str, list[DescribeLogDirsPartition]] = {}
    for log in logs:
        if log.dir.parent == path:
            by_topic.setdefault(log.partition.topic, []).append(_log(log))
    for move in moves:
        by_topic.setdefault(move.log.partition.topic, []).append(_future(move))
    total, usable = volume_bytes(path)
    return DescribeLogDirsResult(
        error_code=ErrorCode.NONE,
        log_dir=str(path.absolute()),
        topics=tuple(
            DescribeLogDirsTopic(name=name, partitions=tuple(of_topic))
            for name, of_topic in sorted(by_topic.items())
        ),
        total_bytes=total,
        usable_bytes=usable,
    )


def _log(log: PartitionLog) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(
        partition_index=log.partition.partition,
        partition_size=sum(segment.size for segment in log.segments),
        offset_lag=0,
        is_future_key=False,
    )


def _future(move: Move) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(
        partition_index=move.log.partition.partition,
        partition_size=move.size,
        offset_lag=move.offset_lag,
        is_future_key=True,
    )


def volume_bytes(path: Path) -> tuple[int, int]:
    """A volume's size and what is free there for us; -1 each if the system does not report them."""
    try:
        found = os.statvfs(path)
    except OSError:
        return UNKNOWN, UNKNOWN
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


API = Endpoint(
    DESCRIBE_LOG_DIRS,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    handle,
    of_cluster(
        Operation.DESCRIBE,
        DescribeLogDirsResponse(error_code=CLUSTER_REFUSED, results=()),
    ),
)
