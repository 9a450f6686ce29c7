"""Consumer groups: what they have not read, in records and in time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from lapse.base.errors import KafkaError, LapseError
from lapse.base.ids import TopicPartition
from lapse.client.groups import GroupOffsets, group_ids, group_offsets
from lapse.client.offsets import LATEST, list_offsets
from lapse.client.range_reader import FetchLimits, OffsetRange, read_range
from lapse.web.asked import Asked, NotFound, Page

TIMEOUT_MS = 10_000
GROUPS_SHOWN = 200
TIMED_MAX = 100  # partitions of a group whose first unread record is looked at
LIMITS = FetchLimits(partition_bytes_max=64 << 10, api_timeout_ms=5000)


@dataclass(frozen=True, slots=True)
class Lag:
    """Of a group in a partition.

    Attributes:
        committed, end: offsets; None where they are not known.
        since_ms: the time of the first record that is not read; None where there is none.
        why: what hides them.
    """

    partition: TopicPartition
    committed: int | None = None
    end: int | None = None
    since_ms: int | None = None
    why: str = ""

    @property
    def records(self) -> int | None:
        """Offsets between the two: of a compacted topic there are fewer records."""
        if self.committed is None or self.end is None:
            return None
        return max(self.end - self.committed, 0)


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """A group; its lag is that of its partitions together, None where none is known."""

    name: str
    state: str
    partitions: int
    lag: int | None
    why: str = ""


async def show_all(asked: Asked) -> Page:
    """All groups that one may see."""
    find = asked.text("find")
    every = await group_ids(asked.cluster)
    names = [name for name in every if find.lower() in name.lower()]
    found = await group_offsets(asked.cluster, names[:GROUPS_SHOWN], TIMEOUT_MS)
    ends = await ends_of(asked, {p for group in found.values() for p in group.offsets})
    seen = [_seen(name, group, ends) for name, group in sorted(found.items())]
    values = {"here": "groups", "groups": seen, "found": len(names), "find": find}
    return Page("groups.html", values)


async def show(asked: Asked) -> Page:
    """One, partition by partition."""
    name = asked.raw("name")
    group = (await group_offsets(asked.cluster, [name], TIMEOUT_MS))[name]
    if group.error is not None:
        raise group.error
    if not group.exists and not group.offsets:
        raise NotFound(f"group {name}: there is no such group")
    ends = await ends_of(asked, group.offsets)
    lags = [lag_of(p, at, ends.get(p)) for p, at in sorted(group.offsets.items())]
    behind = [lag for lag in lags if lag.records][:TIMED_MAX]
    times = await asyncio.gather(*(_first_unread_ms(asked, lag) for lag in behind))
    since = {lag.partition: ms for lag, ms in zip(behind, times, strict=True)}
    return Page(
        "group.html",
        {
            "here": "groups",
            "name": name,
            "group": group,
            "lags": lags,
            "since": since,
            "now_ms": asked.clock.now_ms(),
        },
    )


def lag_of(partition: TopicPartition, at: int | KafkaError, end: int | KafkaError | None) -> Lag:
    """From a committed offset and the end of the log."""
    why = "; ".join(str(one) for one in (at, end) if isinstance(one, KafkaError))
    return Lag(
        partition,
        at if isinstance(at, int) else None,
        end if isinstance(end, int) else None,
        why=why or ("" if end is not None else "nobody leads it"),
    )


async def ends_of(
    asked: Asked, partitions: Iterable[TopicPartition]
) -> Mapping[TopicPartition, int | KafkaError]:
    """High watermarks, leader by leader; a partition that nobody answers for is left out."""
    by_leader: dict[int, list[TopicPartition]] = {}
    for partition in partitions:
        try:
            by_leader.setdefault(await asked.cluster.leader(partition), []).append(partition)
        except LapseError:
            continue
    ends: dict[TopicPartition, int | KafkaError] = {}
    for some in by_leader.values():
        try:
            connection = await asked.cluster.leader_connection(some[0])
            ends |= await list_offsets(connection, dict.fromkeys(some, LATEST))
        except LapseError:
            continue
    return ends


def _seen(
    name: str, group: GroupOffsets, ends: Mapping[TopicPartition, int | KafkaError]
) -> GroupSeen:
    lags = [lag_of(p, at, ends.get(p)).records for p, at in group.offsets.items()]
    known = [lag for lag in lags if lag is not None]
    why = "" if group.error is None else str(group.error)
    return GroupSeen(name, group.state, len(lags), sum(known) if known else None, why)


async def _first_unread_ms(asked: Asked, lag: Lag) -> int | None:
    """The append time of the first unread record where it is known, else its own time."""
    assert lag.committed is not None
    assert lag.end is not None
    wanted = OffsetRange(lag.partition, lag.committed, lag.end)
    try:
        some = read_range(asked.cluster, wanted, committed=False, limits=LIMITS)
        async with aclosing(some) as fetched_all:
            async for fetched in fetched_all:
                for record in fetched.records():
                    if record.append_time is not None:
                        return record.append_time
                    return record.timestamp if record.timestamp >= 0 else None
    except LapseError:
        return None  # deleted meanwhile, or not for this user
    return None
