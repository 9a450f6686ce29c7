"""Clients over their quotas get a throttle time, and wait."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from lapse.base.clock import SystemClock
from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.limits.quotas import (
    CLIENT_ID,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
)
from lapse.broker.node import Node
from lapse.broker.request.context import Session
from lapse.broker.request.throttle import Stopwatch, bytes_in, charge_fetched, charge_mutations
from lapse.client.connection import BrokerConnection
from lapse.security.acls import Operation, ResourceType
from lapse.testing.clock import ManualClock
from lapse.wire.schema.api_versions import ApiVersionsRequest, ApiVersionsResponse
from lapse.wire.schema.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from lapse.wire.schema.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from lapse.wire.schema.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from lapse.wire.schema.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
)
from lapse.wire.schema.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from lapse.wire.schema.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from lapse.wire.schema.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.support.broker.running import BY_NAME, batch_of, connect, create, running_node, until
from tests.support.broker.secured import (
    SECURED,
    WITH_ACLS,
    allow,
    anonymous,
    log_in,
    logged_in,
    set_acls,
)
from tests.support.broker.two_nodes import two_nodes

BATCH = batch_of(bytes(2000))
ALL_USERS = ((USER, None),)
CLIENTS = ((CLIENT_ID, None),)


async def produce(connection: BrokerConnection) -> ProduceResponse:
    data = PartitionProduceData(index=0, records=BATCH)
    topic = TopicProduceData(name="t", partition_data=(data,))
    request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=1000, topic_data=(topic,))
    return await connection.request(request, ProduceResponse, version=BY_NAME)


async def fetch(
    node: Node,
    connection: BrokerConnection,
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 0,
    replica_id: int = -1,
) -> FetchResponse:
    topic = node.services.topics.image.topics["t"]
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topic_fetch = FetchTopic(topic="t", topic_id=topic.topic_id, partitions=(partition,))
    request = FetchRequest(
        replica_state=ReplicaState(replica_id=replica_id), max_wait_ms=max_wait_ms,
        min_bytes=min_bytes, max_bytes=1 << 20, isolation_level=0,
        session_id=0, session_epoch=-1, topics=(topic_fetch,), forgotten_topics_data=(), rack_id="",
    )  # fmt: skip
    return await connection.request(request, FetchResponse)


async def test_a_producer_over_its_quota_is_told_and_waits(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t", 1)
        assert (await produce(connection)).throttle_time_ms == 0
        await node.services.quotas.alter(ALL_USERS, {PRODUCER_BYTE_RATE: len(BATCH) // 10})
        first = await produce(connection)  # is within ten seconds' worth, but for a little
        assert first.responses[0].partition_responses[0].error_code == 0
        assert 1 <= first.throttle_time_ms <= 5000
        began = time.monotonic()
        await fetch(node, connection)
        assert time.monotonic() - began >= first.throttle_time_ms / 1000 - 0.05


async def test_nothing_waits_for_a_client_that_is_gone(tmp_path: Path) -> None:
    """Else a client that connects, is throttled for hours, and leaves would leave something."""
    async with running_node(tmp_path) as node:
        await create(node, "t", 1)
        await node.services.quotas.alter(ALL_USERS, {PRODUCER_BYTE_RATE: 1})
        async with await connect(node) as connection:
            assert (await produce(connection)).throttle_time_ms > 60_000
            assert len(handling()) == 1
        await until(lambda: not handling() and not node.services.counters.connections)


def handling() -> list[str]:
    """Tasks of connections that handle a request, or wait after it."""
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name == "Connection._handle_all"]


async def test_a_fetch_over_its_quota_answers_nothing(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t", 1)
        await produce(connection)
        await node.services.quotas.alter(CLIENTS, {CONSUMER_BYTE_RATE: 2 * len(BATCH) // 10 - 5})
        assert (await fetch(node, connection)).responses  # the second is over it by a little
        throttled = await fetch(node, connection)
        assert (throttled.responses, throttled.throttle_time_ms > 0) == ((), True)
        await node.services.quotas.alter(CLIENTS, {CONSUMER_BYTE_RATE: float(len(BATCH))})
        again = await fetch(node, connection)  # what it did not get was not counted
        assert (bool(again.responses), again.throttle_time_ms) == (True, 0)


@pytest.mark.parametrize("fast", ["true", "false"])
async def test_a_consumer_gets_as_much_as_its_quota_lets_through(tmp_path: Path, fast: str) -> None:
    """An answer that held all there is would never be within the quota (KAFKA-9677)."""
    settings = {"lapse.fast.requests": fast}
    async with running_node(tmp_path, settings) as node, await connect(node) as connection:
        await create(node, "t", 1)
        for _ in range(5):
            await produce(connection)
        per_second = 3 * len(BATCH) // 10 + 1
        await node.services.quotas.alter(CLIENTS, {CONSUMER_BYTE_RATE: per_second})
        async with asyncio.timeout(30):  # nor does it wait for more than that
            got = await fetch(node, connection, max_wait_ms=600_000, min_bytes=1 << 20)
        assert (bytes_in(got), got.throttle_time_ms) == (10 * per_second, 0)
        by_fast = node.services.counters.fast_requests["Fetch"]
        assert by_fast <= (fast == "true")  # a page that is not in memory just then is read by disk


@pytest.mark.parametrize("fast", ["true", "false"])
async def test_a_batch_larger_than_the_quota_comes_alone_and_is_waited_for(
    tmp_path: Path, fast: str
) -> None:
    """It would never come. Who shares the quota with others does not wait until they stop."""
    settings = {"lapse.fast.requests": fast}
    async with running_node(tmp_path, settings) as node, await connect(node) as connection:
        await create(node, "t", 1)
        for _ in range(2):
            await produce(connection)
        await node.services.quotas.alter(ALL_USERS, {CONSUMER_BYTE_RATE: len(BATCH) // 20})
        other = Session("1.2.3.4:5", "127.0.0.1", node.services.entrances[0])
        assert charge_fetched(node.services, other, 0, len(BATCH) // 20) == 0
        got = await fetch(node, connection)
        assert bytes_in(got) == len(BATCH)
        assert 5_000 <= got.throttle_time_ms <= 20_000
        async with await connect(node) as another:  # whom the same quota holds
            refused = await fetch(node, another)
            assert (refused.responses, refused.throttle_time_ms > 5_000) == ((), True)


async def test_time_is_counted_as_a_percentage(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t", 1)
        await node.services.quotas.alter(ALL_USERS, {REQUEST_PERCENTAGE: 1e-6})
        done = await produce(connection)
        assert done.responses[0].partition_responses[0].error_code == 0
        assert done.throttle_time_ms == 1000


ACLS = {
    "authorizer_class_name": WITH_ACLS["authorizer.class.name"],
    "super_users": "User:ANONYMOUS",
}


async def test_a_login_is_not_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows yet whose it is; with strangers' it would be charged to ANONYMOUS."""
    settings = {**SECURED, "connections.max.reauth.ms": "60000"}
    async with running_node(tmp_path, settings) as node, await anonymous(node) as connection:
        quotas = node.services.quotas
        await quotas.alter(ALL_USERS, {REQUEST_PERCENTAGE: 1_000_000.0})
        charged: list[str] = []
        use = quotas.use

        def noted(key: str, user: str, client_id: str, amount: float, now_ms: int) -> int:
            charged.append(user)
            return use(key, user, client_id, amount, now_ms)

        monkeypatch.setattr(quotas, "use", noted)
        asked = ApiVersionsRequest(client_software_name="a", client_software_version="1")
        await connection.request(asked, ApiVersionsResponse)
        for _ in range(2):  # the second time it logs in again
            assert (await log_in(connection, "alice", "b")).error_code == 0
        assert charged == []
        await connection.request(asked, ApiVersionsResponse)
        again = SaslHandshakeRequest(mechanism="PLAIN")
        answer = await connection.request(again, SaslHandshakeResponse)
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE  # once a second, and no sooner
        assert charged == ["alice", "alice"]


