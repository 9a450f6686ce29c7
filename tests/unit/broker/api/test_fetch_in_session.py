"""Fetch sessions of a running broker (KIP-227): what goes over the wire, waits, limits, rights."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode
from lapse.broker.http.metrics import registry
from lapse.broker.limits.quotas import CONSUMER_BYTE_RATE, USER
from lapse.broker.node import Node
from lapse.broker.request.context import Session
from lapse.broker.request.throttle import charge_fetched
from lapse.client.admin import Admin
from lapse.client.connection import BrokerConnection
from lapse.security.acls import Operation, ResourceType
from lapse.wire.schema.fetch import FetchRequest, FetchResponse
from tests.support.broker.fetching import Client, got, named, offsets, part, until_waiting
from tests.support.broker.running import (
    BY_NAME,
    batch_of,
    connect,
    create,
    produce,
    running_node,
)
from tests.support.broker.secured import WITH_ACLS, allow, logged_in, set_acls
from tests.unit.broker.api.test_fetch import LONG_MS

BY_ID = 17
MANY = 100


@pytest.mark.parametrize("version", [7, BY_NAME, BY_ID])
async def test_partitions_with_nothing_new_are_not_answered(node: Node, version: int) -> None:
    await create(node, "t", MANY)
    async with await connect(node) as connection, await connect(node) as writer:
        client = Client(connection, version)
        topic = named(node, "t", *(part(n, 0) for n in range(MANY)))
        assert len(got(await client.fetch(topic))) == MANY
        assert client.session_id
        assert got(await client.fetch()) == {}
        await produce(writer, "t", (70, batch_of(b"x")))
        answer = await client.fetch()
        assert got(answer) == {70: [0]}
        assert answer.responses[0].partitions[0].high_watermark == 1
        assert got(await client.fetch(named(node, "t", part(70, 1)))) == {}
        await Admin(writer).delete_topic("t")
        gone = {p.error_code for t in (await client.fetch()).responses for p in t.partitions}
    by_id = version == BY_ID
    assert gone == {ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


async def test_a_wait_in_a_session_ends_with_what_came(node: Node) -> None:
    await create(node, "t", 3)
    async with await connect(node) as connection, await connect(node) as writer:
        client = Client(connection)
        await client.fetch(named(node, "t", *(part(n, 0) for n in range(3))))
        waiting = asyncio.create_task(client.fetch(max_wait_ms=LONG_MS))
        await until_waiting(node)
        await produce(writer, "t", (1, batch_of(b"x")))
        assert got(await asyncio.wait_for(waiting, 10)) == {1: [0]}


async def test_a_wait_is_over_for_a_session_that_went_on_elsewhere(node: Node) -> None:
    await create(node, "t")
    async with await connect(node) as connection, await connect(node) as other:
        client, again = Client(connection), Client(other)
        await client.fetch(named(node, "t", part(0, 0)))
        again.session_id, again.epoch = client.session_id, 2
        waiting = asyncio.create_task(client.fetch(max_wait_ms=LONG_MS))
        await until_waiting(node)
        assert (await again.fetch()).error_code == 0
        await produce(other, "t", (0, batch_of(b"x")))
        late = await asyncio.wait_for(waiting, 10)
    assert (late.error_code, late.responses) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, ())


async def test_no_partition_starves(node: Node) -> None:
    """The limit lets one batch through; in five fetches each of five partitions had its turn."""
    await create(node, "t", 5)
    async with await connect(node) as connection, await connect(node) as writer:
        client = Client(connection)
        await client.fetch(named(node, "t", *(part(n, 0) for n in range(5))))
        batch = batch_of(bytes(1000))
        for _ in range(5):
            await produce(writer, "t", *((n, batch) for n in range(5)))
        turns = []
        for _ in range(5):
            answer = await client.fetch(max_bytes=len(batch))
            turns += [n for n, seen in got(answer).items() if seen]
    assert turns == [0, 1, 2, 3, 4]


async def test_records_that_are_not_taken_come_again(node: Node) -> None:
    """The session keeps the offset until the client moves it."""
    await create(node, "t")
    async with await connect(node) as connection, await connect(node) as writer:
        client = Client(connection)
        await client.fetch(named(node, "t", part(0, 0)))
        await produce(writer, "t", (0, batch_of(b"x")))
        assert got(await client.fetch()) == got(await client.fetch()) == {0: [0]}


async def test_a_follower_makes_a_session_and_gets_what_is_stored(node: Node) -> None:
    await create(node, "t")
    async with await connect(node) as connection:
        request = FetchRequest(
            replica_id=1, max_wait_ms=0, min_bytes=0, session_epoch=0,
            topics=(named(node, "t", part(0, 0)),),
        )  # fmt: skip
        answer = await connection.request(request, FetchResponse, version=BY_NAME)
    assert answer.session_id


# --- rights and quotas ----------------------------------------------------------------------------


async def test_rights_are_asked_for_in_each_fetch(tmp_path: Path) -> None:
    """What may not be read is refused within the session, and read once it may be."""
    may_read = [allow(Operation.READ, ResourceType.TOPIC, "mine")]
    async with running_node(tmp_path, WITH_ACLS) as node:
        for name in ("mine", "theirs"):
            await create(node, name)
            async with await connect(node) as writer:
                await produce(writer, name, (0, batch_of(b"x")))
        await set_acls(node, may_read)
        async with await logged_in(node, "alice") as connection:
            client = Client(connection)
            mine, theirs = (named(node, name, part(0, 0)) for name in ("mine", "theirs"))
            for asked in ((theirs, mine), ()):
                answer = await client.fetch(*asked)
                codes = {t.topic: t.partitions[0].error_code for t in answer.responses}
                assert codes == {"mine": 0, "theirs": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
                (refused,) = [t.partitions[0] for t in answer.responses if t.topic == "theirs"]
                assert refused.records == b""
            await set_acls(node, [allow(Operation.READ, ResourceType.TOPIC, "theirs")])
            answer = await client.fetch()
            assert {t.topic: offsets(t.partitions[0].records) for t in answer.responses} == {
                "mine": [0], "theirs": [0],
            }  # fmt: skip
        async with await logged_in(node, "bob") as connection:
            thief = Client(connection)
            thief.session_id, thief.epoch = client.session_id, client.epoch
            stolen = await thief.fetch()
    assert (stolen.error_code, stolen.responses) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ())


async def test_what_a_throttled_client_did_not_hear_is_told_later(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t")
        client = Client(connection)
        await client.fetch(named(node, "t", part(0, 0)))
        await produce(connection, "t", (0, batch_of(bytes(2000))))
        quota = ((USER, None),)
        await node.services.quotas.alter(quota, {CONSUMER_BYTE_RATE: 210.0})
        other = Session("1.2.3.4:5", "127.0.0.1", node.services.entrances[0])
        assert charge_fetched(node.services, other, 0, 100) == 0
        throttled = await client.fetch()
        assert (throttled.session_id, throttled.responses) == (client.session_id, ())
        assert throttled.throttle_time_ms
        await node.services.quotas.alter(quota, {CONSUMER_BYTE_RATE: 1e9})
        answer = await client.fetch(named(node, "t", part(0, 1)))  # only its bounds are news
        assert answer.responses[0].partitions[0].high_watermark == 1
        assert got(await client.fetch()) == {}


async def test_metrics_have_kafkas_names(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t", 3)
    await Client(connection).fetch(named(node, "t", *(part(n, 0) for n in range(3))))
    cache = "kafka_server_fetchsessioncache_"
    value = registry(node.services).get_sample_value
    assert value(cache + "numincrementalfetchsessions") == 1
    assert value(cache + "numincrementalfetchpartitionscached") == 3
    assert value(cache + "incrementalfetchsessionevictions_total") == 0


async def test_places_and_their_time_are_settings(tmp_path: Path) -> None:
    settings = {
        "max.incremental.fetch.session.cache.slots": "1",
        "min.incremental.fetch.session.eviction.ms": "0",
    }
    async with running_node(tmp_path, settings) as node, await connect(node) as connection:
        await create(node, "t")
        first, second = Client(connection), Client(connection)
        await first.fetch(named(node, "t", part(0, 0)))
        await asyncio.sleep(0.002)  # the monotonic clock counts milliseconds here
        await second.fetch(named(node, "t", part(0, 0)))
        assert second.session_id
        assert (await first.fetch()).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert node.services.fetch_sessions.evictions == 1
