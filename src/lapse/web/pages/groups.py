"""Consumer groups: what they have not read, in records and in time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from lapse.base.errors import KafkaError
from lapse.base.ids import TopicPartition
from lapse.client.groups import GroupOffsets, group_offsets, groups_seen
from lapse.client.lags import Behind, ends_of, first_unread_ms, lag_of, together
from lapse.web.asked import Asked, NotFound, Page

# Groups, their offsets and the ends of their logs are asked for one behind the other, within a
# page's limit.
SECONDS_MAX = 8.0
_TIMEOUT_MS = int(SECONDS_MAX * 1000)
GROUPS_SHOWN = 200
TIMED_MAX = 100  # partitions of a group whose first unread record is looked at


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """A group, and how far it is behind in its partitions together."""

    name: str
    state: str
    partitions: int
    behind: Behind
    why: str = ""


async def show_all(asked: Asked) -> Page:
    """All groups that one may see."""
    find = asked.text("find")
    every, silent = await groups_seen(asked.cluster, SECONDS_MAX)
    names = [name for name in every if find.lower() in name.lower()]
    found = await group_offsets(asked.cluster, names[:GROUPS_SHOWN], _TIMEOUT_MS)
    wanted = {p for group in found.values() for p in group.offsets}
    ends = await ends_of(asked.cluster, wanted, SECONDS_MAX)
    seen = [_seen(name, group, ends) for name, group in sorted(found.items())]
    values = {"here": "groups", "groups": seen, "found": len(names), "find": find}
    return Page("groups.html", {**values, "silent": dict(sorted(silent.items()))})


async def show(asked: Asked) -> Page:
    """One, partition by partition."""
    name = asked.raw("name")
    group = (await group_offsets(asked.cluster, [name], _TIMEOUT_MS))[name]
    if group.error is not None:
        raise group.error
    if not group.exists and not group.offsets:
        raise NotFound(f"group {name}: there is no such group")
    ends = await ends_of(asked.cluster, group.offsets, SECONDS_MAX)
    lags = [lag_of(p, at, ends.get(p)) for p, at in sorted(group.offsets.items())]
    behind = [lag for lag in lags if lag.offsets][:TIMED_MAX]
    times = await asyncio.gather(*(first_unread_ms(asked.cluster, lag) for lag in behind))
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


def _seen(
    name: str, group: GroupOffsets, ends: Mapping[TopicPartition, int | KafkaError]
) -> GroupSeen:
    lags = [lag_of(p, at, ends.get(p)) for p, at in sorted(group.offsets.items())]
    why = "" if group.error is None else str(group.error)
    return GroupSeen(name, group.state, len(lags), together(lags), why)
