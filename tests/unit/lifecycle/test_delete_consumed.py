"""One pass of deleting what was read: against our broker, and the order of its requests."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.client.cluster import Address, Cluster, parse_bootstrap
from lapse.client.connection import BrokerConnection, ConnectionLost
from lapse.client.groups import GroupOffsets
from lapse.client.settings import DeleteRecordsResult
from lapse.lifecycle.decide.consumed import Consumer, LogEnds
from lapse.lifecycle.delete_consumed import ConsumedOptions, Pass, delete_consumed, group_consumer
from lapse.wire.schema.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from lapse.wire.schema.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from lapse.wire.schema.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from lapse.wire.schema.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from lapse.wire.schema.metadata import MetadataRequest, MetadataResponse
from lapse.wire.schema.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from tests.support.broker.running import batch_of, connect, create, produce, running_node
from tests.support.broker.transaction_requests import TransactionalProducer
from tests.support.client.commits import commit, delete_group
from tests.support.client.peers import Peer, metadata, running_peers

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
TEN = batch_of(*(b"v%d" % n for n in range(10)))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """Ten records in each of t-0, t-1 and u-0."""
    async with running_node(tmp_path) as running, await connect(running) as connection:
        await create(running, "t", partitions=2)
        await create(running, "u")
        await produce(connection, "t", (0, TEN), (1, TEN))
        await produce(connection, "u", (0, TEN))
        yield running


@pytest.fixture
async def connection(node: Node) -> AsyncIterator[BrokerConnection]:
    async with await connect(node) as open_one:
        yield open_one


async def one_pass(address: Address, wish: ConsumedOptions) -> Pass:
    async with Cluster([address]) as cluster:
        return await delete_consumed(cluster, replace(wish, timeout_ms=5000))


def address(node: Node) -> Address:
    return Address(node.services.address.host, node.services.address.port)


def outcomes_by_log(done: Pass) -> dict[str, tuple[int | None, tuple[str, ...]]]:
    """By partition: the low watermark after a deletion, None without one, and what blocks."""
    return {
        str(one.verdict.partition): (
            None if one.result is None else one.result.low_watermark, one.blocked,
        )
        for one in done.outcomes
    }  # fmt: skip


async def low_watermarks(node: Node) -> list[int]:
    wish = ConsumedOptions(others=(Consumer("nobody", problem="only looks"),), topics=("t", "u"))
    done = await one_pass(address(node), wish)
    return [one.verdict.ends.low_watermark for one in done.outcomes if one.verdict.ends]


NEVER = "has never committed an offset of it"


async def test_the_least_of_all_groups(node: Node, connection: BrokerConnection) -> None:
    await commit(connection, "a", {T0: 4, T1: 10})
    await commit(connection, "b", {T0: 7, T1: 9})
    done = await one_pass(address(node), ConsumedOptions(groups=("a", "b")))
    assert outcomes_by_log(done) == {"t-0": (4, ()), "t-1": (9, ())}
    assert [one.verdict.ends for one in done.outcomes] == [LogEnds(0, 10, 10)] * 2
    assert [one.name for one in done.consumers] == ["group a", "group b"]
    # Nothing new: no request to delete goes to the broker.
    assert outcomes_by_log(await one_pass(address(node), ConsumedOptions(groups=("a", "b")))) == {
        "t-0": (None, ()), "t-1": (None, ()),
    }  # fmt: skip


async def test_a_missing_one_blocks_its_partitions(
    node: Node, connection: BrokerConnection
) -> None:
    await commit(connection, "a", {T0: 4, T1: 5, U0: 6})
    await commit(connection, "b", {T0: 3})
    done = await one_pass(address(node), ConsumedOptions(groups=("a", "b")))
    assert outcomes_by_log(done) == {
        "t-0": (3, ()),
        "t-1": (None, (f"group b: {NEVER}",)),
        "u-0": (None, (f"group b: {NEVER}",)),
    }
    done = await one_pass(address(node), ConsumedOptions(groups=("a", "b", "c"), topics=("t",)))
    assert outcomes_by_log(done) == {
        "t-0": (None, ("group c: there is no such group",)),
        "t-1": (None, (f"group b: {NEVER}", "group c: there is no such group")),
    }
    assert await low_watermarks(node) == [3, 0, 0]


async def test_a_group_that_is_deleted_blocks_the_next_pass(
    node: Node, connection: BrokerConnection
) -> None:
    await commit(connection, "a", {T0: 4})
    await commit(connection, "b", {T0: 8})
    wish = ConsumedOptions(groups=("a", "b"), topics=("t",))
    assert outcomes_by_log(await one_pass(address(node), wish))["t-0"] == (4, ())
    await delete_group(connection, "a")
    blocked = ("group a: there is no such group",)
    assert outcomes_by_log(await one_pass(address(node), wish))["t-0"] == (None, blocked)
    assert await low_watermarks(node) == [4, 0, 0]


async def test_others_count_as_groups_do_and_topics_come_from_them_too(
    node: Node, connection: BrokerConnection
) -> None:
    await commit(connection, "a", {T0: 8, U0: 2})
    others = (Consumer("query", {T0: 6, U0: 3}), Consumer("other", {T0: 7}, {U0: "unstable"}))
    done = await one_pass(address(node), ConsumedOptions(("a",), others))
    assert outcomes_by_log(done) == {
        "t-0": (6, ()),
        "t-1": (None, (f"group a: {NEVER}", f"query: {NEVER}", f"other: {NEVER}")),
        "u-0": (None, ("other: unstable",)),
    }


async def test_a_dry_run_deletes_nothing(node: Node, connection: BrokerConnection) -> None:
    await commit(connection, "a", {T0: 4, T1: 5})
    done = await one_pass(address(node), ConsumedOptions(("a",), dry_run=True))
    assert [one.verdict.delete_before for one in done.outcomes] == [4, 5]
    assert [one.result for one in done.outcomes] == [None, None]
    assert await low_watermarks(node) == [0, 0, 0]


async def test_an_open_transaction_and_an_offset_of_another_log(
    node: Node, connection: BrokerConnection
) -> None:
    writer = TransactionalProducer(connection, "x")
    await writer.start()
    await writer.add(U0)
    assert not await writer.send(U0, b"open")
    await commit(connection, "a", {U0: 11})
    assert outcomes_by_log(await one_pass(address(node), ConsumedOptions(("a",)))) == {
        "u-0": (10, ())
    }
    await commit(connection, "a", {U0: 12})
    ((_, (why,)),) = outcomes_by_log(
        await one_pass(address(node), ConsumedOptions(("a",)))
    ).values()
    assert why.startswith("group a: its offset 12 is beyond the high watermark 11")


async def test_an_offset_that_a_transaction_may_set_back_blocks(
    node: Node, connection: BrokerConnection
) -> None:
    await commit(connection, "a", {U0: 8})
    reader = TransactionalProducer(connection, "x")
    await reader.start()
    assert not await reader.add_offsets("a")
    assert not await reader.commit_offsets("a", U0, 3)
    ((low_watermark, (why,)),) = outcomes_by_log(
        await one_pass(address(node), ConsumedOptions(("a",)))
    ).values()
    assert low_watermark is None
    assert "UNSTABLE_OFFSET_COMMIT" in why
    assert not await reader.end(commit=True)
    assert outcomes_by_log(await one_pass(address(node), ConsumedOptions(("a",)))) == {
        "u-0": (3, ())
    }


async def test_what_the_broker_refuses_is_told(node: Node, connection: BrokerConnection) -> None:
    await create(node, "compacted", cleanup_policy="compact")
    await produce(connection, "compacted", (0, TEN))
    await commit(connection, "a", {TopicPartition("compacted", 0): 5, T0: 2, T1: 0})
    done = await one_pass(address(node), ConsumedOptions(("a",)))
    (low_watermark, (why,)) = outcomes_by_log(done)["compacted-0"]
    assert low_watermark == -1
    assert "POLICY_VIOLATION" in why
    assert outcomes_by_log(done)["t-0"] == (2, ())


async def test_topics_that_are_not_there(node: Node, connection: BrokerConnection) -> None:
    gone = (Consumer("query", {TopicPartition("gone", 3): 5, T0: 2, T1: 1}),)
    done = await one_pass(address(node), ConsumedOptions((), gone))
    assert outcomes_by_log(done)["t-0"] == (2, ())
    (why,) = outcomes_by_log(done)["gone-3"][1]
    assert "UNKNOWN_TOPIC_OR_PARTITION" in why
    with pytest.raises(KafkaError, match="nowhere: UNKNOWN_TOPIC"):
        await one_pass(address(node), ConsumedOptions((), gone, topics=("nowhere",)))
    assert (await one_pass(address(node), ConsumedOptions(("none",)))).outcomes == ()
    # A pass deletes nothing from a partition that the topic does not have.
    beyond = (Consumer("query", {TopicPartition("u", 9): 5, U0: 1}),)
    assert outcomes_by_log(await one_pass(address(node), ConsumedOptions((), beyond))) == {
        "u-0": (1, ())
    }


async def test_nobody_there() -> None:
    with pytest.raises(ConnectionLost):
        await one_pass(Address("127.0.0.1", 1), ConsumedOptions((), (Consumer("query", {T0: 2}),)))


# --- the order, and ends that differ --------------------------------------------------------------


def list_offsets(starts: int, stable: int, high: int) -> Any:
    def answer(request: ListOffsetsRequest) -> ListOffsetsResponse:
        def found(index: int, timestamp: int) -> ListOffsetsPartitionResponse:
            at = {EARLIEST_TIMESTAMP: starts, LATEST_TIMESTAMP: high}[timestamp]
            if request.isolation_level and timestamp == LATEST_TIMESTAMP:
                at = stable
            return ListOffsetsPartitionResponse(
                partition_index=index,
                error_code=ErrorCode.NONE if at >= 0 else ErrorCode.OFFSET_NOT_AVAILABLE,
                offset=at,
            )

        return ListOffsetsResponse(
            topics=tuple(
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        found(p.partition_index, p.timestamp) for p in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )

    return answer


def broker(starts: int = 0, stable: int = 100, high: int = 100) -> Peer:
    """A broker of t-0, in which g has come to 50."""
    one = Peer({})

    def find(request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        coordinators = (
            Coordinator(key=key, node_id=0, host="127.0.0.1", port=one.port, error_code=0)
            for key in request.coordinator_keys
        )
        return FindCoordinatorResponse(coordinators=tuple(coordinators))

    committed = OffsetFetchResponsePartitions(
        partition_index=0, committed_offset=50, metadata="", error_code=0
    )
    group = OffsetFetchResponseGroup(
        group_id="g", topics=(OffsetFetchResponseTopics(name="t", partitions=(committed,)),)
    )
    listed = ListedGroup(group_id="g", protocol_type="", group_state="Empty")

    def delete(request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        (topic,) = request.topics
        (partition,) = topic.partitions
        done = DeleteRecordsPartitionResult(
            partition_index=0, low_watermark=partition.offset, error_code=0
        )
        return DeleteRecordsResponse(
            topics=(DeleteRecordsTopicResult(name="t", partitions=(done,)),)
        )

    one.script = {
        MetadataRequest: metadata({0: one}, {"t": [0]}),
        FindCoordinatorRequest: find,
        OffsetFetchRequest: lambda _: OffsetFetchResponse(groups=(group,)),
        ListGroupsRequest: lambda _: ListGroupsResponse(error_code=0, groups=(listed,)),
        ListOffsetsRequest: list_offsets(starts, stable, high),
        DeleteRecordsRequest: delete,
    }
    return one


async def ask(one: Peer) -> Pass:
    (at,) = parse_bootstrap(one.address)
    return await one_pass(at, ConsumedOptions(("g",)))


async def test_it_asks_consumers_first_then_ends_then_deletes() -> None:
    async with running_peers(one := broker()):
        done = await ask(one)
    assert done.outcomes[0].result == DeleteRecordsResult(50)
    order = [type(message) for message in one.asked if type(message) is not MetadataRequest]
    assert order == [
        FindCoordinatorRequest, OffsetFetchRequest, ListGroupsRequest,
        ListOffsetsRequest, ListOffsetsRequest, ListOffsetsRequest, DeleteRecordsRequest,
    ]  # fmt: skip
    (deleted,) = one.of(DeleteRecordsRequest)
    assert [p.offset for topic in deleted.topics for p in topic.partitions] == [50]


@pytest.mark.parametrize(
    ("ends", "deletes"),
    [((0, 30, 100), [30]), ((0, 50, 100), [50]), ((50, 100, 100), []), ((0, 30, 49), [])],
)
async def test_ends_bound_it(ends: tuple[int, int, int], deletes: list[int]) -> None:
    async with running_peers(one := broker(*ends)):
        await ask(one)
    deleted = [
        p.offset for m in one.of(DeleteRecordsRequest) for t in m.topics for p in t.partitions
    ]
    assert deleted == deletes


@pytest.mark.parametrize("ends", [(-1, 50, 100), (0, -1, 100), (0, 50, -1)])
async def test_ends_that_are_not_told_block(ends: tuple[int, int, int]) -> None:
    async with running_peers(one := broker(*ends)):
        done = await ask(one)
    (why,) = done.outcomes[0].blocked
    assert "OFFSET_NOT_AVAILABLE" in why
    assert one.of(DeleteRecordsRequest) == []


@pytest.mark.parametrize("after", [OffsetFetchRequest, ListOffsetsRequest])
async def test_a_topic_that_is_made_anew_in_a_pass_keeps_its_records(after: type[Any]) -> None:
    """After the groups' offsets or the ends were read: the offsets are of the earlier topic."""
    one = broker()

    def who(request: MetadataRequest) -> MetadataResponse:
        topic_id = uuid.UUID(int=2 if one.of(after) else 1)
        return metadata({0: one}, {"t": [0]}, topic_id)(request)

    one.script[MetadataRequest] = who
    async with running_peers(one):
        done = await ask(one)
        assert one.of(DeleteRecordsRequest) == []
        (why,) = done.outcomes[0].blocked
        assert "t-0: UNKNOWN_TOPIC_ID: the topic with id" in why
        done = await ask(one)  # from now on it is the one there is
    assert done.outcomes[0].result == DeleteRecordsResult(50)