async def throttle_ms_of_a_peer(node: Node) -> tuple[int, int]:
    """Of a request by whoever calls himself another broker, and of a follower's fetch."""
    await node.services.quotas.alter(ALL_USERS, {REQUEST_PERCENTAGE: 1e-6})
    address = node.services.address
    async with await BrokerConnection.open(
        address.host, address.port, client_id="lapse-broker-2"
    ) as connection:
        asked = await connection.request(MetadataRequest(topics=()), MetadataResponse)
    async with await connect(node) as connection:
        fetched = await fetch(node, connection, replica_id=2)
    return asked.throttle_time_ms, fetched.throttle_time_ms


async def test_brokers_ask_each_other_whatever_clients_may(tmp_path: Path) -> None:
    """By a quota of all users a follower would fall out of sync."""
    async with two_nodes(tmp_path, SystemClock()) as (node, _):
        await create(node, "t", 1)
        assert await throttle_ms_of_a_peer(node) == (0, 0)


async def test_a_lone_broker_has_none_that_could_ask(tmp_path: Path) -> None:
    """A name, or a number, would free a client from its quota."""
    async with running_node(tmp_path) as node:
        await create(node, "t", 1)
        assert await throttle_ms_of_a_peer(node) == (1000, 1000)


async def test_who_calls_itself_a_broker_has_a_right_of_theirs(tmp_path: Path) -> None:
    async with two_nodes(tmp_path, SystemClock(), **ACLS) as (node, _):
        await node.services.quotas.alter(ALL_USERS, {CONTROLLER_MUTATION_RATE: 1})
        entrance = node.services.entrances[0]
        broker, alice = (
            Session("1.2.3.4:5", "127.0.0.1", entrance, certified=who, client_id="lapse-broker-2")
            for who in ("User:ANONYMOUS", "User:alice")
        )
        for _ in range(3):
            charge_mutations(node.services, broker, 100, strict=True)
        charge_mutations(node.services, alice, 100, strict=True)
        with pytest.raises(KafkaError, match="controller_mutation_rate is used up"):
            charge_mutations(node.services, alice, 1, strict=True)


