"""A rule for every API: refusals reveal nothing, and allowed items are handled."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.api.table import SERVED
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection, ConnectionLost
from lapse.security.acls import (
    CLUSTER_NAME,
    AclBinding,
    Operation,
    Permission,
    ResourceType,
)
from lapse.wire.schema.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from lapse.wire.schema.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from lapse.wire.schema.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from lapse.wire.schema.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from lapse.wire.schema.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from lapse.wire.schema.fetch import FetchRequest, FetchResponse, ReplicaState
from lapse.wire.schema.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from lapse.wire.schema.list_groups import ListGroupsRequest, ListGroupsResponse
from lapse.wire.schema.list_offsets import (
    EARLIEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from lapse.wire.schema.metadata import (
    METADATA,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from lapse.wire.schema.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from lapse.wire.schema.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from lapse.wire.schema.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from lapse.wire.schema.produce import ProduceRequest, ProduceResponse, TopicProduceData
from tests.support.broker.epoch_requests import epoch_request
from tests.support.broker.every_request import ALL, FEW_PARTITIONS, request_for
from tests.support.broker.refusals import CLUSTER, GROUP, REFUSALS, TOPIC, codes_in
from tests.support.broker.running import (
    BY_NAME,
    batch_of,
    connect,
    create,
    fetch_request,
    produce_request,
    running_node,
)
from tests.support.broker.secured import WITH_ACLS, allow, logged_in, set_acls
from tests.support.broker.transaction_requests import TransactionalProducer

O, R = Operation, ResourceType  # noqa: E741
# Those that need no leave, and those that only leave things out.
FREE = {17, 18, 36, 60}
LISTS = {3, 16, 66}
UNKNOWN = -(1 << 31)
BY_ID = {0, 1}  # Produce and Fetch, from v13 on


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path / "data", {**WITH_ACLS, **FEW_PARTITIONS}) as running:
        yield running


@pytest.fixture
async def alice(node: Node) -> AsyncIterator[BrokerConnection]:
    async with await logged_in(node, "alice") as connection:
        yield connection


def test_every_api_has_its_rule() -> None:
    assert {key for key, api in SERVED.items() if api.authorize is None} == {17, 18, 36}


@pytest.mark.parametrize(("key", "version"), [a for a in ALL if a[0] not in FREE])
async def test_who_may_nothing_is_told_nothing(
    key: int, version: int, node: Node, alice: BrokerConnection
) -> None:
    """The response is a refusal, and the same one where the requested resource does not exist."""
    await create(node, "t", 2)
    request = request_for(key, version, node)
    answer = await alice.request(request, SERVED[key].response, version=version)
    if key in LISTS or (key == 35 and version < 3):  # that has no field for it
        assert not any(codes_in(answer))
        assert "'t'" not in repr(answer)
    else:
        codes = list(codes_in(answer))
        assert REFUSALS & set(codes), answer
        assert set(codes) <= {*REFUSALS, 0, ErrorCode.OPERATION_NOT_ATTEMPTED}, answer
    topic = node.services.topics.image.topics["t"]
    assert topic.partitions == 2
    assert node.services.partitions.all()[0].log_end_offset == 0
    await node.services.topics.delete(topic)
    if key in BY_ID and version > BY_NAME:
        return  # a topic's id is no secret, as in Kafka
    again = await alice.request(request, SERVED[key].response, version=version)
    assert again == answer


async def test_what_is_there_and_what_is_not_are_refused_alike(tmp_path: Path) -> None:
    """Topics, groups with members' offsets and transactional ids: a full broker and an empty one.

    Every client gets the cluster's address and id; a topic's id is no secret, as in Kafka.
    """
    advertised = "SASL_PLAINTEXT://here:1,PLAINTEXT://here:2"
    settings = {**WITH_ACLS, **FEW_PARTITIONS, "advertised.listeners": advertised}
    async with (
        running_node(tmp_path / "full", settings) as full,
        running_node(tmp_path / "empty", settings) as empty,
    ):
        await create(full, "t", 2)
        async with await connect(full) as connection:
            producer = TransactionalProducer(connection, "x")
            await producer.start()
            await producer.add(TopicPartition("t", 0))
            assert await producer.add_offsets("g") == 0
            assert await producer.commit_offsets("g", TopicPartition("t", 0), 7) == 0
            assert await producer.end(commit=True) == 0
        asked = [
            (key, version, request_for(key, version, full))
            for key, version in ALL
            if key not in FREE and not (key in BY_ID and version > BY_NAME)
        ]
        told = []
        for node in (full, empty):
            async with await logged_in(node, "alice") as alice:
                told.append(
                    [
                        await alice.request(request, SERVED[key].response, version=version)
                        for key, version, request in asked
                    ]
                )
    for (key, version, _), there, missing in zip(asked, *told, strict=True):
        same = {"cluster_id": missing.cluster_id} if key == METADATA.key else {}
        assert replace(there, **same) == missing, (key, version)


async def test_a_super_user_may_everything(node: Node) -> None:
    await create(node, "t", 1)
    async with await logged_in(node, "admin") as admin:
        answer = await admin.request(MetadataRequest(topics=None), MetadataResponse)
        assert [t.name for t in answer.topics] == ["t"]


async def test_a_request_is_refused_in_part(node: Node, alice: BrokerConnection) -> None:
    for name in ("mine", "other"):
        await create(node, name)
    await set_acls(node, [allow(O.WRITE, R.TOPIC, "mine"), allow(O.READ, R.TOPIC, "mine")])
    parts = [produce_request(n, (0, batch_of(b"a"))).topic_data[0] for n in ("other", "mine")]
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=tuple(parts))
    written = await alice.request(request, ProduceResponse, version=BY_NAME)
    assert {r.name: r.partition_responses[0].error_code for r in written.responses} == {
        "mine": 0, "other": TOPIC,
    }  # fmt: skip
    ids = {name: topic.topic_id for name, topic in node.services.topics.image.topics.items()}
    by_id = [replace(part, topic_id=ids[part.name]) for part in parts]
    nowhere = replace(parts[0], topic_id=uuid.UUID(int=7))
    request = replace(request, topic_data=(*by_id, nowhere))
    written = await alice.request(request, ProduceResponse, version=BY_NAME + 1)
    assert {r.topic_id: r.partition_responses[0].error_code for r in written.responses} == {
        ids["mine"]: 0, ids["other"]: TOPIC, nowhere.topic_id: ErrorCode.UNKNOWN_TOPIC_ID,
    }  # fmt: skip
    asked = [fetch_request(n, (0, 0)).topics[0] for n in ("other", "mine")]
    wanted = fetch_request("mine", (0, 0), max_wait_ms=0)
    wanted = type(wanted)(
        replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=tuple(asked)
    )
    read = await alice.request(wanted, FetchResponse, version=BY_NAME)
    found = {r.topic: r.partitions[0] for r in read.responses}
    assert found["other"].error_code == TOPIC
    assert not found["other"].records
    assert found["mine"].records


async def test_deleting_records_takes_delete_on_the_topic(
    node: Node, alice: BrokerConnection
) -> None:
    """D-1, KIP-107: DELETE is checked for each topic; no other right on the topic is enough."""
    for name in ("mine", "other"):
        await create(node, name, 2)
        log = node.services.partitions.get(TopicPartition(name, 0))
        log.append_raw(batch_of(b"a", b"b"))
    more = [allow(o, R.TOPIC, "other") for o in (O.READ, O.WRITE, O.ALTER, O.ALTER_CONFIGS)]
    await set_acls(node, [allow(O.DELETE, R.TOPIC, "mine"), *more])
    asked = tuple(DeleteRecordsPartition(partition_index=n, offset=1 - n) for n in range(2))
    topics = tuple(DeleteRecordsTopic(name=name, partitions=asked) for name in ("other", "mine"))
    request = DeleteRecordsRequest(topics=topics, timeout_ms=1000)
    answer = await alice.request(request, DeleteRecordsResponse)
    assert {t.name: [p.error_code for p in t.partitions] for t in answer.topics} == {
        "mine": [0, 0], "other": [TOPIC, TOPIC],
    }  # fmt: skip
    starts = [node.services.partitions.get(TopicPartition(n, 0)) for n in ("mine", "other")]
    assert [log.log_start_offset for log in starts] == [1, 0]


async def test_produce_without_acks_ends_the_connection(node: Node) -> None:
    await create(node, "t")
    connection = await logged_in(node, "alice")
    request = ProduceRequest(
        acks=0,
        timeout_ms=1000,
        topic_data=(
            TopicProduceData(
                name="t", partition_data=produce_request("t", (0, b"")).topic_data[0].partition_data
            ),
        ),
    )
    with pytest.raises((ConnectionLost, ConnectionError, OSError)):
        await connection.request(request, ProduceResponse, version=BY_NAME)
    connection.close()


async def test_a_replica_needs_more_than_to_read(node: Node, alice: BrokerConnection) -> None:
    await create(node, "t")
    await set_acls(node, [allow(O.READ, R.TOPIC, "*")])
    request = fetch_request("t", (0, 0))
    replica = type(request)(
        replica_id=1, max_wait_ms=0, min_bytes=1, max_bytes=1, topics=request.topics
    )
    answer = await alice.request(replica, FetchResponse, version=BY_NAME)
    assert answer.responses[0].partitions[0].error_code == TOPIC


@pytest.mark.parametrize("version", [BY_NAME, 13, 17])
async def test_a_replica_needs_no_right_of_topics(
    node: Node, alice: BrokerConnection, version: int
) -> None:
    """What it does at a leader: it fetches, in a session too, and asks where the log starts."""
    await create(node, "t")
    await set_acls(node, [allow(O.CLUSTER_ACTION, R.CLUSTER, CLUSTER_NAME)])
    (topic,) = fetch_request("t", (0, 0)).topics
    topic = replace(topic, topic_id=node.services.topics.image.topics["t"].topic_id)
    who = {"replica_id": 1} if version < 15 else {"replica_state": ReplicaState(replica_id=1)}
    for asked in ({"session_epoch": -1}, {"session_epoch": 0}):
        request = FetchRequest(
            max_wait_ms=0, min_bytes=1, max_bytes=1, topics=(topic,), **asked, **who
        )
        answer = await alice.request(request, FetchResponse, version=version)
        assert answer.responses[0].partitions[0].error_code == 0
    for replica_id, code in ((1, 0), (-1, TOPIC)):
        start = ListOffsetsPartition(partition_index=0, timestamp=EARLIEST_TIMESTAMP)
        of_topic = ListOffsetsTopic(name="t", partitions=(start,))
        asked_start = ListOffsetsRequest(replica_id=replica_id, topics=(of_topic,))
        found = await alice.request(asked_start, ListOffsetsResponse)
        assert found.topics[0].partitions[0].error_code == code


@pytest.mark.parametrize(
    ("right", "told"),
    [
        (allow(O.DESCRIBE, R.TOPIC, "t"), [("t", 0), ("u", TOPIC), ("x", TOPIC)]),
        (allow(O.READ, R.TOPIC, "t"), [("t", 0), ("u", TOPIC), ("x", TOPIC)]),
        (allow(O.CLUSTER_ACTION, R.CLUSTER, CLUSTER_NAME), [("t", 0), ("u", 0), ("x", 3)]),
    ],
)
@pytest.mark.parametrize("replica_id", [-1, 1])
async def test_epochs_are_told_to_who_may_describe_and_to_brokers(
    node: Node, alice: BrokerConnection, right: AclBinding, told: list[tuple[str, int]],
    replica_id: int,
) -> None:  # fmt: skip
    """Brokers need no right of the topic; consumers no right of brokers, whoever they say to be."""
    for name in ("t", "u"):
        await create(node, name)
    await set_acls(node, [right])
    topics = tuple(epoch_request((0, 0), topic=name).topics[0] for name in ("u", "t", "x"))
    request = OffsetForLeaderEpochRequest(replica_id=replica_id, topics=topics)
    answer = await alice.request(request, OffsetForLeaderEpochResponse)
    assert sorted((t.topic, t.partitions[0].error_code) for t in answer.topics) == told
    refused = {t.partitions[0] for t in answer.topics if t.partitions[0].error_code == TOPIC}
    assert len(refused) <= 1  # alike, there or not


async def test_metadata_of_some_and_of_all(node: Node, alice: BrokerConnection) -> None:
    for name in ("a", "b", "hidden"):
        await create(node, name)
    await set_acls(
        node,
        [allow(O.DESCRIBE, R.TOPIC, "a"), allow(O.READ, R.TOPIC, "b"),
         allow(O.ALL, R.TOPIC, "*", "bob")],
    )  # fmt: skip
    answer = await alice.request(MetadataRequest(topics=None), MetadataResponse)
    assert [t.name for t in answer.topics] == ["a", "b"]
    for version in (0, 1):
        asked = (MetadataRequestTopic(name="hidden"),)
        answer = await alice.request(
            MetadataRequest(topics=asked), MetadataResponse, version=version
        )
        assert [(t.name, t.error_code, t.partitions) for t in answer.topics] == [
            ("hidden", TOPIC, ())
        ]


@pytest.mark.parametrize("name", [None, ""])
async def test_metadata_by_id_is_told_to_those_who_may_know(
    node: Node, alice: BrokerConnection, name: str | None
) -> None:
    """Java's Admin sends an empty name: it is the id's topic that must be allowed."""
    await create(node, "hidden")
    await set_acls(node, [allow(O.DESCRIBE, R.TOPIC, "hid")])
    topic_id = node.services.topics.image.topics["hidden"].topic_id
    asked = MetadataRequest(topics=(MetadataRequestTopic(name=name, topic_id=topic_id),))
    (answer,) = (await alice.request(asked, MetadataResponse)).topics
    assert (answer.name, answer.error_code, answer.partitions) == (None, TOPIC, ())
    await set_acls(node, [allow(O.DESCRIBE, R.TOPIC, "hidden")])
    (answer,) = (await alice.request(asked, MetadataResponse)).topics
    assert (answer.name, answer.error_code) == ("hidden", 0)


async def test_asking_creates_only_what_may_be_created(tmp_path: Path) -> None:
    settings = {**WITH_ACLS, "auto.create.topics.enable": "true"}
    async with running_node(tmp_path, settings) as node, await logged_in(node, "alice") as alice:
        await set_acls(node, [allow(O.DESCRIBE, R.TOPIC, "*"), allow(O.CREATE, R.TOPIC, "mine")])
        asked = tuple(MetadataRequestTopic(name=name) for name in ("mine", "other"))
        answer = await alice.request(MetadataRequest(topics=asked), MetadataResponse)
        assert {t.name: t.error_code for t in answer.topics} == {"mine": 0, "other": TOPIC}
        assert set(node.services.topics.image.topics) == {"mine"}


async def test_pages_of_topics_skip_what_is_hidden(node: Node, alice: BrokerConnection) -> None:
    for name in ("a", "b", "c", "d"):
        await create(node, name)
    await set_acls(node, [allow(O.DESCRIBE, R.TOPIC, name) for name in ("a", "c")])
    names, cursor = [], None
    for _ in range(4):
        request = DescribeTopicPartitionsRequest(
            topics=(), response_partition_limit=1, cursor=cursor
        )
        answer = await alice.request(request, DescribeTopicPartitionsResponse)
        names += [topic.name for topic in answer.topics]
        cursor = answer.next_cursor
        if cursor is None:
            break
    assert names == ["a", "c"]
    for hidden, found in (("b", ["c"]), ("d", [])):
        request = DescribeTopicPartitionsRequest(
            topics=(), cursor=Cursor(topic_name=hidden, partition_index=0)
        )
        answer = await alice.request(request, DescribeTopicPartitionsResponse)
        assert [topic.name for topic in answer.topics] == found


async def test_a_created_topic_tells_its_settings_to_those_who_may_ask(
    node: Node, alice: BrokerConnection
) -> None:
    await set_acls(
        node, [allow(O.CREATE, R.CLUSTER, "kafka-cluster"), allow(O.DESCRIBE_CONFIGS, R.TOPIC, "b")]
    )
    new = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    request = CreateTopicsRequest(
        topics=tuple(CreatableTopic(name=n, **new) for n in ("a", "b"))  # type: ignore[arg-type]
    )
    answer = await alice.request(request, CreateTopicsResponse)
    told = {
        t.name: (t.error_code, t.topic_config_error_code, bool(t.configs)) for t in answer.topics
    }
    assert told == {"a": (0, TOPIC, False), "b": (0, 0, True)}


async def test_offsets_of_groups_and_topics(node: Node, alice: BrokerConnection) -> None:
    for name in ("mine", "other"):
        await create(node, name)
    await set_acls(
        node, [allow(O.READ, R.GROUP, "g"), allow(O.READ, R.TOPIC, "mine"),
               allow(O.ALL, R.GROUP, "*", "bob"), allow(O.ALL, R.TOPIC, "*", "bob")],
    )  # fmt: skip

    def commit(group: str) -> OffsetCommitRequest:
        partition = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=0, committed_metadata=""
        )
        topics = tuple(
            OffsetCommitRequestTopic(name=n, partitions=(partition,)) for n in ("mine", "other")
        )
        return OffsetCommitRequest(group_id=group, member_id="", topics=topics)

    answer = await alice.request(commit("g"), OffsetCommitResponse)
    assert {t.name: t.partitions[0].error_code for t in answer.topics} == {
        "mine": 0, "other": TOPIC,
    }  # fmt: skip
    answer = await alice.request(commit("h"), OffsetCommitResponse)
    assert list(codes_in(answer)) == [GROUP, GROUP]
    async with await logged_in(node, "bob") as bob:
        assert not any(codes_in(await bob.request(commit("g"), OffsetCommitResponse)))
        assert not any(codes_in(await bob.request(commit("h"), OffsetCommitResponse)))
    everything = OffsetFetchRequest(
        groups=tuple(OffsetFetchRequestGroup(group_id=g, topics=None) for g in ("g", "h"))
    )
    fetched = await alice.request(everything, OffsetFetchResponse)
    assert {g.group_id: (g.error_code, [t.name for t in g.topics]) for g in fetched.groups} == {
        "g": (0, ["mine"]), "h": (GROUP, []),
    }  # fmt: skip
    listed = await alice.request(ListGroupsRequest(), ListGroupsResponse)
    assert [g.group_id for g in listed.groups] == ["g"]


async def test_idempotent_producers_need_to_write_somewhere(
    node: Node, alice: BrokerConnection
) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    answer = await alice.request(request, InitProducerIdResponse)
    assert (answer.error_code, answer.producer_id) == (CLUSTER, -1)
    await set_acls(node, [allow(O.WRITE, R.TOPIC, "t")])
    assert (await alice.request(request, InitProducerIdResponse)).error_code == 0
    denial = allow(O.WRITE, R.TOPIC, "t", permission=Permission.DENY)
    await set_acls(node, [denial])
    assert (await alice.request(request, InitProducerIdResponse)).error_code == CLUSTER


async def test_authorized_operations_are_told_to_those_who_ask(
    node: Node, alice: BrokerConnection
) -> None:
    await create(node, "t")
    await set_acls(node, [allow(O.READ, R.TOPIC, "t"), allow(O.DELETE, R.GROUP, "g")])
    asked = (MetadataRequestTopic(name="t"),)
    for wanted, bits in ((True, 1 << O.READ | 1 << O.DESCRIBE), (False, UNKNOWN)):
        request = MetadataRequest(topics=asked, include_topic_authorized_operations=wanted)
        answer = await alice.request(request, MetadataResponse)
        assert answer.topics[0].topic_authorized_operations == bits
    groups = DescribeGroupsRequest(groups=("g",), include_authorized_operations=True)
    described = await alice.request(groups, DescribeGroupsResponse, version=5)
    assert described.groups[0].authorized_operations == 1 << O.DELETE | 1 << O.DESCRIBE
    cluster = DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert (
        await alice.request(cluster, DescribeClusterResponse)
    ).cluster_authorized_operations == 0
    await set_acls(node, [allow(O.DESCRIBE, R.CLUSTER, "kafka-cluster")])
    answered = await alice.request(cluster, DescribeClusterResponse)
    assert answered.cluster_authorized_operations == 1 << O.DESCRIBE


async def test_without_an_authorizer_everybody_may_everything(tmp_path: Path) -> None:
    settings = {k: v for k, v in WITH_ACLS.items() if k != "authorizer.class.name"}
    async with running_node(tmp_path, settings) as node, await logged_in(node, "bob") as bob:
        await create(node, "t")
        request = MetadataRequest(topics=None, include_topic_authorized_operations=True)
        answer = await bob.request(request, MetadataResponse)
        operations = (O.READ, O.WRITE, O.CREATE, O.DELETE, O.ALTER, O.DESCRIBE,
                      O.DESCRIBE_CONFIGS, O.ALTER_CONFIGS)  # fmt: skip
        assert answer.topics[0].topic_authorized_operations == sum(1 << o for o in operations)