async def test_a_topic_that_comes_in_a_pass_is_left_for_the_next() -> None:
    one = broker()

    def who(request: MetadataRequest) -> MetadataResponse:
        there = {"t": [0]} if one.of(OffsetFetchRequest) else {}
        return metadata({0: one}, there, uuid.UUID(int=1))(request)

    one.script[MetadataRequest] = who
    async with running_peers(one):
        done = await ask(one)
        (why,) = done.outcomes[0].blocked
        assert why.startswith("its topic did not exist before the offsets were read")
        done = await ask(one)
    assert done.outcomes[0].result == DeleteRecordsResult(50)


async def test_a_partition_without_leader_blocks() -> None:
    one = broker()
    one.script[MetadataRequest] = metadata({0: one}, {"t": [-1]})
    async with running_peers(one):
        done = await ask(one)
    assert done.outcomes[0].blocked == ("t-0: it has no leader",)


UNSTABLE = KafkaError(ErrorCode.UNSTABLE_OFFSET_COMMIT, "offset of t-1: UNSTABLE")


@pytest.mark.parametrize(
    ("group", "consumer"),
    [
        (
            GroupOffsets("Stable", {T0: 5, T1: UNSTABLE}),
            Consumer("group g", {T0: 5}, {T1: "offset of t-1: UNSTABLE"}),
        ),
        (GroupOffsets("Empty", {T0: 0}), Consumer("group g", {T0: 0})),
        (GroupOffsets("Unknown"), Consumer("group g")),
        (GroupOffsets(), Consumer("group g", problem="there is no such group")),
        # Deleted between the two questions: what it had committed counts no more.
        (GroupOffsets("", {T0: 5}), Consumer("group g", problem="there is no such group")),
        (GroupOffsets("Dead", {T0: 5}), Consumer("group g", problem="there is no such group")),
        (GroupOffsets("Empty", {T0: 5}, UNSTABLE), Consumer("group g", problem=str(UNSTABLE))),
    ],
)
def test_a_group_as_a_consumer(group: GroupOffsets, consumer: Consumer) -> None:
    assert group_consumer("g", group) == consumer
    assert consumer.topics() == ({"t"} if consumer.offsets or consumer.unknown else set())
