"""A transactional id at a running node: what counts together, and who is fenced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.connection import BrokerConnection
from lapse.client.groups import Committed
from lapse.client.producer import Producer, ProducerConfig
from lapse.client.transactions import FENCED, Transactions, TransactionSettings
from lapse.wire.schema.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from lapse.wire.schema.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tests.support.broker.running import create, running_node
from tests.support.client.committed import committed_records
from tests.support.client.peers import Peer, in_turn, running_peers

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
QUICK = TransactionSettings(max_block_ms=5000)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path, {"auto.create.topics.enable": "false"}) as running:
        await create(running, "a", 2)
        yield running


def address(node: Node) -> str:
    return f"{node.services.address.host}:{node.services.address.port}"


@asynccontextmanager
async def transactions(node: Node, name: str = "t") -> AsyncIterator[Transactions]:
    async with Cluster(parse_bootstrap(address(node))) as cluster:
        yield Transactions(cluster, name, QUICK)


async def values(node: Node) -> list[bytes]:
    return sorted(bytes(r.value or b"") for r in await committed_records(address(node), "a"))


async def commit_next(node: Node, mine: Transactions, value: bytes) -> None:
    """A transaction of one record, after whatever was before."""
    await mine.begin()
    async with Producer(address(node), transactions=mine) as producer:
        await producer.send("a", b"k", value, partition=0)
        await producer.flush()
    await mine.end(commit=True)


async def test_records_and_an_offset_count_together(node: Node) -> None:
    async with transactions(node) as mine:
        await mine.begin()
        async with Producer(address(node), transactions=mine) as producer:
            for n in range(2):
                await producer.send("a", b"k", b"%d" % n, partition=n)
            await producer.flush()
            await mine.commit_offset("g", A0, 7, "with it")
            assert await values(node) == []
            assert await mine.committed("g") == {}
        await mine.end(commit=True)
        await mine.begin()  # which waits until that is everywhere
        assert await mine.committed("g") == {A0: Committed(7, "with it")}
        await mine.commit_offset("g", A0, 8, "")
        with pytest.raises(KafkaError, match="UNSTABLE_OFFSET_COMMIT"):
            await mine.committed("g")
    assert await values(node) == [b"0", b"1"]


async def test_what_send_refuses_keeps_it_from_being_committed(node: Node) -> None:
    """As with Kafka's own client: the data would count without that record."""
    async with transactions(node) as mine:
        await mine.begin()
        async with Producer(address(node), transactions=mine) as producer:
            await producer.send("a", b"k", b"one", partition=0)
            with pytest.raises(KafkaError, match="max_request_size"):
                await producer.send("a", b"k", b"x" * (2 << 20), partition=0)
            await producer.flush()
        with pytest.raises(KafkaError, match=r"can only be aborted.*max_request_size"):
            await mine.end(commit=True)
        await mine.end(commit=False)
        await commit_next(node, mine, b"two")
    assert await values(node) == [b"two"]


async def test_an_abort_makes_good_what_was_refused_before_anything_was_sent(node: Node) -> None:
    async with transactions(node) as mine:
        await mine.begin()
        async with Producer(address(node), transactions=mine) as producer:
            with pytest.raises(KafkaError, match="max_request_size"):
                await producer.send("a", b"k", b"x" * (2 << 20), partition=0)
            await mine.end(commit=False)
            await producer.send("a", b"k", b"one", partition=0)
            await producer.flush()
        await mine.end(commit=True)
    assert await values(node) == [b"one"]


async def test_an_offset_that_is_refused_keeps_it_from_being_committed(node: Node) -> None:
    async with transactions(node) as mine:
        await mine.begin()
        async with Producer(address(node), transactions=mine) as producer:
            await producer.send("a", b"k", b"one", partition=0)
            with pytest.raises(KafkaError, match="OFFSET_METADATA_TOO_LARGE"):
                await mine.commit_offset("g", A0, 7, "m" * 5000)
            await producer.flush()
        with pytest.raises(KafkaError, match="can only be aborted"):
            await mine.end(commit=True)
        await mine.end(commit=False)
    assert await values(node) == []


async def test_what_is_aborted_counts_for_nobody(node: Node) -> None:
    """Then another transaction of the same producer."""
    async with transactions(node) as mine:
        await mine.begin()
        async with Producer(address(node), transactions=mine) as producer:
            await (await producer.send("a", b"k", b"never", partition=0))
            await mine.commit_offset("g", A0, 7, "never")
            await mine.end(commit=False)
            assert await mine.committed("g") == {}
            await (await producer.send("a", b"k", b"later", partition=0))
            await mine.end(commit=True)
    assert await values(node) == [b"later"]


