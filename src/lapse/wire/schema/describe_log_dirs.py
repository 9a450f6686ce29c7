"""DescribeLogDirs (key 35): how much is where on a broker's disks (KIP-113).

v1 the oldest still spoken · v2 flexible · v3 an error for the whole (KIP-784) · v4 sizes of the
volume (KIP-827). v5 says whether a directory is cordoned.
"""

from __future__ import annotations

from lapse.wire.declaration import (
    BOOL,
    INT16,
    INT32,
    INT64,
    STRING,
    api,
    array,
    field,
    request,
    response,
    struct,
)

DESCRIBE_LOG_DIRS = api(35, "DescribeLogDirs", versions="1-4", flexible="2+")


@struct
class DescribableLogDirTopic:
    """The requested partitions of a topic."""

    topic: str = field(STRING)
    partitions: tuple[int, ...] = field(array(INT32))


@request(DESCRIBE_LOG_DIRS)
class DescribeLogDirsRequest:
    """`topics` null means all."""

    topics: tuple[DescribableLogDirTopic, ...] | None = field(
        array(DescribableLogDirTopic), nullable="0+"
    )


@struct
class DescribeLogDirsPartition:
    """One log in bytes.

    `offset_lag` is how far its end is behind the high watermark, for a future log behind the
    present one's end.
    """

    partition_index: int = field(INT32)
    partition_size: int = field(INT64)
    offset_lag: int = field(INT64)
    is_future_key: bool = field(BOOL)


@struct
class DescribeLogDirsTopic:
    """One topic's logs in a directory."""

    name: str = field(STRING)
    partitions: tuple[DescribeLogDirsPartition, ...] = field(array(DescribeLogDirsPartition))


@struct
class DescribeLogDirsResult:
    """A directory by its absolute path; volume sizes in bytes, -1 where unknown."""

    error_code: int = field(INT16)
    log_dir: str = field(STRING)
    topics: tuple[DescribeLogDirsTopic, ...] = field(array(DescribeLogDirsTopic))
    total_bytes: int = field(INT64, "4+", default=-1, ignorable=True)
    usable_bytes: int = field(INT64, "4+", default=-1, ignorable=True)


@response(DESCRIBE_LOG_DIRS)
class DescribeLogDirsResponse:
    """Answers per directory."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16, "3+", default=0, ignorable=True)
    results: tuple[DescribeLogDirsResult, ...] = field(array(DescribeLogDirsResult))
