"""Groups over real logs: what fails, is loaded, expires, and ends with the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.coordinators.coordinator_log import read_events
from lapse.broker.coordinators.groups import OFFSETS_TOPIC, GroupCoordinator
from lapse.broker.logs.topics import NewTopic
from lapse.broker.node import Node
from lapse.coordination.classic.events import (
    Commit,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Leaving,
    Protocol,
    Sync,
)
from lapse.coordination.classic.state import State
from lapse.coordination.offsets.store import NO_RETENTION_MS, NewOffset
from lapse.coordination.partitioning import partition_for
from lapse.coordination.records.entries import Write
from lapse.coordination.records.offsets import TYPES
from lapse.coordination.records.subscription import ConsumerProtocolSubscription, write_versioned
from lapse.records.builder import BatchSpec, NewRecord
from lapse.testing.clock import ManualClock
from tests.support.broker.failing import FailingFs, unreadable
from tests.support.broker.running import running_node
from tests.unit.broker.coordinators.test_coordinator_log import commit as commit_record

NONE = ErrorCode.NONE
SETTINGS = {
    "lapse.housekeeping.interval.ms": "20",
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.retention.minutes": "1",
}
RETENTION_MS = 60_000
FAR_MS = 10 * 86_400_000  # more than a clock may jump
OUTSIDE = Commit()
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
_tokens = count()


def group_in(shard: int) -> str:
    """The name of a group that this partition of the offsets topic looks after."""
    return next(f"g{n}" for n in count() if partition_for(f"g{n}", 2) == shard)


G, OTHER = group_in(0), group_in(1)


def groups_of(node: Node) -> GroupCoordinator:
    return node.services.groups


async def create(node: Node, name: str, partitions: int = 2) -> None:
    await node.services.topics.create(NewTopic(name, partitions, {}))


async def delete(node: Node, name: str) -> None:
    await node.services.topics.delete(node.services.topics.image.topics[name])


def joining(member_id: str = "", *, session_ms: int = 10_000, topic: str = "t") -> Join:
    subscription = write_versioned(ConsumerProtocolSubscription(topics=(topic,)))
    protocols = (Protocol("range", subscription),)
    return Join(next(_tokens), member_id, session_ms, "consumer", protocols, needs_member_id=False)


async def member_of(
    node: Node, group: str, topic: str = "t", *, clock: ManualClock | None = None
) -> Joined:
    """A group of one, stable; it takes a millisecond of the clock."""
    asking = asyncio.create_task(groups_of(node).handle(group, joining(topic=topic)))
    while clock is not None and not asking.done():
        await asyncio.sleep(0.005)
        clock.advance(1)
    joined = await asking
    assert joined.error is NONE
    sync = Sync(
        next(_tokens), joined.member_id, joined.generation, assignments={joined.member_id: b"a"}
    )
    assert (await groups_of(node).handle(group, sync)).error is NONE
    return joined


async def leave(node: Node, group: str, member: Joined) -> None:
    left = await groups_of(node).handle(group, Leave(next(_tokens), (Leaving(member.member_id),)))
    assert left.error is NONE


async def commit(
    node: Node, group: str, offsets: Mapping[TopicPartition, int], member: Commit = OUTSIDE
) -> set[ErrorCode]:
    topics = node.services.topics.image.topics
    new = {
        tp: NewOffset(offset, topic_id=topics[tp.topic].topic_id) for tp, offset in offsets.items()
    }
    shard = await groups_of(node).shard_of(group)
    return set((await shard.commit(group, member, new, NO_RETENTION_MS)).values())


async def fetched(node: Node, group: str) -> dict[TopicPartition, int]:
    shard = await groups_of(node).shard_of(group)
    return {tp: found.offset for tp, found in shard.offsets.fetch(group).items()}


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not what():  # noqa: ASYNC110  (it is the log's word, and nobody is told)
            await asyncio.sleep(0.005)


def removed(node: Node, shard: int) -> Iterator[str]:
    """The groups of tombstones in a shard's log, offsets' and groups' alike."""
    log = node.services.partitions.get(TopicPartition(OFFSETS_TOPIC, shard))
    for event in read_events(log, TYPES):
        if isinstance(event, Write) and event.entry.value is None:
            yield event.entry.key.group


