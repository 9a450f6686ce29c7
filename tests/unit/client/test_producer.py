"""Our producer against our broker, and against a peer that answers as it is told."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.errors import ConfigError, ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.client.connection import ConnectionLost
from lapse.client.consumer import Consumer
from lapse.client.delivery import UnsupportedFeature
from lapse.client.login import login
from lapse.client.offsets import EARLIEST
from lapse.client.partitioner import partition_of
from lapse.client.producer import Producer, ProducerConfig
from lapse.client.record import ConsumerRecord
from lapse.records.layout import Codec
from lapse.wire.schema.metadata import MetadataRequest
from lapse.wire.schema.produce import ProduceRequest
from tests.support.broker.running import create, running_node
from tests.support.client.peers import Peer, metadata, running_peers
from tests.support.security.certificates import CHECKED_IN


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path) as running:
        yield running


def address(node: Node) -> str:
    return f"{node.services.address.host}:{node.services.address.port}"


async def read(node: Node, topic: str, partitions: int, count: int) -> list[ConsumerRecord]:
    """So many records from the start."""
    got: list[ConsumerRecord] = []
    async with asyncio.timeout(20), Consumer(address(node)) as consumer:
        await consumer.assign({TopicPartition(topic, n): EARLIEST for n in range(partitions)})
        while len(got) < count:
            got += await consumer.poll()
    return got


async def test_a_topic_is_made_only_for_who_wants_that(node: Node) -> None:
    """`auto.create.topics.enable` is set by default, as in Kafka."""
    async with Producer(address(node), ProducerConfig(allow_auto_create_topics=False)) as producer:
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC"):
            await producer.send("new", b"k", b"v")
    assert not node.services.topics.image.topics
    async with Producer(address(node)) as producer:
        await (await producer.send("new", b"k", b"v"))
    assert list(node.services.topics.image.topics) == ["new"]


async def test_what_is_sent_is_there_with_key_headers_and_times(node: Node) -> None:
    await create(node, "t", partitions=3)
    async with Producer(address(node)) as producer:
        sent = [
            await producer.send("t", b"k%d" % n, b"v%d" % n, create_time=1000 + n,
                                headers=[("h", b"%d" % n), ("n", None)])
            for n in range(50)
        ]  # fmt: skip
        places = await asyncio.gather(*sent)
    got = await read(node, "t", 3, 50)
    assert {(r.partition, r.offset): r.key for r in got} == {
        (place.partition, place.offset): b"k%d" % n for n, place in enumerate(places)
    }
    one = next(r for r in got if r.key == b"k7")
    assert (one.value, one.headers, one.create_time, one.timestamp) == (
        b"v7", (("h", b"7"), ("n", None)), 1007, 1007,
    )  # fmt: skip
    assert one.append_time is not None  # to the second, and the broker's
    assert one.partition.partition == partition_of(b"k7", 3)


@pytest.mark.parametrize("codec", Codec)
async def test_order_and_batches_in_every_codec(node: Node, codec: Codec) -> None:
    await create(node, "t")
    config = ProducerConfig(compression=codec, batch_size=2000, linger_ms=0)
    async with Producer(address(node), config) as producer:
        for n in range(500):
            await producer.send("t", None, b"%d" % n)
    got = await read(node, "t", 1, 500)
    assert [int(r.value or b"") for r in got] == list(range(500))
    assert [r.offset for r in got] == list(range(500))


async def test_records_without_a_key_go_round_batch_by_batch(node: Node) -> None:
    await create(node, "t", partitions=2)
    async with Producer(address(node), ProducerConfig(linger_ms=20)) as producer:
        first = [await producer.send("t", None, b"v") for _ in range(5)]
        await producer.flush()
        second = [await producer.send("t", None, b"v") for _ in range(5)]
        await producer.flush()
    assert {(await one).partition for one in first} == {TopicPartition("t", 0)}
    assert {(await one).partition for one in second} == {TopicPartition("t", 1)}


async def test_a_tombstone_with_a_value_and_one_without(node: Node) -> None:
    await create(node, "t", cleanup_policy="compact", lapse_tombstone_values_enable="true")
    async with Producer(address(node)) as producer:
        await producer.send("t", b"a", b"live")
        await producer.send("t", b"b", b"gone, and why", tombstone=True)
        await producer.send("t", b"c", None)
        await producer.send("t", b"d", b"live", tombstone=False)
        await (await producer.send("t", b"e", None, tombstone=True))
        with pytest.raises(KafkaError, match="tombstone=False with a null value") as refused:
            await producer.send("t", b"f", None, tombstone=False)
    assert refused.value.code is ErrorCode.INVALID_RECORD
    got = await read(node, "t", 1, 5)
    assert [(r.key, r.value, r.is_tombstone) for r in got] == [
        (b"a", b"live", False), (b"b", b"gone, and why", True), (b"c", None, True),
        (b"d", b"live", False), (b"e", None, True),
    ]  # fmt: skip


async def test_refusals_are_the_records_and_the_next_ones_go_on(node: Node) -> None:
    await create(node, "t", cleanup_policy="compact", max_message_bytes="5000")
    async with Producer(address(node)) as producer:
        bad = await producer.send("t", None, b"keyless")
        with pytest.raises(KafkaError, match="record 0 of the batch") as refused:
            await bad
        assert refused.value.code is ErrorCode.INVALID_RECORD
        large = await producer.send("t", b"k", bytes(9000))
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            await large
        good = await (await producer.send("t", b"k", b"v"))
        with pytest.raises(KafkaError, match="max_request_size"):
            await producer.send("t", b"k", bytes(2 << 20))
        with pytest.raises(KafkaError, match="there is no such partition"):
            await producer.send("t", b"k", b"v", partition=1)
    assert good.offset == 0


async def test_acks_0_and_1(node: Node) -> None:
    await create(node, "t")
    for acks in (0, 1):
        config = ProducerConfig(acks=acks, enable_idempotence=False)
        async with Producer(address(node), config) as producer:
            place = await (await producer.send("t", b"k", b"v"))
        assert place.offset == (-1 if acks == 0 else 1)
        await read(node, "t", 1, acks + 1)


def test_settings_that_contradict_each_other() -> None:
    for wrong, words in (
        ({"acks": 2}, "acks=2"),
        ({"acks": 1}, "enable_idempotence"),
        ({"buffer_memory": 5}, "buffer_memory=5"),
    ):
        with pytest.raises(ConfigError, match=words):
            ProducerConfig(**wrong)  # type: ignore[arg-type]


async def test_log_append_time_keeps_both_times(node: Node) -> None:
    await create(node, "t", message_timestamp_type="LogAppendTime")
    async with Producer(address(node)) as producer:
        place = await (await producer.send("t", b"k", b"v", create_time=5))
    (record,) = await read(node, "t", 1, 1)
    assert place.append_time is not None
    assert (record.create_time, record.append_time) == (5, place.append_time)
    assert record.timestamp == place.append_time


async def test_memory_is_bounded_and_given_back(node: Node) -> None:
    await create(node, "t")
    config = ProducerConfig(
        buffer_memory=10_000, max_request_size=10_000, linger_ms=60_000, max_block_ms=300,
        batch_size=1 << 20,
    )  # fmt: skip
    async with Producer(address(node), config) as producer:
        for _ in range(2):
            await producer.send("t", b"k", bytes(4000))
        with pytest.raises(KafkaError, match="buffer_memory"):
            await producer.send("t", b"k", bytes(4000))
        await producer.flush()
        await producer.send("t", b"k", bytes(4000))
    assert len(await read(node, "t", 1, 3)) == 3


async def test_a_closed_producer_takes_nothing_and_fails_what_waited(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await create(node, "t")
        producer = Producer(address(node), ProducerConfig(linger_ms=60_000))
        waiting = await producer.send("t", b"k", b"v")
        await producer.close(timeout_ms=0)
        # Flushed or failed, never neither: what was under way may have arrived.
        assert waiting.done()
        with pytest.raises(ConnectionLost, match="closed"):
            await producer.send("t", b"k", b"v")
    with pytest.raises(ConnectionLost, match="cannot connect"):
        async with Producer(address(node), ProducerConfig(max_block_ms=300)) as late:
            await late.send("t", b"k", b"v")


async def test_a_broker_that_does_not_answer_is_no_lack_of_memory() -> None:
    silent = Peer({})
    async with running_peers(silent):
        config = ProducerConfig(max_block_ms=300)
        async with Producer(silent.address, config) as producer:
            with pytest.raises(ConnectionLost, match="t: no broker answers within max_block_ms"):
                await producer.send("t", b"k", b"v")


async def test_the_last_failure_is_told_though_another_try_is_under_way() -> None:
    """Which of the two comes first at the end of `max_block_ms` is up to chance."""
    came: list[asyncio.StreamWriter] = []

    async def first_hangs_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(writer)
        if len(came) == 1:
            writer.close()

    server = await asyncio.start_server(first_hangs_up, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with Producer(f"{host}:{port}", ProducerConfig(max_block_ms=300)) as producer:
        with pytest.raises(ConnectionLost) as lost:
            await producer.send("t", b"k", b"v")
    assert len(came) > 1
    assert "no broker answers" not in str(lost.value)
    for writer in came:
        writer.close()
    server.close()


async def test_a_broker_that_comes_back_gets_each_record_once(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await create(node, "t")
        bootstrap, port = address(node), node.services.address.port
        producer = Producer(bootstrap, ProducerConfig(linger_ms=0))
        await (await producer.send("t", b"k", b"0"))
    sent = [await producer.send("t", b"k", b"%d" % n) for n in range(1, 20)]
    await asyncio.sleep(0.3)
    async with running_node(tmp_path, {"listeners": f"PLAINTEXT://127.0.0.1:{port}"}) as node:
        places = await asyncio.gather(*sent)
        assert [place.offset for place in places] == list(range(1, 20))
        got = await read(node, "t", 1, 20)
        await producer.close()
    assert [int(r.value or b"") for r in got] == list(range(20))


async def test_a_broker_that_is_away_at_first_is_waited_for(tmp_path: Path) -> None:
    """Who learns of a topic waits as long as who sends to one; a person is told at once."""
    async with running_node(tmp_path) as node:
        await create(node, "t", 2)
        bootstrap, port = address(node), node.services.address.port
    async with Producer(bootstrap) as producer:
        with pytest.raises(ConnectionLost, match="cannot connect"):
            await producer.partition_count("t", waits=False)
        counting = asyncio.create_task(producer.partition_count("t"))
        sending = asyncio.create_task(producer.send("t", b"k", b"v", partition=0))
        await asyncio.sleep(0)
        async with running_node(tmp_path, {"listeners": f"PLAINTEXT://127.0.0.1:{port}"}):
            assert await counting == 2
            assert (await (await sending)).offset == 0


class Slow(Peer):
    """Reads nothing until it may."""

    def __init__(self) -> None:
        super().__init__({ProduceRequest: self._take})
        self.script[MetadataRequest] = metadata({0: self}, {"t": [0]})
        self.reads, self.has_all = asyncio.Event(), asyncio.Event()

    def _take(self, _: ProduceRequest) -> None:
        if len(self.of(ProduceRequest)) == _MANY:
            self.has_all.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        read = reader.readexactly

        async def when_it_may(n: int) -> bytes:
            if n >= _LARGE:
                await self.reads.wait()
            return await read(n)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reader, "readexactly", when_it_may)
            await super().serve(reader, writer)


_LARGE, _MANY = 900_000, 40  # more than sockets hold
TRUSTING = {
    "ssl.truststore.type": "PEM",
    "ssl.truststore.location": str(CHECKED_IN / "ca.crt"),
}
NO_ACKS = ProducerConfig(acks=0, enable_idempotence=False, linger_ms=0)


def peer_tls() -> ssl.SSLContext:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(CHECKED_IN / "server.crt", CHECKED_IN / "server.key")
    return tls


@pytest.mark.parametrize("is_secured", [False, True])
async def test_without_acks_nothing_is_dropped_at_the_end(is_secured: bool) -> None:
    """What the broker has not read yet is sent before the producer hangs up."""
    peer, tls = Slow(), peer_tls()
    who = login({**TRUSTING, "security.protocol": "SSL" if is_secured else "PLAINTEXT"})
    async with running_peers(peer, tls=tls if is_secured else None), asyncio.timeout(20):
        async with Producer(peer.address, NO_ACKS, login=who) as producer:
            sent = [await producer.send("t", b"k", bytes(_LARGE)) for _ in range(_MANY - 10)]
            _, waiting = await asyncio.wait(sent, timeout=0.5)
            assert waiting, "it is told what is gone"
            sent += [await producer.send("t", b"k", bytes(_LARGE)) for _ in range(10)]
            peer.reads.set()
        assert [one.exception() for one in sent] == [None] * _MANY
        await peer.has_all.wait()


async def test_without_acks_a_broker_that_reads_nothing_is_not_waited_for_too_long() -> None:
    peer, config = Slow(), replace(NO_ACKS, delivery_timeout_ms=500)
    async with running_peers(peer):
        async with asyncio.timeout(20), Producer(peer.address, config) as producer:
            sent = [await producer.send("t", b"k", bytes(_LARGE)) for _ in range(30)]
            await asyncio.wait(sent)
        assert isinstance(sent[-1].exception(), KafkaError)
        peer.reads.set()


async def test_without_acks_the_end_takes_no_longer_than_it_may() -> None:
    """Who speaks TLS waits at the end for the other side, which reads nothing here."""
    peer, config = Slow(), replace(NO_ACKS, request_timeout_ms=60_000)
    async with running_peers(peer, tls=peer_tls()), asyncio.timeout(20):
        who = login({**TRUSTING, "security.protocol": "SSL"})
        producer = Producer(peer.address, config, login=who)
        await (await producer.send("t", b"k", bytes(_LARGE)))
        await producer.close(timeout_ms=300)
        peer.reads.set()


def test_unsupported_feature_is_told_apart() -> None:
    assert not issubclass(UnsupportedFeature, ConnectionLost)
