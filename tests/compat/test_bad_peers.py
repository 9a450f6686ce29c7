"""Hundreds of peers that say nothing, half of something, or lies, and never listen.

A broker in a process of its own keeps its memory and serves everybody else meanwhile, whatever they
do. Its settings leave it little room, so that a few hundred connections are more than enough to
take it all; each test fails where its guard is missing (said in its docstring).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import selectors
import socket
import struct
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from lapse.records.builder import NewRecord, build_batch
from lapse.testing.broker_process import BrokerProcess
from lapse.wire.envelope import decode_response, encode_request
from lapse.wire.schema.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from lapse.wire.schema.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from lapse.wire.schema.metadata import MetadataRequest, MetadataResponse
from lapse.wire.schema.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.compat.conftest import create_topic

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for memory figures")

MIB = 1 << 20
PEERS = 300
ROOM = 32 * MIB
SECONDS = 60
QUIET_SECONDS = 2
# What a connection may cost: sockets and buffers of Python and ours; the target for idle ones.
PEER_BYTES_MAX = 50 << 10
SETTINGS = {
    "queued.max.request.bytes": str(ROOM),
    "lapse.queued.max.response.bytes": str(ROOM),
    "max.connections.per.ip": "2000",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Warm: with what a first client makes it load."""
    with BrokerProcess(tmp_path_factory.mktemp("bad") / "data", SETTINGS) as running:
        create_topic(running, "t")
        is_served(running)
        yield running
        log = running.log()
        assert "by an error of ours" not in log, log[log.index("by an error of ours") - 500 :][
            :3000
        ]
        assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]


