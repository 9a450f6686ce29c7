"""One pass that deletes the records that all consumers have read (the purpose of KIP-107).

The order of the steps makes it safe to kill a pass at any point: it reads the consumers' offsets
first, then the bounds of the logs, and deletes only what follows from both, by offset and never
"to the end". Nothing is kept between two passes, so a group that was deleted meanwhile, or never
came back, blocks the next pass.

The pass reads a topic's id before all that, and again right before it deletes records, so that it
notices a topic that was recreated in between. docs/delete-consumed.md lists what can still go
wrong.
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
_MADE_MEANWHILE = "its topic did not exist before the offsets were read; the next pass looks again"


@dataclass(frozen=True, slots=True)
class ConsumedOptions:
    """Which consumers must have read the records, and of which topics.

    Attributes:
        groups: ids of consumer groups.
        others: consumers that are not groups; their offsets were read before.
        topics: all partitions of these; if empty, of every topic that a consumer has an offset in.
        dry_run: decide, and delete nothing.
        timeout_ms: for the requests to group coordinators, and again for the deletion.
    """

    groups: tuple[str, ...] = ()
    others: tuple[Consumer, ...] = ()
    topics: tuple[str, ...] = ()
    dry_run: bool = False
    timeout_ms: int = TIMEOUT_MS


@dataclass(frozen=True, slots=True)
class ConsumedResult:
    """The verdict on a partition and the deletion's result (None: nothing was to be deleted)."""

    verdict: Verdict
    result: DeleteRecordsResult | None = None

    @property
    def blocked(self) -> tuple[str, ...]:
        """Why records stay that might be deleted, the broker's refusal included."""
        refused = self.result.error if self.result is not None else None
        return self.verdict.blocked if refused is None else (*self.verdict.blocked, str(refused))


@dataclass(frozen=True, slots=True)
class Pass:
    """All consumers, groups first, and all partitions in order."""

    consumers: tuple[Consumer, ...]
    outcomes: tuple[ConsumedResult, ...]


async def delete_consumed(cluster: Cluster, options: ConsumedOptions) -> Pass:
    """Run one pass.

    Raises:
        ConnectionLost: no broker can be reached.
        KafkaError: a topic of the options does not exist.
    """
    topics = await cluster.topics(options.topics or None)
    ids = {name: topic.topic_id for name, topic in topics.items() if topic.topic_id.int}
    groups = await group_offsets(cluster, options.groups, options.timeout_ms)
    consumers = (*(group_consumer(name, group) for name, group in groups.items()), *options.others)
    ends = await _all_ends(cluster, options.topics, consumers)
    ends |= {
        p: _MADE_MEANWHILE
        for p, bounds in ends.items()
        if p.topic not in topics and isinstance(bounds, LogEnds)
    }
    verdicts = [decide(p, ends[p], consumers, ids.get(p.topic)) for p in sorted(ends)]
    results: Mapping[TopicPartition, DeleteRecordsResult] = {}
    if not options.dry_run:
        before = {v.partition: v.delete_before for v in verdicts if v.delete_before is not None}
        results = await delete_records_before(cluster, before, options.timeout_ms, ids)
    outcomes = tuple(
        ConsumedResult(verdict, results.get(verdict.partition)) for verdict in verdicts
    )
    return Pass(consumers, outcomes)


async def _all_ends(
    cluster: Cluster, topics: Sequence[str], consumers: Sequence[Consumer]
) -> dict[TopicPartition, LogEnds | str]:
    """The bounds of every partition that the pass is about, or why they are not known."""
    names = sorted(set(topics) or {name for consumer in consumers for name in consumer.topics()})
    with contextlib.suppress(KafkaError):  # reported below, for the topic that it is about
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
    lookups = [_ends_at(cluster, leader, partitions) for leader, partitions in by_leader.items()]
    for leader_ends in await asyncio.gather(*lookups):
        ends |= leader_ends
    return ends


def _mentioned(topic: str, consumers: Sequence[Consumer], error: KafkaError) -> set[TopicPartition]:
    """The partitions in which consumers know a topic whose metadata cannot be read."""
    known = {p for c in consumers for p in (*c.offsets, *c.unknown) if p.topic == topic}
    if not known:
        raise error
    return known


async def _ends_at(
    cluster: Cluster, leader: int, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, LogEnds | str]:
    """Bounds from one leader: last stable offset first, then the high watermark (never less)."""

    async def offsets_at(
        spec: OffsetSpec, *, committed: bool = False
    ) -> Mapping[TopicPartition, int | str]:
        request = dict.fromkeys(partitions, spec)
        response = await list_offsets(connection, request, committed=committed)
        return {p: at if isinstance(at, int) else str(at) for p, at in response.items()}

    try:
        connection = await cluster.connection(leader)
        starts, stable = await offsets_at(EARLIEST), await offsets_at(LATEST, committed=True)
        highs = await offsets_at(LATEST)
    except (ConnectionLost, KafkaError) as e:
        return dict.fromkeys(partitions, str(e))
    return {p: _ends(starts.get(p), stable.get(p), highs.get(p)) for p in partitions}


def _ends(*offsets: int | str | None) -> LogEnds | str:
    known = [offset for offset in offsets if isinstance(offset, int) and offset >= 0]
    if len(known) == len(offsets):
        return LogEnds(*known)
    error = next((offset for offset in offsets if isinstance(offset, str)), None)
    return error or f"its offsets are not known ({ErrorCode.OFFSET_NOT_AVAILABLE.name})"


def group_consumer(group_id: str, group: GroupOffsets) -> Consumer:
    """A consumer group as its group coordinator describes it."""
    name = f"group {group_id}"
    if group.error is not None:
        return Consumer(name, problem=str(group.error))
    if not group.exists:
        return Consumer(name, problem=NO_SUCH_GROUP)
    return Consumer(
        name,
        {p: offset for p, offset in group.offsets.items() if isinstance(offset, int)},
        {p: str(why) for p, why in group.offsets.items() if not isinstance(why, int)},
    )