async def test_what_could_not_be_sent_is_not_committed_without(node: Node) -> None:
    """Nobody looked at the record's future; `flush` says nothing of it."""
    await create(node, "small", 1, max_message_bytes="200")
    async with transactions(node) as mine:
        await mine.begin()
        async with Producer(address(node), transactions=mine) as producer:
            await producer.send("a", b"k", b"one", partition=0)
            await producer.send("small", b"k", b"x" * 1000)
            await producer.flush()
        with pytest.raises(KafkaError, match="can only be aborted, since a part") as refused:
            await mine.end(commit=True)
        assert refused.value.code == ErrorCode.INVALID_TXN_STATE
        await mine.end(commit=False)
        await commit_next(node, mine, b"two")
    assert await values(node) == [b"two"]


async def test_what_was_closed_before_it_was_sent_is_not_committed_without(node: Node) -> None:
    async with transactions(node) as mine:
        await mine.begin()
        producer = Producer(address(node), ProducerConfig(linger_ms=60_000), transactions=mine)
        await producer.send("a", b"k", b"one", partition=0)
        await producer.close(timeout_ms=0)
        with pytest.raises(KafkaError, match="closed before it was sent"):
            await mine.end(commit=True)


async def test_nothing_begun_is_nothing_to_end(node: Node) -> None:
    async with transactions(node) as mine:
        await mine.begin()
        for commit in (True, False):
            await mine.end(commit=commit)
        assert await mine.committed("g") == {}


async def test_who_begins_fences_who_was_there_and_ends_what_he_left(node: Node) -> None:
    async with transactions(node) as first, transactions(node) as second:
        await first.begin()
        async with Producer(address(node), transactions=first) as producer:
            await (await producer.send("a", b"k", b"left open", partition=0))
            await second.begin()
            sending = await producer.send("a", b"k", b"fenced", partition=0)
            with pytest.raises(KafkaError) as sent:
                await sending
            with pytest.raises(KafkaError, match="a batch of it has failed"):
                await (await producer.send("a", b"k", b"after it", partition=0))
            for asking in (first.add(A1), first.commit_offset("g", A0, 1, "")):
                with pytest.raises(KafkaError) as asked:
                    await asking
                assert asked.value.code in FENCED
        assert sent.value.code in FENCED
        with pytest.raises(KafkaError):
            await first.end(commit=True)
        async with Producer(address(node), transactions=second) as producer:
            await (await producer.send("a", b"k", b"second", partition=0))
        await second.end(commit=True)
    assert await values(node) == [b"second"]


async def test_a_topic_that_is_not_there_is_said_in_time(node: Node) -> None:
    async with Cluster(parse_bootstrap(address(node))) as cluster:
        mine = Transactions(cluster, "t", TransactionSettings(max_block_ms=300))
        await mine.begin()
        with pytest.raises(KafkaError, match=r"not done within 300 ms.*UNKNOWN_TOPIC") as late:
            await mine.add(TopicPartition("nobody", 0))
        assert late.value.code is ErrorCode.REQUEST_TIMED_OUT


async def test_several_partitions_at_once(node: Node) -> None:
    async with transactions(node) as mine:
        await mine.begin()
        await asyncio.gather(*(mine.add(where) for where in (A0, A1, A0, A1)))
        await mine.end(commit=True)


@pytest.mark.parametrize("silent_to", [FindCoordinatorRequest, InitProducerIdRequest])
async def test_a_connection_that_is_silent_is_not_asked_again(
    silent_to: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A router may have forgotten it: nobody hangs up then."""
    monkeypatch.setitem(BrokerConnection.request.__kwdefaults__, "timeout_seconds", 0.2)
    one = Peer({})

    def found(request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        (key,) = request.coordinator_keys
        mine = Coordinator(key=key, node_id=0, host="127.0.0.1", port=one.port, error_code=0)
        return FindCoordinatorResponse(coordinators=(mine,))

    one.script = {
        FindCoordinatorRequest: found,
        InitProducerIdRequest: lambda _: InitProducerIdResponse(
            error_code=0, producer_id=7, producer_epoch=1
        ),
    }
    one.script[silent_to] = in_turn(lambda _: None, one.script[silent_to])
    settings = TransactionSettings(request_timeout_ms=200)
    async with running_peers(one), Cluster(parse_bootstrap(one.address)) as cluster:
        silent = await cluster.any_connection()
        assert await Transactions(cluster, "t", settings).begin() == (7, 1)
        assert silent.is_lost
        assert len(one.of(silent_to)) == 2