# --- appends that fail ----------------------------------------------------------------------------


async def test_what_cannot_be_appended_is_not_so(tmp_path: Path) -> None:
    fs = FailingFs()
    dirs = ",".join(str(tmp_path / name) for name in "ab")
    async with running_node(tmp_path / "a", {**SETTINGS, "log.dirs": dirs}, fs=fs) as node:
        await create(node, "t")
        assert await commit(node, G, {T0: 5}) == {NONE}
        joined = await groups_of(node).handle(G, joining())
        shard = await groups_of(node).shard_of(G)
        fs.broken = node.services.partitions.get(TopicPartition(OFFSETS_TOPIC, 0)).dir
        sync = Sync(next(_tokens), joined.member_id, joined.generation)
        committing = Commit(joined.member_id, joined.generation)
        synced, errors = await asyncio.gather(
            groups_of(node).handle(G, sync), shard.commit(G, OUTSIDE, {T0: NewOffset(9)}, -1)
        )
        # The other append's failure may have taken the directory offline before this one begins.
        gone = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert synced.error in gone
        assert errors[T0] in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NOT_COORDINATOR}
        again = await shard.commit(G, committing, {T0: NewOffset(9)}, -1)
        assert again[T0] is not NONE
        assert shard.offsets.fetch(G)[T0].offset == 5
        with pytest.raises(KafkaError, match="offline") as refused:
            await groups_of(node).shard_of(G)
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        beat = await groups_of(node).handle(G, Heartbeat(next(_tokens), joined.member_id, 1))
        assert beat.error is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_an_append_that_fails_leaves_the_offset_as_it_was(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        assert await commit(node, G, {T0: 5}) == {NONE}
        small = {"max.message.bytes": "70", "cleanup.policy": "compact"}
        await node.services.topics.alter(OFFSETS_TOPIC, lambda _: small)
        assert await commit(node, G, {T0: 6, T1: 6}) == {ErrorCode.UNKNOWN_SERVER_ERROR}
        assert await fetched(node, G) == {T0: 5}
        await node.services.topics.alter(OFFSETS_TOPIC, lambda _: {"cleanup.policy": "compact"})
        assert await commit(node, G, {T0: 7, T1: 7}) == {NONE}
        assert await fetched(node, G) == {T0: 7, T1: 7}


async def test_a_deletion_that_fails_leaves_the_group(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        member = await member_of(node, G)
        assert await commit(node, G, {T0: 5}, Commit(member.member_id, member.generation)) == {NONE}
        shard = await groups_of(node).shard_of(G)
        assert await shard.delete_group(G) is ErrorCode.NON_EMPTY_GROUP
        await leave(node, G, member)
        small = {"max.message.bytes": "70", "cleanup.policy": "compact"}
        await node.services.topics.alter(OFFSETS_TOPIC, lambda _: small)
        assert await shard.delete_group(G) is ErrorCode.UNKNOWN_SERVER_ERROR
        assert (shard.groups[G].state, await fetched(node, G)) == (State.EMPTY, {T0: 5})
        await node.services.topics.alter(OFFSETS_TOPIC, lambda _: {"cleanup.policy": "compact"})
        assert await shard.delete_group(G) is NONE
        assert (G in shard.groups, await fetched(node, G)) == (False, {})
        assert list(removed(node, 0)) == [G, G]
        assert await shard.delete_group(G) is ErrorCode.GROUP_ID_NOT_FOUND


# --- loading --------------------------------------------------------------------------------------


async def test_groups_and_offsets_outlive_the_broker(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        member = await member_of(node, G)
        assert await commit(node, G, {T0: 5}, Commit(member.member_id, member.generation)) == {NONE}
        assert await commit(node, OTHER, {T1: 6}) == {NONE}
    async with running_node(tmp_path / "data", SETTINGS) as node:
        one, two = await groups_of(node).all_shards()
        assert (set(one.groups), set(two.groups)) == ({G}, set())
        assert (await fetched(node, G), await fetched(node, OTHER)) == ({T0: 5}, {T1: 6})
        assert list(two.offsets.groups()) == [OTHER]
        beat = Heartbeat(next(_tokens), member.member_id, member.generation)
        assert (await groups_of(node).handle(G, beat)).error is NONE


async def test_loading_steps_over_what_does_not_parse(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        await groups_of(node).require_topic()
        log = node.services.partitions.get(TopicPartition(OFFSETS_TOPIC, 0))
        key, value = commit_record(G, 5)
        records = [(b"\0\1", b"x"), (key[:-1], value), (key, value), (b"\0\2\0", b"")]
        log.append_own([NewRecord(k, v, 1) for k, v in records], BatchSpec(), now_ms=1)
        assert await fetched(node, G) == {T0: 5}


async def test_a_shard_that_cannot_be_read_is_tried_again_and_stops_no_other(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        await groups_of(node).require_topic()
        log = node.services.partitions.get(TopicPartition(OFFSETS_TOPIC, 0))
        key, value = commit_record(G, 5)
        log.append_own([NewRecord(key, value, 1)], BatchSpec(), now_ms=1)
        path = log.dir / f"{0:020d}.log"
        data = path.read_bytes()
        path.write_bytes(data[:-1] + b"\xff")
        answer = await groups_of(node).handle(G, joining())
        assert answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await commit(node, OTHER, {T0: 1}) == {NONE}
        path.write_bytes(data)
        with unreadable(log):
            answer = await groups_of(node).handle(G, joining())
            assert answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
            with pytest.raises(KafkaError, match="reading __consumer_offsets-0") as refused:
                await groups_of(node).shard_of(G)
            assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await fetched(node, G) == {T0: 5}


# --- topics that are deleted ----------------------------------------------------------------------


async def test_offsets_of_a_deleted_topic_go(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        await create(node, "u")
        kept = TopicPartition("u", 0)
        for group in (G, OTHER):
            assert await commit(node, group, {T0: 5, T1: 5, kept: 7}) == {NONE}
        one, two = await groups_of(node).all_shards()
        await delete(node, "t")
        await until(lambda: all(not s.offsets.has_any(g, T0) for s, g in ((one, G), (two, OTHER))))
        assert (await fetched(node, G), await fetched(node, OTHER)) == ({kept: 7}, {kept: 7})
        assert list(removed(node, 0)) == [G, G]


async def test_a_commit_that_is_on_its_way_goes_with_its_topic(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        shard = await groups_of(node).shard_of(G)
        topic = node.services.topics.image.topics["t"]
        new = {T0: NewOffset(5, topic_id=topic.topic_id)}
        committing = asyncio.create_task(shard.commit(G, OUTSIDE, new, NO_RETENTION_MS))
        await asyncio.sleep(0)
        groups_of(node).topic_deleted(topic)
        assert await committing == {T0: NONE}
        await until(lambda: not shard.offsets.has_any(G, T0))


async def test_a_commit_to_the_topic_made_anew_is_not_taken_for_one_to_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while the tombstones of the old one wait for a follower that is slow."""
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        assert await commit(node, G, {T0: 5}) == {NONE}
        replicas, go_on = node.services.replicas, asyncio.Event()
        committed, waiting = replicas.committed, asyncio.Event()

        async def slow(appended: Any, seconds: float) -> Any:
            waiting.set()
            await go_on.wait()
            return await committed(appended, seconds)

        monkeypatch.setattr(replicas, "committed", slow)
        other = asyncio.create_task(commit(node, G, {T1: 1}))
        await waiting.wait()
        await delete(node, "t")
        await create(node, "t")
        anew = asyncio.create_task(commit(node, G, {T0: 3}))
        for _ in range(20):  # the commit is queued, and the tombstones wait
            await asyncio.sleep(0)
        go_on.set()
        assert (await anew, await other) == ({NONE}, {NONE})
        shard = await groups_of(node).shard_of(G)
        await until(lambda: not shard._tasks)
        assert await fetched(node, G) == {T0: 3}


async def test_they_go_though_others_commit_all_the_time(tmp_path: Path) -> None:
    """Those of other topics are neither waited for without end nor taken."""
    kept = TopicPartition("u", 0)
    async with running_node(tmp_path / "data", SETTINGS) as node:
        for name in "tu":
            await create(node, name)
        assert await commit(node, G, {T0: 5}) == {NONE}
        shard, is_over = await groups_of(node).shard_of(G), asyncio.Event()

        async def commits() -> None:
            while not is_over.is_set():
                assert await commit(node, G, {kept: 7}) == {NONE}

        busy = [asyncio.create_task(commits()) for _ in range(4)]
        await delete(node, "t")
        await until(lambda: not shard.offsets.has_any(G, T0))
        is_over.set()
        await asyncio.gather(*busy)
        assert await fetched(node, G) == {kept: 7}


async def test_of_very_many_offsets_of_a_deleted_topic_all_go(tmp_path: Path) -> None:
    """More tombstones than a batch may have: none was ever written."""
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t", 100)
        names = [f"{i:01000d}" for i in range(100)]
        names = [name for name in names if partition_for(name, 2) == 0][:15]
        for name in names:
            offsets = {TopicPartition("t", p): 77 for p in range(100)}
            assert await commit(node, name, offsets) == {NONE}
        await delete(node, "t")
        shard = await groups_of(node).shard_of(names[0])
        await until(lambda: not any(shard.offsets.has_any(name, T0) for name in names))
        await until(lambda: not shard._tasks)
        assert [await fetched(node, name) for name in names] == [{}] * len(names)


async def test_a_deletion_that_nobody_saw_is_made_up_for(tmp_path: Path) -> None:
    """The shard was not loaded; and the topic was made anew, with nothing read of it yet."""
    async with running_node(tmp_path / "data", SETTINGS) as node:
        for name in ("t", "u"):
            await create(node, name)
        assert await commit(node, G, {T0: 5, TopicPartition("u", 0): 7}) == {NONE}
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await delete(node, "t")
        await create(node, "t")
        shard = await groups_of(node).shard_of(G)
        await until(lambda: not shard.offsets.has_any(G, T0))
        assert await fetched(node, G) == {TopicPartition("u", 0): 7}
    async with running_node(tmp_path / "data", SETTINGS) as node:
        assert await fetched(node, G) == {TopicPartition("u", 0): 7}
        assert list(removed(node, 0)) == [G]


async def test_without_their_topic_there_are_no_groups(tmp_path: Path) -> None:
    settings = {**SETTINGS, "group.initial.rebalance.delay.ms": "60000"}
    async with running_node(tmp_path / "data", settings) as node:
        await create(node, "t")
        assert await commit(node, G, {T0: 5}) == {NONE}
        waiting = asyncio.create_task(groups_of(node).handle(G, joining()))
        await asyncio.sleep(0.05)
        await delete(node, OFFSETS_TOPIC)
        async with asyncio.timeout(20):
            assert (await waiting).error is ErrorCode.NOT_COORDINATOR
        assert await fetched(node, G) == {}
        assert await commit(node, G, {T0: 6}) == {NONE}


# --- time -----------------------------------------------------------------------------------------


async def noticed(node: Node, clock: ManualClock) -> None:
    """The broker has seen how late it is now; the intervals between its looks go by."""
    now_ms = clock.now_ms()

    def seen() -> bool:
        clock.advance(20)
        past_ms = node.services.partitions.past_ms(0)
        return past_ms is not None and past_ms >= now_ms

    await until(seen)


async def test_offsets_expire_and_then_their_group(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_node(tmp_path / "data", SETTINGS, clock=clock) as node:
        await create(node, "t")
        member = await member_of(node, G, clock=clock)
        assert await commit(node, G, {T0: 5}, Commit(member.member_id, member.generation)) == {NONE}
        assert await commit(node, OTHER, {T0: 5}) == {NONE}
        shards = await groups_of(node).all_shards()
        await leave(node, G, member)
        clock.advance(RETENTION_MS // 2)
        await noticed(node, clock)
        for shard in shards:
            shard.expire()
        await asyncio.sleep(0.05)
        assert (await fetched(node, G), await fetched(node, OTHER)) == ({T0: 5}, {T0: 5})
        clock.advance(RETENTION_MS // 2)
        await noticed(node, clock)
        for shard in shards:
            shard.expire()
        await until(lambda: not any(s.groups or list(s.offsets.groups()) for s in shards))
        assert (list(removed(node, 0)), list(removed(node, 1))) == ([G, G], [OTHER])


@pytest.mark.parametrize("is_queued", [True, False], ids=["before the look", "after it"])
@pytest.mark.parametrize("tp", [T0, T1], ids=["the same partition", "another one"])
async def test_a_commit_that_is_on_its_way_holds_its_offset_and_the_group(
    tmp_path: Path, tp: TopicPartition, is_queued: bool
) -> None:
    """Its tombstone would come behind it in the log: it was acknowledged, and gone."""
    clock = ManualClock()
    async with running_node(tmp_path / "data", SETTINGS, clock=clock) as node:
        await create(node, "t")
        member = await member_of(node, G, clock=clock)
        assert await commit(node, G, {T0: 5}, Commit(member.member_id, member.generation)) == {NONE}
        await leave(node, G, member)
        shard = await groups_of(node).shard_of(G)
        clock.advance(RETENTION_MS)
        await noticed(node, clock)
        committing = asyncio.create_task(commit(node, G, {tp: 77}))
        if is_queued:
            await asyncio.sleep(0)
        shard.expire()
        assert await committing == {NONE}
        await until(lambda: not shard._tasks)
        assert await fetched(node, G) == {tp: 77}
        assert G in shard.groups


async def test_what_members_read_does_not_expire(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_node(tmp_path / "data", SETTINGS, clock=clock) as node:
        for name in ("t", "u"):
            await create(node, name)
        member = await member_of(node, G, "u", clock=clock)
        committing = Commit(member.member_id, member.generation)
        read = TopicPartition("u", 0)
        assert await commit(node, G, {T0: 5, read: 7}, committing) == {NONE}
        shard = await groups_of(node).shard_of(G)
        clock.advance(RETENTION_MS)
        await noticed(node, clock)
        shard.expire()
        await until(lambda: not shard.offsets.has_any(G, T0))
        assert await fetched(node, G) == {read: 7}


async def test_no_offset_expires_by_a_clock_that_jumped(tmp_path: Path) -> None:
    """Neither before the jump is seen nor while nobody vouches for it."""
    clock = ManualClock()
    async with running_node(tmp_path / "data", SETTINGS, clock=clock) as node:
        await create(node, "t")
        assert await commit(node, G, {T0: 5}) == {NONE}
        shard = await groups_of(node).shard_of(G)
        await noticed(node, clock)
        clock.jump(FAR_MS)
        shard.expire()
        clock.advance(1000)
        await until(lambda: node.services.partitions.past_ms(0) is None)
        shard.expire()
        await asyncio.sleep(0.05)
        assert await fetched(node, G) == {T0: 5}


async def test_the_broker_looks_for_itself(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = {**SETTINGS, "offsets.retention.check.interval.ms": "20"}
    async with running_node(tmp_path / "data", settings, clock=clock) as node:
        await create(node, "t")
        assert await commit(node, G, {T0: 5}) == {NONE}
        clock.advance(RETENTION_MS)
        shard = await groups_of(node).shard_of(G)
        await until(lambda: not shard.offsets.has_any(G, T0))


async def test_a_member_that_is_silent_is_missed(tmp_path: Path) -> None:
    settings = {**SETTINGS, "group.min.session.timeout.ms": "50"}
    async with running_node(tmp_path / "data", settings) as node:
        await create(node, "t")
        joined = await groups_of(node).handle(G, joining(session_ms=100))
        assert joined.error is NONE
        shard = await groups_of(node).shard_of(G)
        await until(lambda: G in shard.groups and not shard.groups[G].members)
        beat = Heartbeat(next(_tokens), joined.member_id, joined.generation)
        assert (await groups_of(node).handle(G, beat)).error is ErrorCode.UNKNOWN_MEMBER_ID


async def beaten(node: Node, member: Joined) -> ErrorCode:
    beat = Heartbeat(next(_tokens), member.member_id, member.generation)
    return (await groups_of(node).handle(G, beat)).error


async def test_no_session_ends_by_a_clock_that_is_set_on(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_node(tmp_path / "data", SETTINGS, clock=clock) as node:
        await create(node, "t")
        member = await member_of(node, G, clock=clock)
        clock.jump(FAR_MS)
        shard = await groups_of(node).shard_of(G)
        shard._tick(shard.groups[G])
        assert await beaten(node, member) is NONE


@pytest.mark.parametrize("commits", [True, False], ids=["one that commits", "silent at once"])
async def test_a_session_ends_in_time_though_the_clock_is_set_back(
    tmp_path: Path, commits: bool
) -> None:
    """Its partitions, and any rebalance, waited for as long as the clock was set back by."""
    clock = ManualClock()
    async with running_node(tmp_path / "data", SETTINGS, clock=clock) as node:
        await create(node, "t")
        await noticed(node, clock)
        member = await member_of(node, G, clock=clock)
        clock.jump(-FAR_MS)
        if commits:
            committing = Commit(member.member_id, member.generation)
            assert await commit(node, G, {T0: 5}, committing) == {NONE}
        clock.advance(10_001)
        shard = await groups_of(node).shard_of(G)
        shard._tick(shard.groups[G])
        assert await beaten(node, member) is ErrorCode.UNKNOWN_MEMBER_ID


async def test_offsets_are_kept_though_their_members_left_while_the_clock_was_behind(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with running_node(tmp_path / "data", SETTINGS, clock=clock) as node:
        await create(node, "t")
        await noticed(node, clock)
        member = await member_of(node, G, clock=clock)
        assert await commit(node, G, {T0: 5}, Commit(member.member_id, member.generation)) == {NONE}
        shard = await groups_of(node).shard_of(G)
        clock.jump(-FAR_MS)
        await leave(node, G, member)
        clock.jump(FAR_MS)
        await noticed(node, clock)
        shard.expire()
        await until(lambda: not shard._tasks)
        assert await fetched(node, G) == {T0: 5}


# --- the end --------------------------------------------------------------------------------------


async def test_members_that_wait_are_sent_elsewhere(tmp_path: Path) -> None:
    settings = {**SETTINGS, "group.initial.rebalance.delay.ms": "60000"}
    async with running_node(tmp_path / "data", settings) as node:
        waiting = [asyncio.create_task(groups_of(node).handle(g, joining())) for g in (G, OTHER)]
        shards = groups_of(node)._shards  # made and loaded, each with its member
        await until(
            lambda: (
                len(shards) == 2
                and all(one.is_loaded and one.shard.result().groups for one in shards.values())
            )
        )
        await groups_of(node).close()
        async with asyncio.timeout(20):
            answers = await asyncio.gather(*waiting)
        assert [a.error for a in answers] == [ErrorCode.NOT_COORDINATOR] * 2


async def test_what_is_queued_is_written(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        shard = await groups_of(node).shard_of(G)
        topic_id = node.services.topics.image.topics["t"].topic_id
        committing = asyncio.create_task(
            shard.commit(G, OUTSIDE, {T0: NewOffset(5, topic_id=topic_id)}, NO_RETENTION_MS)
        )
        await asyncio.sleep(0)
        await groups_of(node).close()
        assert committing.done()
        assert await committing == {T0: NONE}
    async with running_node(tmp_path / "data", SETTINGS) as node:
        assert await fetched(node, G) == {T0: 5}
