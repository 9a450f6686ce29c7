"""Which records are older than a time, for certain: what `deletion` may delete by it.

A record without a time is as old as its append, and with `By.APPEND` every record is. Only a broker
of ours knows when that was. From another one all records below the time's offset are read: the
first that has no time may be of any age, so it ends what is old. Kafka's own answer is but an upper
bound: it is "no record" also where a segment promises one that compaction took, while later
segments have some (T-18).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from datetime import datetime

from lapse.base.errors import CorruptData, ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.client.cluster import Cluster
from lapse.client.connection import BrokerConnection
from lapse.client.offsets import EARLIEST, LATEST, By, list_offsets, list_offsets_by, to_ms
from lapse.client.range_reader import OffsetRange, read_range
from lapse.records.batch import not_older_in


async def older_until(
    cluster: Cluster,
    connection: BrokerConnection,
    times: Mapping[TopicPartition, datetime],
    deadline: float,
    by: By = By.AGE,
) -> dict[TopicPartition, int | KafkaError]:
    """The offset below which all is older, of partitions that one broker leads.

    Never above the end of the log as of this call. `deadline` is one of the event loop's. Raises
    ConnectionLost, and KafkaError where the broker refuses all; UNSUPPORTED_VERSION for append
    times from a broker that is not Lapse.
    """

    def left() -> float:
        return max(deadline - asyncio.get_running_loop().time(), 0.0)

    ends = await list_offsets(connection, dict.fromkeys(times, LATEST), timeout_seconds=left())
    found = await list_offsets_by(connection, by, times, left())
    if found is not None:
        return {partition: _least(found[partition], ends[partition]) for partition in times}
    if by is By.APPEND:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{connection.address} does not keep append times: only a Lapse broker does",
        )
    starts = await list_offsets(connection, dict.fromkeys(times, EARLIEST), timeout_seconds=left())
    until: dict[TopicPartition, int | KafkaError] = {}
    for partition, moment in times.items():
        start, end = starts[partition], ends[partition]
        if isinstance(start, int) and isinstance(end, int):
            wanted = OffsetRange(partition, start, end)
            until[partition] = await _read(cluster, wanted, to_ms(moment))
        else:
            until[partition] = _least(start, end)
    return until


def _least(one: int | KafkaError, other: int | KafkaError) -> int | KafkaError:
    """The lower offset, or the refusal."""
    if isinstance(one, KafkaError):
        return one
    return other if isinstance(other, KafkaError) else min(one, other)


async def _read(cluster: Cluster, wanted: OffsetRange, cutoff_ms: int) -> int | KafkaError:
    where = str(wanted.partition)
    try:
        async with aclosing(read_range(cluster, wanted, committed=False)) as reading:
            async for some in reading:
                for row in some.rows:
                    first = not_older_in(some.data, row, cutoff_ms, wanted.offset_from, 0, where)
                    if first is not None:
                        return min(first[0], wanted.offset_until)
    except CorruptData as e:
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, str(e))
    except KafkaError as e:
        return e
    return wanted.offset_until
