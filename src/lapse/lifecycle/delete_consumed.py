"""Deleting what everybody has read, once over: ask, decide, delete (KIP-107's reason to be).

The order is what makes it safe to be killed at any point: how far consumers have come is asked
first, the ends of the logs then, and only what follows from both is deleted, by offset and never
"to the end". Nothing is kept between two passes, so a group that was deleted meanwhile, or never
came back, blocks the next one.

A topic's id is asked before all that, and again right before its records are deleted: that it was
made anew in between is seen. What can still go wrong is said in docs/delete-consumed.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.client.cluster import Cluster
from lapse.client.connection import ConnectionLost
from lapse.client.deletion import delete_records_before
from lapse.client.groups import GroupOffsets, group_offsets
from lapse.client.offsets import EARLIEST, LATEST, OffsetSpec, list_offsets
from lapse.client.settings import DeleteRecordsResult
from lapse.lifecycle.decide.consumed import Consumer, LogEnds, Verdict, decide

TIMEOUT_MS = 30_000
NO_SUCH_GROUP = "there is no such group"
_MADE_MEANWHILE = "its topic was not there when consumers were asked; the next pass looks again"


@dataclass(frozen=True, slots=True)
class ConsumedOptions:
    """Who must have read, and what of.

    Attributes:
        groups: by their ids.
        others: consumers that are no groups; where they are was asked before.
        topics: all partitions of these; none: of every topic that a consumer has an offset in.
        dry_run: decide, and delete nothing.
        timeout_ms: for the questions to coordinators, and again for the deletion.
    """

    groups: tuple[str, ...] = ()
    others: tuple[Consumer, ...] = ()
    topics: tuple[str, ...] = ()
    dry_run: bool = False
    timeout_ms: int = TIMEOUT_MS


@dataclass(frozen=True, slots=True)
class ConsumedResult:
    """What was decided of a partition, and what came of it (None: nothing was to be deleted)."""

    verdict: Verdict
    result: DeleteRecordsResult | None = None

    @property
    def blocked(self) -> tuple[str, ...]:
        """Why something stays that might go, the broker's refusal included."""
        refused = self.result.error if self.result is not None else None
        return self.verdict.blocked if refused is None else (*self.verdict.blocked, str(refused))


@dataclass(frozen=True, slots=True)
class Pass:
    """All consumers, groups first, and all partitions in order."""

    consumers: tuple[Consumer, ...]
    outcomes: tuple[ConsumedResult, ...]


async def delete_consumed(cluster: Cluster, wish: ConsumedOptions) -> Pass:
    """One pass.

    Raises:
        ConnectionLost: no broker can be reached.
        KafkaError: a topic that was asked for is not there.
    """
    topics = await cluster.topics(wish.topics or None)
    ids = {name: topic.topic_id for name, topic in topics.items() if topic.topic_id.int}
    told = await group_offsets(cluster, wish.groups, wish.timeout_ms)
    consumers = (*(group_consumer(name, one) for name, one in told.items()), *wish.others)
    ends = await _all_ends(cluster, wish.topics, consumers)
    ends |= {
        p: _MADE_MEANWHILE
        for p, told_ends in ends.items()
        if p.topic not in topics and isinstance(told_ends, LogEnds)
    }
    verdicts = [decide(p, ends[p], consumers, ids.get(p.topic)) for p in sorted(ends)]
    results: Mapping[TopicPartition, DeleteRecordsResult] = {}
    if not wish.dry_run:
        before = {v.partition: v.delete_before for v in verdicts if v.delete_before is not None}
        results = await delete_records_before(cluster, before, wish.timeout_ms, ids)
    outcomes = tuple(
        ConsumedResult(verdict, results.get(verdict.partition)) for verdict in verdicts
    )
    return Pass(consumers, outcomes)


async def _all_ends(
    cluster: Cluster, topics: Sequence[str], consumers: Sequence[Consumer]
) -> dict[TopicPartition, LogEnds | str]:
    """The bounds of every partition that the pass is about, or why they are not told."""
    names = sorted(set(topics) or {name for one in consumers for name in one.topics()})
    with contextlib.suppress(KafkaError):  # told below, for the topic that it is about
        await cluster.refresh(names)
    ends: dict[TopicPartition, LogEnds | str] = {}
    by_leader: dict[int, list[TopicPartition]] = {}
    for name in names:
        try:
            numbers = (await cluster.topic(name)).leaders
        except KafkaError as e:
            ends |= dict.fromkeys(_mentioned(name, consumers, e), str(e))
            continue
        for partition in (TopicPartition(name, number) for number in numbers):
            try:
                by_leader.setdefault(await cluster.leader(partition), []).append(partition)
            except KafkaError as e:
                ends[partition] = str(e)
    told = [_ends_at(cluster, leader, partitions) for leader, partitions in by_leader.items()]
    for one in await asyncio.gather(*told):
        ends |= one
    return ends


def _mentioned(topic: str, consumers: Sequence[Consumer], error: KafkaError) -> set[TopicPartition]:
    """The partitions by which consumers know a topic that cannot be looked at."""
    known = {p for one in consumers for p in (*one.offsets, *one.unknown) if p.topic == topic}
    if not known:
        raise error
    return known


async def _ends_at(
    cluster: Cluster, leader: int, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, LogEnds | str]:
    """From one leader; the last stable offset before the high watermark, which is never less."""

    async def ask(
        place: OffsetSpec, *, committed: bool = False
    ) -> Mapping[TopicPartition, int | str]:
        wanted = dict.fromkeys(partitions, place)
        answer = await list_offsets(connection, wanted, committed=committed)
        return {p: at if isinstance(at, int) else str(at) for p, at in answer.items()}

    try:
        connection = await cluster.connection(leader)
        starts, stable = await ask(EARLIEST), await ask(LATEST, committed=True)
        highs = await ask(LATEST)
    except (ConnectionLost, KafkaError) as e:
        return dict.fromkeys(partitions, str(e))
    return {p: _ends(starts.get(p), stable.get(p), highs.get(p)) for p in partitions}


def _ends(*asked: int | str | None) -> LogEnds | str:
    known = [one for one in asked if isinstance(one, int) and one >= 0]
    if len(known) == len(asked):
        return LogEnds(*known)
    said = next((one for one in asked if isinstance(one, str)), None)
    return said or f"its offsets are not told ({ErrorCode.OFFSET_NOT_AVAILABLE.name})"


def group_consumer(group_id: str, told: GroupOffsets) -> Consumer:
    """A group, by what its coordinator says."""
    name = f"group {group_id}"
    if told.error is not None:
        return Consumer(name, problem=str(told.error))
    if not told.exists:
        return Consumer(name, problem=NO_SUCH_GROUP)
    return Consumer(
        name,
        {p: offset for p, offset in told.offsets.items() if isinstance(offset, int)},
        {p: str(why) for p, why in told.offsets.items() if not isinstance(why, int)},
    )
