"""Groups of KIP-848 over real logs: appended before they count, timed, converted, removed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.coordinators.consumer_groups import MemberHeartbeat
from lapse.broker.coordinators.coordinator_log import read_events
from lapse.broker.coordinators.group_partition import Shard
from lapse.broker.coordinators.groups import OFFSETS_TOPIC
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
from lapse.coordination.consumer.events import Beat, BeatTaken
from lapse.coordination.offsets.store import NO_RETENTION_MS, NewOffset
from lapse.coordination.records.entries import Write
from lapse.coordination.records.offsets import TYPES
from lapse.coordination.records.subscription import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
    write_versioned,
)
from lapse.testing.clock import ManualClock
from lapse.wire.schema.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from lapse.wire.schema.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from lapse.wire.schema.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from lapse.wire.schema.list_groups import ListGroupsRequest, ListGroupsResponse
from lapse.wire.schema.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from tests.support.broker.failing import FailingFs
from tests.support.broker.running import connect, running_node
from tests.support.coordination.consumers import joining
from tests.unit.broker.coordinators.test_groups import FAR_MS, create, until

E = ErrorCode
G = "g"
SETTINGS = {
    "lapse.housekeeping.interval.ms": "20",
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.retention.minutes": "1",
    "group.consumer.assignment.interval.ms": "0",
}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
_tokens = count()


async def shard_of(node: Node) -> Shard:
    return await node.services.groups.shard_of(G)


async def beat(node: Node, beat: Beat, knows: str = "tu") -> BeatTaken:
    shard = await shard_of(node)
    return await shard.consumers.heartbeat(MemberHeartbeat(G, beat, lambda name: name in knows))


async def join(node: Node, member_id: str = "a", *topics: str) -> BeatTaken:
    return await beat(node, joining(member_id, *(topics or ("t",))))


async def code_of(node: Node, refused: Beat) -> ErrorCode:
    with pytest.raises(KafkaError) as e:
        await beat(node, refused)
    return e.value.code


async def commit(node: Node, offsets: Mapping[TopicPartition, int], member: Commit) -> set[E]:
    topics = node.services.topics.image.topics
    new = {tp: NewOffset(o, topic_id=topics[tp.topic].topic_id) for tp, o in offsets.items()}
    return set((await (await shard_of(node)).commit(G, member, new, NO_RETENTION_MS)).values())


def classic() -> Join:
    subscription = write_versioned(ConsumerProtocolSubscription(topics=("t",)))
    protocols = (Protocol("range", subscription),)
    return Join(next(_tokens), "", 10_000, "consumer", protocols, needs_member_id=False)


def entries(node: Node) -> list[Write]:
    log = node.services.partitions.get(TopicPartition(OFFSETS_TOPIC, 0))
    return [event for event in read_events(log, TYPES) if isinstance(event, Write)]


def left(node: Node) -> set[int]:
    """Types of what the log still says."""
    last = {(w.entry.type.id, w.entry.key): w.entry.value for w in entries(node)}
    return {type_id for (type_id, _), value in last.items() if value is not None}


# --- steps ----------------------------------------------------------------------------------------


async def test_a_group_outlives_the_broker(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        await join(node, "a")
        await join(node, "b")
        state = (await shard_of(node)).consumers.groups[G].state
    async with running_node(tmp_path / "data", SETTINGS) as node:
        assert (await shard_of(node)).consumers.groups[G].state == state
        assert (await beat(node, Beat("b", 3))).epoch == 3


async def test_a_step_that_cannot_be_appended_is_none(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        await join(node, "a")
        consumers = (await shard_of(node)).consumers
        before = consumers.groups[G].state.copy()
        small = {"max.message.bytes": "70", "cleanup.policy": "compact"}
        await node.services.topics.alter(OFFSETS_TOPIC, lambda _: small)
        assert await code_of(node, joining("b", "t")) is E.UNKNOWN_SERVER_ERROR
        assert consumers.groups[G].state == before
        other = MemberHeartbeat("new", joining("a", "t"), lambda _: True)
        with pytest.raises(KafkaError):
            await consumers.heartbeat(other)
        assert "new" not in consumers.groups
        await node.services.topics.alter(OFFSETS_TOPIC, lambda _: {"cleanup.policy": "compact"})
        assert (await join(node, "b")).epoch == 3


async def test_a_step_goes_on_when_its_client_is_gone(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        consumers = (await shard_of(node)).consumers
        asking = asyncio.create_task(join(node))
        while not consumers.holds(G):  # noqa: ASYNC110  (nobody is told of it)
            await asyncio.sleep(0)
        asking.cancel()
        await until(lambda: G in consumers.groups)
        assert (await beat(node, Beat("a", 2))).epoch == 2


async def test_heartbeats_that_come_at_once_are_taken_one_by_one(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        taken = await asyncio.gather(*(join(node, f"m{n}") for n in range(8)))
        assert sorted(one.epoch for one in taken) == list(range(2, 10))
        assert len((await shard_of(node)).consumers.groups[G].state.members) == 8


async def test_silent_members_are_removed_by_the_clock(tmp_path: Path) -> None:
    settings = {**SETTINGS, "group.consumer.session.timeout.ms": "100"}
    async with running_node(tmp_path / "data", settings) as node:
        await create(node, "t")
        await join(node, "a")
        group = (await shard_of(node)).consumers.groups[G]
        await until(lambda: not group.state.members)
        assert await code_of(node, Beat("a", 1)) is E.UNKNOWN_MEMBER_ID


async def test_after_the_end_nothing_is_appended(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        await join(node)
        consumers = (await shard_of(node)).consumers
    with pytest.raises(KafkaError) as e:
        await consumers.heartbeat(MemberHeartbeat(G, Beat("a", 1), lambda _: True))
    assert e.value.code is E.NOT_COORDINATOR


# --- patterns -------------------------------------------------------------------------------------


async def test_a_pattern_matches_what_its_member_may_know(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", SETTINGS) as node:
        for name in ("t", "u", "tt"):
            await create(node, name, 1)
        ids = {t.name: t.topic_id for t in node.services.topics.image.topics.values()}
        taken = await beat(node, joining("a", topics=None, pattern="t|u"), knows="t")
        assert taken.assignment == {ids["t"]: frozenset({0})}
        again = Beat("a", 2, pattern="a)|(b", topics=())
        assert await code_of(node, again) is E.INVALID_REGULAR_EXPRESSION


# --- from one protocol to the other ---------------------------------------------------------------


async def test_a_classic_group_without_members_becomes_a_new_one(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        groups, shard = node.services.groups, await shard_of(node)
        joined = await groups.handle(G, classic())
        await groups.handle(G, Leave(next(_tokens), (Leaving(joined.member_id),)))
        await commit(node, {T0: 5}, Commit())
        first = len(entries(node))
        await join(node)
        assert G not in shard.groups
        kinds = [w.entry.type.id for w in entries(node)[first:]]
        assert kinds[0] == 2, "Kafka takes the whole group away where it reads this tombstone"
        assert shard.offsets.fetch(G)[T0].offset == 5
        assert 2 not in left(node)


async def test_a_conversion_that_cannot_be_appended_leaves_the_classic_group(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        groups, shard = node.services.groups, await shard_of(node)
        joined = await groups.handle(G, classic())
        await groups.handle(G, Leave(next(_tokens), (Leaving(joined.member_id),)))
        small = {"max.message.bytes": "70", "cleanup.policy": "compact"}
        await node.services.topics.alter(OFFSETS_TOPIC, lambda _: small)
        assert await code_of(node, joining("a", "t")) is E.UNKNOWN_SERVER_ERROR
        assert shard.groups[G].state is State.EMPTY
        await node.services.topics.alter(OFFSETS_TOPIC, lambda _: {"cleanup.policy": "compact"})
        assert (await groups.handle(G, classic())).error is E.NONE


async def test_a_group_without_members_makes_way_for_a_classic_one(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        groups, shard = node.services.groups, await shard_of(node)
        await join(node)
        heartbeat = Heartbeat(next(_tokens), "a", 1)
        assert (await groups.handle(G, heartbeat)).error is E.UNKNOWN_MEMBER_ID
        await beat(node, Beat("a", -1))
        heartbeat = Heartbeat(next(_tokens), "a", 1)
        assert (await groups.handle(G, heartbeat)).error is E.UNKNOWN_MEMBER_ID
        assert G in shard.consumers.groups
        joined, lost = await asyncio.gather(
            groups.handle(G, classic()), beat(node, Beat("a", 1)), return_exceptions=True
        )
        assert not isinstance(joined, BaseException)
        assert joined.error is E.NONE
        assert isinstance(lost, KafkaError)
        assert (G in shard.groups, G in shard.consumers.groups) == (True, False)
        assert left(node) <= {2}


async def stable(node: Node, session_ms: int = 10_000) -> Joined:
    """A classic group of one member that has both partitions of `t`."""
    groups = node.services.groups
    joined = await groups.handle(G, replace(classic(), session_timeout_ms=session_ms))
    own = TopicPartitions(topic="t", partitions=(0, 1))
    given = write_versioned(ConsumerProtocolAssignment(assigned_partitions=(own,)))
    sync = Sync(next(_tokens), joined.member_id, 1, assignments={joined.member_id: given})
    assert (await groups.handle(G, sync)).error is E.NONE
    return joined


def heartbeat(member: Joined, generation: int) -> Heartbeat:
    return Heartbeat(next(_tokens), member.member_id, generation)


async def test_up_and_down_with_a_restart_in_each(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        shard, ask = await shard_of(node), node.services.groups.handle
        c = await stable(node)
        assert (await join(node, "n")).assignment == {}
        assert (G in shard.groups, G in shard.consumers.groups) == (False, True)
        assert 2 not in left(node)
        assert (await ask(G, heartbeat(c, 1))).error is E.REBALANCE_IN_PROGRESS
        assert await commit(node, {T0: 5}, Commit(c.member_id, 1, knows_epochs=False)) == {E.NONE}
        refused = Commit(c.member_id, 2, knows_epochs=False)
        assert await commit(node, {T0: 6}, refused) == {E.ILLEGAL_GENERATION}
        state = shard.consumers.groups[G].state
    async with running_node(tmp_path / "data", SETTINGS) as node:
        shard, ask = await shard_of(node), node.services.groups.handle
        assert shard.consumers.groups[G].state == state
        assert (await ask(G, replace(classic(), member_id=c.member_id))).generation == 2
        assert len((await beat(node, Beat("n", 2))).assignment or ()) == 1
        told = ConsumerGroupDescribeRequest(group_ids=(G,), include_authorized_operations=False)
        async with await connect(node) as connection:
            answer = await connection.request(told, ConsumerGroupDescribeResponse, version=1)
        kinds = {m.member_id: m.member_type for m in answer.groups[0].members}
        assert kinds == {c.member_id: 0, "n": 1}
        await beat(node, Beat("n", -1))
        assert (G in shard.groups, G in shard.consumers.groups) == (True, False)
        assert left(node) == {1, 2}
    async with running_node(tmp_path / "data", SETTINGS) as node:
        shard, ask = await shard_of(node), node.services.groups.handle
        assert (await ask(G, heartbeat(c, 2))).error is E.REBALANCE_IN_PROGRESS
        joined = await ask(G, replace(classic(), member_id=c.member_id))
        assert (joined.error, joined.generation, joined.leader) == (E.NONE, 3, c.member_id)


async def test_a_group_whose_conversion_cannot_be_appended_stays_classic(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        shard, ask = await shard_of(node), node.services.groups.handle
        c = await stable(node)
        small = {"max.message.bytes": "70", "cleanup.policy": "compact"}
        await node.services.topics.alter(OFFSETS_TOPIC, lambda _: small)
        assert await code_of(node, joining("n", "t")) is E.UNKNOWN_SERVER_ERROR
        assert (G in shard.groups, G in shard.consumers.groups) == (True, False)
        assert (await ask(G, heartbeat(c, 1))).error is E.NONE
        await node.services.topics.alter(OFFSETS_TOPIC, lambda _: {"cleanup.policy": "compact"})
        await join(node, "n")
        await node.services.topics.alter(OFFSETS_TOPIC, lambda _: small)
        assert await code_of(node, Beat("n", -1)) is E.UNKNOWN_SERVER_ERROR
        assert (G in shard.groups, G in shard.consumers.groups) == (False, True)


async def test_what_is_being_stored_comes_before_a_conversion(tmp_path: Path) -> None:
    """What a leader gave is what its member holds, though it was on its way to the log."""
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        shard, ask = await shard_of(node), node.services.groups.handle
        syncing = asyncio.create_task(stable(node))

        def is_assigning() -> bool:
            group = shard.groups.get(G)
            return group is not None and group.state is State.COMPLETING and bool(group.storing)

        while not is_assigning():  # noqa: ASYNC110  (nobody is told of it)
            await asyncio.sleep(0)
        assert (await join(node, "n")).assignment == {}
        c = await syncing
        held = shard.consumers.groups[G].state.members[c.member_id].assigned
        assert [sorted(numbers) for numbers in held.values()] == [[0, 1]]
        assert (await ask(G, heartbeat(c, 1))).error is E.REBALANCE_IN_PROGRESS


async def test_a_group_that_is_just_being_deleted_is_waited_for(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        shard = await shard_of(node)
        c = await stable(node)
        await node.services.groups.handle(G, Leave(next(_tokens), (Leaving(c.member_id),)))
        async with asyncio.timeout(20):
            deleted, taken = await asyncio.gather(shard.delete_group(G), join(node, "n"))
        assert (deleted, taken.epoch) == (E.NONE, 2)
        assert (G in shard.groups, G in shard.consumers.groups) == (False, True)


class SlowFs(FailingFs):
    """Nothing is written while `gate` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def check(self, path: Path, doing: str) -> None:
        assert self.gate.wait(20), f"{doing} {path}"


