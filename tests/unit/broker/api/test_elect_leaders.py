"""ElectLeaders and the reassignments: nothing to do for one broker, said in Kafka's codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.wire.schema.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from lapse.wire.schema.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from lapse.wire.schema.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
)
from tests.support.broker.failing import FailingFs
from tests.support.broker.running import batch_of, connect, create, produce, running_node

PREFERRED, UNCLEAN = 0, 1
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def elect(
    connection: BrokerConnection,
    kind: int,
    *asked: tuple[str, tuple[int, ...]],
    every: bool = False,
) -> tuple[int, dict[tuple[str, int], int]]:
    topics = None if every else tuple(TopicPartitions(topic=t, partitions=n) for t, n in asked)
    request = ElectLeadersRequest(election_type=kind, topic_partitions=topics, timeout_ms=1000)
    answer = await connection.request(request, ElectLeadersResponse)
    return answer.error_code, {
        (topic.topic, p.partition_id): p.error_code
        for topic in answer.replica_election_results
        for p in topic.partition_result
    }


@pytest.mark.parametrize("kind", [PREFERRED, UNCLEAN])
async def test_nothing_needs_electing(node: Node, connection: BrokerConnection, kind: int) -> None:
    await create(node, "t", 2)
    assert await elect(connection, kind, ("t", (0, 1, 2, -1)), ("u", (0,))) == (0, {
        ("t", 0): ErrorCode.ELECTION_NOT_NEEDED, ("t", 1): ErrorCode.ELECTION_NOT_NEEDED,
        ("t", 2): UNKNOWN, ("t", -1): UNKNOWN, ("u", 0): UNKNOWN,
    })  # fmt: skip
    assert await elect(connection, kind, every=True) == (0, {})


async def test_no_such_election(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    invalid = ErrorCode.INVALID_REQUEST
    assert await elect(connection, 5, ("t", (0,))) == (invalid, {("t", 0): invalid})


async def test_the_first_version(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    request = ElectLeadersRequest(
        topic_partitions=(TopicPartitions(topic="t", partitions=(0,)),), timeout_ms=1000
    )
    answer = await connection.request(request, ElectLeadersResponse, version=0)
    (topic,) = answer.replica_election_results
    assert topic.partition_result[0].error_code == ErrorCode.ELECTION_NOT_NEEDED


async def test_an_offline_partition_has_nobody_to_elect(tmp_path: Path) -> None:
    fs, dirs = FailingFs(), (tmp_path / "a", tmp_path / "b")
    settings = {"log.dirs": ",".join(map(str, dirs))}
    async with running_node(tmp_path, settings, fs=fs) as node, await connect(node) as connection:
        await create(node, "t", 2)
        fs.broken = dirs[1]
        await produce(connection, "t", (0, batch_of(b"a")), (1, batch_of(b"a")))
        (gone,) = node.services.partitions.offline
        for kind, code in (
            (PREFERRED, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
            (UNCLEAN, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
        ):
            assert await elect(connection, kind, every=True) == (0, {("t", gone.partition): code})
        fs.broken = None


async def test_no_partition_is_being_moved(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    named = (ListPartitionReassignmentsTopics(name="t", partition_indexes=(0,)),)
    for topics in (None, (), named):
        request = ListPartitionReassignmentsRequest(topics=topics)
        answer = await connection.request(request, ListPartitionReassignmentsResponse)
        assert (answer.error_code, answer.topics) == (0, ())


@pytest.mark.parametrize("version", range(2))
async def test_moves(node: Node, connection: BrokerConnection, version: int) -> None:
    await create(node, "t", 4)
    wanted = {0: (0,), 1: None, 2: (1,), 3: (0, 1), 4: (0,)}
    partitions = tuple(
        ReassignablePartition(partition_index=n, replicas=ids) for n, ids in wanted.items()
    )
    request = AlterPartitionReassignmentsRequest(
        topics=(ReassignableTopic(name="t", partitions=partitions),)
    )
    answer = await connection.request(request, AlterPartitionReassignmentsResponse, version=version)
    (topic,) = answer.responses
    assert [p.error_code for p in topic.partitions] == [
        0, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT, UNKNOWN,
    ]  # fmt: skip