async def test_a_follower_without_the_right_gets_nothing(tmp_path: Path) -> None:
    async with running_node(tmp_path, WITH_ACLS) as node:
        await create(node, "t", 1)
        await set_acls(node, [allow(Operation.READ, ResourceType.TOPIC, "t")])
        async with await logged_in(node, "alice") as alice:
            got = await fetch(node, alice, replica_id=7)
    code = got.responses[0].partitions[0].error_code
    assert code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_waiting_ends_with_the_connection(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await create(node, "t", 1)
        await node.services.quotas.alter(ALL_USERS, {PRODUCER_BYTE_RATE: 1})
        async with await connect(node) as connection:
            assert (await produce(connection)).throttle_time_ms > 100_000
        began = time.monotonic()
    assert time.monotonic() - began < 60  # the node stopped


async def test_a_stopwatch_counts_work_and_no_waiting() -> None:
    clock, done = ManualClock(0), asyncio.Event()

    async def work() -> str:
        clock.advance(3000)
        await done.wait()
        clock.advance(4000)
        return "done"

    async def meanwhile() -> None:
        await asyncio.sleep(0)
        clock.advance(100_000)
        done.set()

    watch = Stopwatch(clock)
    answer, _ = await asyncio.gather(_run(watch, work()), meanwhile())
    assert (answer, round(watch.seconds, 3)) == ("done", 7.0)


async def _run(watch: Stopwatch, work) -> object:  # type: ignore[no-untyped-def]
    return await watch.run(work)


async def test_a_stopwatch_passes_errors_and_cancellation_on() -> None:
    seen = []

    async def fails() -> None:
        raise ValueError

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    with pytest.raises(ValueError, match=r"^$"):
        await Stopwatch(ManualClock(0)).run(fails())
    task = asyncio.create_task(_run(Stopwatch(ManualClock(0)), waits()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


# --- changes of topics ----------------------------------------------------------------------------


def topics_to_create(*counts: int, dry: bool = False) -> CreateTopicsRequest:
    topics = tuple(
        CreatableTopic(
            name=f"t{n}", num_partitions=count, replication_factor=1, assignments=(), configs=()
        )
        for n, count in enumerate(counts)
    )
    return CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=dry)


def topics_to_grow(*counts: int, dry: bool = False) -> CreatePartitionsRequest:
    topics = tuple(
        CreatePartitionsTopic(name=f"t{n}", count=count, assignments=None)
        for n, count in enumerate(counts)
    )
    return CreatePartitionsRequest(topics=topics, timeout_ms=1000, validate_only=dry)


def topics_to_delete(count: int, *, by_state: bool) -> DeleteTopicsRequest:
    names = tuple(f"t{n}" for n in range(count))
    if by_state:
        states = tuple(DeleteTopicState(name=name) for name in names)
        return DeleteTopicsRequest(topics=states, timeout_ms=1000)
    return DeleteTopicsRequest(topic_names=names, timeout_ms=1000)


# What exists, what is requested in which version, the response's results, whether each may be done,
# and how many partitions are owed then, at one a second and eleven at once.
CHANGES: dict[str, tuple[tuple[int, ...], Any, int, type, str, list[bool], int]] = {
    "create": ((), topics_to_create(11, 1, 1), 6, CreateTopicsResponse, "topics",
               [True, True, False], 1),
    "create, older": ((), topics_to_create(11, 1, 1), 5, CreateTopicsResponse, "topics",
                      [True, True, True], 2),
    "create, dry": ((), topics_to_create(12, 1, dry=True), 7, CreateTopicsResponse, "topics",
                    [True, False], 1),
    "grow": ((1, 1, 1), topics_to_grow(11, 3, 2), 3, CreatePartitionsResponse, "results",
             [True, True, False], 1),
    "grow, older": ((1, 1, 1), topics_to_grow(11, 3, 2), 2, CreatePartitionsResponse, "results",
                    [True, True, True], 2),
    "delete": ((12, 1), topics_to_delete(2, by_state=True), 6, DeleteTopicsResponse, "responses",
               [True, False], 1),
    "delete, by name": ((12, 1), topics_to_delete(2, by_state=False), 5, DeleteTopicsResponse,
                        "responses", [True, False], 1),
    "delete, older": ((12, 1), topics_to_delete(2, by_state=False), 4, DeleteTopicsResponse,
                      "responses", [True, True], 2),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
async def test_partitions_beyond_the_quota(tmp_path: Path, case: str) -> None:
    """Newer clients are refused the topics beyond it; all get a throttle time."""
    there, request, version, cls, results, allowed, owed = CHANGES[case]
    clock = ManualClock()
    async with running_node(tmp_path, clock=clock) as node, await connect(node) as connection:
        for n, count in enumerate(there):
            await create(node, f"t{n}", count)
        await node.services.quotas.alter(ALL_USERS, {CONTROLLER_MUTATION_RATE: 1})
        answer = await connection.request(request, cls, version=version)
        refused = ErrorCode.THROTTLING_QUOTA_EXCEEDED
        codes = [one.error_code for one in getattr(answer, results)]
        assert codes == [0 if may else refused for may in allowed]
        assert answer.throttle_time_ms == 1000 * owed


async def test_topics_that_are_made_by_themselves_count(tmp_path: Path) -> None:
    """One beyond the quota stays unknown for now."""
    settings = {"auto.create.topics.enable": "true", "num.partitions": "12"}
    clock = ManualClock()
    async with (
        running_node(tmp_path, settings, clock=clock) as node,
        await connect(node) as connection,
    ):
        await node.services.quotas.alter(ALL_USERS, {CONTROLLER_MUTATION_RATE: 1})
        names = tuple(MetadataRequestTopic(name=name) for name in "ab")
        request = MetadataRequest(topics=names, allow_auto_topic_creation=True)
        answer = await connection.request(request, MetadataResponse, version=9)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert sorted(topic.error_code for topic in answer.topics) == [0, unknown]
        assert answer.throttle_time_ms == 1000
        assert len(node.services.topics.image.topics) == 1


async def test_records_that_are_not_sent_are_not_used(tmp_path: Path) -> None:
    async with running_node(tmp_path, clock=ManualClock()) as node:
        await node.services.quotas.alter(CLIENTS, {CONSUMER_BYTE_RATE: 100.0})
        session = Session("1.2.3.4:5", "127.0.0.1", node.services.entrances[0])
        assert charge_fetched(node.services, session, 0, 900) == 0
        assert charge_fetched(node.services, session, 0, 900) > 0
        assert charge_fetched(node.services, session, 0, 100) == 0