def rss_bytes(broker: BrokerProcess, which: str = "VmRSS") -> int:
    """Now, or the most so far: `VmHWM`."""
    status = Path(f"/proc/{broker.pid}/status").read_text()
    found = re.search(rf"{which}:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


class Peers:
    """Many connections; closed at the end."""

    def __init__(self, broker: BrokerProcess, count: int, receive_bytes: int = 0) -> None:
        host, port = broker.bootstrap.split(":")
        self.sockets = []
        for _ in range(count):
            one = socket.socket()
            if receive_bytes:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            one.connect((host, int(port)))
            self.sockets.append(one)

    def __enter__(self) -> list[socket.socket]:
        return self.sockets

    def __exit__(self, *_: object) -> None:
        for one in self.sockets:
            one.close()


def until_heard(broker: BrokerProcess) -> None:
    """What was sent by now was received: the loop looks at all sockets before it comes round."""
    for _ in range(3):
        asked(broker, MetadataRequest(topics=()), MetadataResponse, 9)


def frame(message: Any, version: int) -> bytes:
    parts = encode_request(message, version=version, correlation_id=1, client_id="bad")
    return b"".join(map(bytes, parts))  # type: ignore[arg-type]


def answered(one: socket.socket) -> memoryview:
    size = struct.unpack(">i", received(one, 4))[0]
    return memoryview(bytearray(received(one, size)))


def received(one: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = one.recv(size - len(data))
        if not piece:
            raise ConnectionError
        data += piece
    return data


def asked(broker: BrokerProcess, message: Any, answer: Any, version: int) -> Any:
    host, port = broker.bootstrap.split(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS) as one:
        one.sendall(frame(message, version))
        return decode_response(answer, version, answered(one))


def produce_request(topic: str, batch: bytes) -> ProduceRequest:
    data = (PartitionProduceData(index=0, records=batch),)
    topics = (TopicProduceData(name=topic, partition_data=data),)
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics)


def produce(broker: BrokerProcess, topic: str, batch: bytes) -> None:
    answer = asked(broker, produce_request(topic, batch), ProduceResponse, 9)
    ((done,),) = (one.partition_responses for one in answer.responses)
    assert done.error_code == 0


_numbers = itertools.count()


def is_served(broker: BrokerProcess) -> None:
    """A stock client writes 900 kB at once, and reads it."""
    value = b"%d" % next(_numbers) + bytes(900_000)
    writer = Producer({"bootstrap.servers": broker.bootstrap, "message.max.bytes": 2_000_000})
    done: list[Any] = []
    writer.produce("t", value, partition=0, on_delivery=lambda e, m: done.append((e, m)))
    assert writer.flush(SECONDS) == 0
    ((error, message),) = done
    assert error is None
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    reader.assign([TopicPartition("t", 0, message.offset())])
    got = reader.poll(SECONDS)
    reader.close()
    assert got is not None
    assert got.value() == value


def test_silent_ones_cost_little(broker: BrokerProcess) -> None:
    """Fails at 64 KiB each where the read buffer is a bytearray: it is written when it is made."""
    before = rss_bytes(broker)
    count = 1000
    with Peers(broker, count):
        until_heard(broker)
        grown = rss_bytes(broker) - before
        is_served(broker)
    assert grown < count * PEER_BYTES_MAX


@pytest.mark.parametrize(
    "sent",
    [
        frame(MetadataRequest(topics=None), 9)[:-1],
        struct.pack(">i", 100 << 20) + bytes(1000),
        struct.pack(">i", MIB) + bytes(66_000),
        b"\0\0",
    ],
    ids=["all but a byte", "huge", "large", "half a length"],
)
def test_frames_that_never_end_cost_what_came_of_them(broker: BrokerProcess, sent: bytes) -> None:
    """Fails at 1.5 MiB each, or 1 MiB, where a large frame's memory is a bytearray."""
    before = rss_bytes(broker)
    with Peers(broker, PEERS) as peers:
        for one in peers:
            one.sendall(sent)
        until_heard(broker)
        grown = rss_bytes(broker) - before
        is_served(broker)
    assert grown < PEERS * (PEER_BYTES_MAX + 2 * len(sent))


@pytest.mark.parametrize("size", [-1, -(2**31), 2**31 - 1, 1195725856])
def test_lengths_that_cannot_be_end_their_connection(broker: BrokerProcess, size: int) -> None:
    with Peers(broker, 50) as peers:
        for one in peers:
            one.sendall(struct.pack(">i", size) + bytes(100))
            one.settimeout(SECONDS)
        for one in peers:
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(1) == b""
    is_served(broker)


def test_large_frames_in_part_take_no_more_than_the_room(broker: BrokerProcess) -> None:
    """300 connections send 1 MiB of 2, and no more: ten times the room there is.

    Fails at 300 MiB without `queued.max.request.bytes`; where nobody is given up, the client that
    is served meanwhile waits for ever.
    """
    before = rss_bytes(broker)
    with Peers(broker, PEERS) as peers:
        for one in peers:
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.send(struct.pack(">i", 2 * MIB) + bytes(MIB))
        is_served(broker)
        grown = rss_bytes(broker) - before
    assert grown < 5 * ROOM  # what each has in its read buffer comes on top
    assert "others wait: queued.max.request.bytes" in broker.log()


def send_what_is_taken(peers: list[socket.socket], data: bytes, seconds_max: float) -> None:
    """To all of them, until none has taken anything for a while, or for that long."""
    end = time.monotonic() + seconds_max
    with selectors.DefaultSelector() as ready:
        for one in peers:
            one.setblocking(False)
            ready.register(one, selectors.EVENT_WRITE, memoryview(data))
        while ready.get_map() and time.monotonic() < end:
            found = ready.select(QUIET_SECONDS)
            if not found:
                return
            for key, _ in found:
                rest = key.data
                with contextlib.suppress(BlockingIOError):
                    try:
                        rest = rest[key.fileobj.send(rest[:MIB]) :]  # type: ignore[union-attr]
                    except ConnectionError:  # given up
                        rest = b""
                ready.unregister(key.fileobj)
                if rest:
                    ready.register(key.fileobj, selectors.EVENT_WRITE, rest)


def test_sixty_of_the_largest_frames_in_part_cost_a_quarter_gigabyte(tmp_path: Path) -> None:
    """With the settings that a broker has unless told; clients are served all the while.

    Fails at 3.5 GB where only `queued.max.request.bytes` bounds them, an eighth of the memory.
    """
    with BrokerProcess(tmp_path / "data") as broker:
        create_topic(broker, "t")
        is_served(broker)
        before = rss_bytes(broker)
        with Peers(broker, 60) as peers:
            send_what_is_taken(peers, struct.pack(">i", 60 * MIB + 1) + bytes(60 * MIB), 15)
            is_served(broker)
            assert rss_bytes(broker, "VmHWM") - before < 256 * MIB
            assert "bytes that frames in part may hold are in use" in broker.log()


def test_many_large_requests_at_once_are_all_served(broker: BrokerProcess) -> None:
    """Honest ones, of five times the room: they wait for each other, and none is given up."""
    batch = build_batch([NewRecord(b"k", bytes(900_000))])
    request = frame(produce_request("t", batch), 9)
    known = len(broker.log())
    with Peers(broker, 5 * ROOM // len(request)) as peers:
        unsent = {one: memoryview(request) for one in peers}
        until = time.monotonic() + SECONDS
        while unsent and time.monotonic() < until:
            for one, rest in tuple(unsent.items()):
                one.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    unsent[one] = rest[one.send(rest[:100_000]) :]
                if not unsent[one]:
                    del unsent[one]
        for one in peers:
            one.settimeout(SECONDS)
            answer = decode_response(ProduceResponse, 9, answered(one))
            assert answer.responses[0].partition_responses[0].error_code == 0
    assert "connection of" not in broker.log()[known:]


def test_many_small_elements_end_their_connection(broker: BrokerProcess) -> None:
    """30 MiB of topics of two bytes: without the bound of elements they take a gigabyte or two."""
    before = rss_bytes(broker)
    n = 15 * MIB
    count = bytes([(n + 1 >> s & 0x7F) | (0x80 if n + 1 >> s + 7 else 0) for s in (0, 7, 14, 21)])
    head = frame(MetadataRequest(topics=()), 9)[4:-5]
    content = head + count + b"\1\0" * n + bytes(4)
    with Peers(broker, 3) as peers:
        for one in peers:
            one.settimeout(SECONDS)
            one.sendall(struct.pack(">i", len(content)) + content)
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(1) == b""
    is_served(broker)
    # Three frames and what their elements were until there were too many.
    assert rss_bytes(broker) - before < 8 * ROOM
    assert "elements in all arrays" in broker.log()


def test_answers_that_nobody_reads_take_no_more_than_the_room(broker: BrokerProcess) -> None:
    """Converted ones of 4 MiB, which are in memory, for 300 clients that read nothing.

    Fails beyond a gigabyte where nobody is given up, and also where only what is sent is bounded,
    not what is made at a time. (What is converted takes some times its size meanwhile.)
    """
    create_topic(
        broker, "c", "-c", "cleanup.policy=compact", "-c", "lapse.tombstone.values.enable=true"
    )
    for n in range(8):
        records = [NewRecord(b"%d" % n, bytes(500_000)), NewRecord(b"x", b"why", tombstone=True)]
        produce(broker, "c", build_batch(records))
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=4 * MIB)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, topics=(FetchTopic(topic="c", partitions=(part,)),)
    )
    whole = asked(broker, request, FetchResponse, 12).responses[0].partitions[0]
    assert len(whole.records) > 3 * MIB
    before = rss_bytes(broker)
    with Peers(broker, PEERS, receive_bytes=4096) as peers:
        for one in peers:
            one.sendall(frame(request, 12))
        until_heard(broker)
        is_served(broker)
        grown = rss_bytes(broker) - before
    assert grown < 20 * ROOM
    assert "lapse.queued.max.response.bytes" in broker.log()


