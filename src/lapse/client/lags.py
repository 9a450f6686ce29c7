"""How far groups are behind: in offsets, and by when the first record that they lack was appended.

Offsets between what is committed and the end are no count of records: of a compacted topic there
are fewer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from lapse.base.errors import ErrorCode, KafkaError, LapseError
from lapse.base.ids import TopicPartition
from lapse.client.cluster import Cluster, as_kafka
from lapse.client.connection import ConnectionLost
from lapse.client.offsets import LATEST, list_offsets
from lapse.client.range_reader import FetchLimits, OffsetRange, read_range

Ends = Mapping[TopicPartition, int | KafkaError]
LIMITS = FetchLimits(partition_bytes_max=64 << 10, api_timeout_ms=5000)


@dataclass(frozen=True, slots=True)
class Lag:
    """Of a group in a partition.

    Attributes:
        committed, end: offsets; None where they are not known.
        why: what hides them.
    """

    partition: TopicPartition
    committed: int | None = None
    end: int | None = None
    why: str = ""

    @property
    def offsets(self) -> int | None:
        """Between the two."""
        if self.committed is None or self.end is None:
            return None
        return max(self.end - self.committed, 0)


def lag_of(partition: TopicPartition, at: int | KafkaError, end: int | KafkaError | None) -> Lag:
    """From a committed offset and the end of the log."""
    why = "; ".join(str(one) for one in (at, end) if isinstance(one, KafkaError))
    return Lag(
        partition,
        at if isinstance(at, int) else None,
        end if isinstance(end, int) else None,
        why or ("" if end is not None else "nobody leads it"),
    )


@dataclass(frozen=True, slots=True)
class Behind:
    """How far a group is behind in all of its partitions together.

    Attributes:
        known: offsets, in those partitions where they are known.
        unknown: partitions of which it is not known; then there may be any number more.
        why: what hides the first of these.
    """

    known: int = 0
    unknown: int = 0
    why: str = ""

    @property
    def offsets(self) -> int | None:
        """None where one partition is not known: a group is not done because it cannot be seen."""
        return None if self.unknown else self.known


def together(lags: Sequence[Lag]) -> Behind:
    """Of all partitions of a group."""
    hidden = [lag for lag in lags if lag.offsets is None]
    why = f"{hidden[0].partition}: {hidden[0].why}" if hidden else ""
    return Behind(sum(lag.offsets or 0 for lag in lags), len(hidden), why)


async def ends_of(
    cluster: Cluster, partitions: Iterable[TopicPartition], seconds_max: float | None = None
) -> Ends:
    """High watermarks, of all leaders at the same time; a partition of none is left out.

    One that has not answered in so long, or that went away, is an error at each of its partitions.
    """
    by_leader: dict[int, list[TopicPartition]] = {}
    for partition in partitions:
        try:
            by_leader.setdefault(await cluster.leader(partition), []).append(partition)
        except LapseError:
            continue

    async def of(leader: int, some: list[TopicPartition]) -> Ends:
        try:
            async with asyncio.timeout(seconds_max):
                connection = await cluster.leader_connection(some[0])
                return await list_offsets(connection, dict.fromkeys(some, LATEST))
        except TimeoutError:
            why = f"broker {leader} did not answer within {seconds_max:g} s"
            return dict.fromkeys(some, KafkaError(ErrorCode.REQUEST_TIMED_OUT, why))
        except (ConnectionLost, KafkaError) as e:
            return dict.fromkeys(some, as_kafka(e))

    found = await asyncio.gather(*(of(leader, some) for leader, some in by_leader.items()))
    return {partition: end for one in found for partition, end in one.items()}


async def first_unread_ms(cluster: Cluster, lag: Lag) -> int | None:
    """The append time of the first record that is lacking where it is known, else its own time.

    None where there is no such record, or it cannot be read.
    """
    if lag.committed is None or lag.end is None:
        return None
    wanted = OffsetRange(lag.partition, lag.committed, lag.end)
    try:
        async with aclosing(read_range(cluster, wanted, committed=False, limits=LIMITS)) as some:
            async for fetched in some:
                for record in fetched.records():
                    if record.append_time is not None:
                        return record.append_time
                    return record.timestamp if record.timestamp >= 0 else None
    except LapseError:
        return None  # deleted meanwhile, or not for this user
    return None