async def test_nothing_happens_to_a_group_that_is_being_converted(tmp_path: Path) -> None:
    """A session that ends meanwhile would have the classic group stored behind its tombstone."""
    fs, settings = SlowFs(), {**SETTINGS, "group.min.session.timeout.ms": "1"}
    async with running_node(tmp_path / "data", settings, fs=fs) as node:
        await create(node, "t")
        shard, session_ms = await shard_of(node), 300
        c = await stable(node, session_ms)
        fs.gate.clear()
        try:
            joining_ = asyncio.create_task(join(node, "n"))
            await asyncio.sleep(session_ms / 1000 + 0.1)
            assert (G in shard.groups, shard.consumers.holds(G)) == (True, True)
        finally:
            fs.gate.set()
        await joining_
        assert set(shard.consumers.groups[G].state.members) == {"n", c.member_id}
        assert 2 not in left(node)


async def test_who_waits_in_a_classic_group_is_answered_by_its_conversion(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        shard, ask = await shard_of(node), node.services.groups.handle
        await stable(node)
        waiting = asyncio.create_task(ask(G, classic()))
        await until(lambda: len(shard.groups[G].members) == 2)
        first, _ = await asyncio.gather(join(node, "n"), join(node, "m"))
        assert first.epoch == 2
        assert (await waiting).error is E.REBALANCE_IN_PROGRESS
        assert len(shard.consumers.groups[G].state.members) == 4


async def test_the_policy_is_the_brokers(tmp_path: Path) -> None:
    settings = {**SETTINGS, "group.consumer.migration.policy": "downgrade"}
    async with running_node(tmp_path / "data", settings) as node:
        await create(node, "t")
        await stable(node)
        assert await code_of(node, joining("n", "t")) is E.GROUP_ID_NOT_FOUND


# --- the end of a group ---------------------------------------------------------------------------


async def test_delete_takes_the_group_and_its_offsets(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        shard = await shard_of(node)
        await join(node)
        assert await commit(node, {T0: 5}, Commit("a", 2)) == {E.NONE}
        assert await shard.delete_group(G) is E.NON_EMPTY_GROUP
        await beat(node, Beat("a", -1))
        assert await shard.delete_group(G) is E.NONE
        assert left(node) == set()
        assert await shard.delete_group(G) is E.GROUP_ID_NOT_FOUND


async def test_offsets_expire_unless_a_member_reads_them(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_node(tmp_path / "data", SETTINGS, clock=clock) as node:
        for name in ("t", "u"):
            await create(node, name)
        shard = await shard_of(node)
        await join(node, "a", "u")
        kept = TopicPartition("u", 0)
        assert await commit(node, {T0: 5, kept: 6}, Commit("a", 2)) == {E.NONE}
        clock.advance(60_000)
        now_ms = clock.now_ms()

        def noticed() -> bool:
            clock.advance(20)  # the interval between the broker's looks goes by
            return (node.services.partitions.past_ms(0) or 0) >= now_ms

        await until(noticed)
        shard.expire()
        await until(lambda: not shard.offsets.has_any(G, T0))
        assert shard.offsets.has_any(G, kept)
        await beat(node, Beat("a", -1))
        shard.expire()
        await until(lambda: G not in shard.consumers.groups)
        assert left(node) == set()


async def test_a_commit_that_is_on_its_way_holds_its_offset_and_the_group(tmp_path: Path) -> None:
    """Of an administrator: there is no member any more."""
    clock = ManualClock()
    async with running_node(tmp_path / "data", SETTINGS, clock=clock) as node:
        await create(node, "t")
        shard = await shard_of(node)
        await join(node, "a")
        assert await commit(node, {T0: 5, T1: 5}, Commit("a", 2)) == {E.NONE}
        await beat(node, Beat("a", -1))
        clock.advance(60_000)
        now_ms = clock.now_ms()

        def noticed() -> bool:
            clock.advance(20)  # the interval between the broker's looks goes by
            return (node.services.partitions.past_ms(0) or 0) >= now_ms

        await until(noticed)
        committing = asyncio.create_task(commit(node, {T0: 77}, Commit()))
        await asyncio.sleep(0)
        shard.expire()
        assert await committing == {E.NONE}
        await until(lambda: not shard._tasks)
        assert {tp: found.offset for tp, found in shard.offsets.fetch(G).items()} == {T0: 77}
        assert G in shard.consumers.groups


# --- offsets --------------------------------------------------------------------------------------


async def test_offsets_are_committed_deleted_and_fetched_by_members(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        await create(node, "u")
        shard = await shard_of(node)
        await join(node)
        other = TopicPartition("u", 0)
        assert await commit(node, {T0: 5, other: 5}, Commit("a", 2)) == {E.NONE}
        assert await commit(node, {T0: 6}, Commit("a", 3)) == {E.STALE_MEMBER_EPOCH}
        assert await commit(node, {T0: 6}, Commit()) == {E.UNKNOWN_MEMBER_ID}
        errors = await shard.delete_offsets(G, [T0, other])
        assert errors == {T0: E.GROUP_SUBSCRIBED_TO_TOPIC, other: E.NONE}
        async with await connect(node) as connection:
            codes = []
            for member_id, epoch in (("a", 2), ("a", 1), ("x", 2), (None, -1)):
                group = OffsetFetchRequestGroup(
                    group_id=G, member_id=member_id, member_epoch=epoch, topics=None
                )
                request = OffsetFetchRequest(groups=(group,))
                answer = await connection.request(request, OffsetFetchResponse, version=9)
                codes.append(E(answer.groups[0].error_code))
        assert codes == [E.NONE, E.STALE_MEMBER_EPOCH, E.UNKNOWN_MEMBER_ID, E.NONE]


# --- over the wire --------------------------------------------------------------------------------


async def test_heartbeats_and_descriptions_over_the_wire(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        topic_id = node.services.topics.image.topics["t"].topic_id
        async with await connect(node) as connection:
            first = ConsumerGroupHeartbeatRequest(
                group_id=G, member_id="", member_epoch=0, rebalance_timeout_ms=1000,
                subscribed_topic_names=("t",), topic_partitions=(), rack_id="r",
            )  # fmt: skip
            ask, answer = connection.request, ConsumerGroupHeartbeatResponse
            joined = await ask(first, answer, version=0)
            assert joined.error_code == E.NONE
            assert (joined.member_epoch, joined.heartbeat_interval_ms) == (2, 5000)
            (given,) = joined.assignment.topic_partitions
            assert (given.topic_id, given.partitions) == (topic_id, (0, 1))
            refused = await ask(first, answer, version=1)
            assert refused.error_code == E.INVALID_REQUEST
            assert refused.error_message == "MemberId can't be empty."
            asked = ConsumerGroupDescribeRequest(
                group_ids=(G, "nobody"), include_authorized_operations=False
            )
            told = await ask(asked, ConsumerGroupDescribeResponse, version=1)
            listed = await ask(ListGroupsRequest(), ListGroupsResponse, version=5)
            none_listed = await ask(
                ListGroupsRequest(types_filter=("Classic",)), ListGroupsResponse, version=5
            )
            old = await ask(DescribeGroupsRequest(groups=(G,)), DescribeGroupsResponse, version=6)
        (row,) = listed.groups
        assert (row.group_id, row.group_state, row.group_type) == (G, "Stable", "consumer")
        assert row.protocol_type == "consumer"
        assert none_listed.groups == ()
        assert old.groups[0].error_code == E.GROUP_ID_NOT_FOUND, "it is of another kind"
        one, none = told.groups
        assert (one.group_state, one.group_epoch, one.assignor_name) == ("Stable", 2, "uniform")
        (m,) = one.members
        assert (m.member_id, m.rack_id, m.member_type) == (joined.member_id, "r", 1)
        assert m.assignment.topic_partitions[0].topic_name == "t"
        assert m.assignment == m.target_assignment
        assert none.error_code == E.GROUP_ID_NOT_FOUND


async def test_without_the_protocol_members_are_refused(tmp_path: Path) -> None:
    settings = {**SETTINGS, "group.coordinator.rebalance.protocols": "classic"}
    async with running_node(tmp_path / "data", settings) as node, await connect(node) as connection:
        request = ConsumerGroupHeartbeatRequest(group_id=G, member_id="a", member_epoch=0)
        answer = await connection.request(request, ConsumerGroupHeartbeatResponse, version=1)
        assert answer.error_code == E.UNSUPPORTED_VERSION


@pytest.mark.parametrize("by_ms", [-FAR_MS, FAR_MS], ids=["set back", "set on"])
async def test_a_session_takes_as_long_as_ever_though_the_clock_is_set(
    tmp_path: Path, by_ms: int
) -> None:
    clock = ManualClock()
    async with running_node(tmp_path / "data", SETTINGS, clock=clock) as node:
        await create(node, "t")
        await join(node)
        shard = await shard_of(node)
        clock.jump(by_ms)
        await shard.consumers._tick(G)
        assert "a" in shard.consumers.groups[G].state.members
        clock.advance(45_001)
        await shard.consumers._tick(G)
        assert not shard.consumers.groups[G].state.members