def ip_quota(broker: BrokerProcess, rate: float | None, own: socket.socket) -> None:
    """Connections a second that each address may open, by a connection that is open."""
    op = OpData(key="connection_creation_rate", value=rate or 0, remove=rate is None)
    everybody = (EntityData(entity_type="ip", entity_name=None),)
    request = AlterClientQuotasRequest(
        entries=(EntryData(entity=everybody, ops=(op,)),), validate_only=False
    )
    own.sendall(frame(request, 1))
    answer = decode_response(AlterClientQuotasResponse, 1, answered(own))
    assert [entry.error_code for entry in answer.entries] == [0]


def test_a_storm_of_connections_is_of_its_address_alone(broker: BrokerProcess) -> None:
    """300 at once, of which ten seconds' worth may be: others are closed, and counted.

    Whoever came before, or comes from elsewhere, is answered meanwhile. Fails where an address is
    not counted, where all are counted as one, and where the broker sleeps.
    """
    rate, n_answered, n_closed = 10, 0, 0
    host, port = broker.bootstrap.split(":")
    request = frame(MetadataRequest(topics=()), 9)
    with socket.create_connection((host, int(port)), timeout=SECONDS) as own:
        ip_quota(broker, rate, own)
        began = time.monotonic()
        with Peers(broker, PEERS) as peers:
            elsewhere = ("127.0.0.2", 0)
            with socket.create_connection((host, int(port)), SECONDS, elsewhere) as other:
                for one in (own, other):
                    one.sendall(request)
                    assert decode_response(MetadataResponse, 9, answered(one)).brokers
            for one in peers:
                one.settimeout(SECONDS)
                try:
                    one.sendall(request)
                    n_answered += len(answered(one)) > 0
                except ConnectionError:
                    n_closed += 1
        seconds = time.monotonic() - began
        ip_quota(broker, None, own)
    assert 10 * rate <= n_answered <= (10 + seconds) * rate
    with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=SECONDS) as page:
        metrics = page.read().decode()
    counted = re.search(r'connections_throttled_total\{listener="PLAINTEXT"\} (\d+)', metrics)
    assert counted is not None
    assert int(counted[1]) == n_closed > 0
    assert broker.log().count("more a second than its quota") <= 1 + seconds * rate
    is_served(broker)


def test_who_neither_reads_nor_asks_is_not_kept(tmp_path: Path) -> None:
    """Long slices go from the file, which costs no memory; the connection is idle all the same.

    Fails where a connection that waits in sendfile counts as one with a request in work. And there
    is a limit for all connections, which those count in.
    """
    settings = {"connections.max.idle.ms": "1000", "max.connections": "40"}
    with BrokerProcess(tmp_path / "data", settings) as broker:
        create_topic(broker, "t")
        for _ in range(8):
            produce(broker, "t", build_batch([NewRecord(b"k", bytes(1_000_000))]))
        part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=8 * MIB)
        request = FetchRequest(
            max_wait_ms=0, min_bytes=1, topics=(FetchTopic(topic="t", partitions=(part,)),)
        )
        with Peers(broker, 60, receive_bytes=4096) as peers:
            for one in peers:
                with contextlib.suppress(ConnectionError):
                    one.sendall(frame(request, 12))
            until = time.monotonic() + SECONDS
            while open_sockets(broker) and time.monotonic() < until:
                time.sleep(0.05)
            assert open_sockets(broker) == 0
            is_served(broker)
        assert "max.connections is 40" in broker.log()


def open_sockets(broker: BrokerProcess) -> int:
    """Established connections at the broker's end."""
    port = int(broker.bootstrap.split(":")[1])
    inodes = {
        fields[9]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if (fields := line.split())[1].endswith(f":{port:04X}") and fields[3] == "01"
    }
    links = Path(f"/proc/{broker.pid}/fd")
    own = set()
    for name in os.listdir(links):
        with contextlib.suppress(OSError):
            own.add(os.readlink(links / name))
    return sum(f"socket:[{inode}]" in own for inode in inodes)
