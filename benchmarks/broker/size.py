"""Start, memory and many partitions: what a broker costs before it does anything."""

from __future__ import annotations

import socket
import statistics
import time
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.broker.peers import Peer, quantile, rss_mib
from benchmarks.broker.stock import create, fetch, produce
from benchmarks.common import KIB
from lapse.testing.broker_process import BrokerProcess
from lapse.wire.envelope import decode_response, encode_request
from lapse.wire.schema.api_versions import ApiVersionsRequest
from lapse.wire.schema.metadata import MetadataRequest, MetadataResponse
from tests.oracle.kafka import RealKafka

CONNECTIONS = 1000
TOPICS = 10
STARTS = 3
ASKED_TIMES = 9
METADATA_VERSION = 12
API_VERSIONS_VERSION = 0


def memory_and_start(make: type[BrokerProcess] | type[RealKafka], data: Path) -> dict[str, Any]:
    """Resident memory after first use and by connection; seconds from start to ready."""
    figures: dict[str, Any] = {}
    with make(data) as peer:
        create(peer.bootstrap, "first", 1)
        produce(peer.bootstrap, "first", 1, 1000, 16)
        fetch(peer.bootstrap, "first", 1, 1000, 16)
        figures["rss_mib"] = rss_mib(peer.pid)
        figures["kib_a_connection"] = _connection_kib(peer)
        starts = []
        for _ in range(STARTS):
            peer.stop()
            started = time.perf_counter()
            peer.start()
            starts.append(time.perf_counter() - started)
        figures["start_seconds"] = round(statistics.median(starts), 2)
    return figures


def _connection_kib(peer: Peer) -> float:
    host, port = peer.bootstrap.rsplit(":", 1)
    opened = []
    before = rss_mib(peer.pid)
    for _ in range(CONNECTIONS):
        s = socket.create_connection((host, int(port)))
        ask(s, ApiVersionsRequest(), API_VERSIONS_VERSION)
        ask(s, MetadataRequest(topics=()), METADATA_VERSION)
        opened.append(s)
    grown = rss_mib(peer.pid) - before
    for s in opened:
        s.close()
    return round(grown * KIB / CONNECTIONS, 1)


def ask(s: socket.socket, message: Any, version: int) -> memoryview:
    """One request by hand; the answer's frame."""
    s.sendall(b"".join(map(bytes, encode_request(
        message, version=version, correlation_id=1, client_id="benchmark"
    ))))  # fmt: skip
    size = int.from_bytes(_exactly(s, 4), "big")
    return memoryview(_exactly(s, size))


def _exactly(s: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        n = s.recv_into(view)
        if not n:
            raise RuntimeError("the broker closed the connection")
        view = view[n:]
    return data


def many_partitions(
    make: type[BrokerProcess] | type[RealKafka], data: Path, partitions: int
) -> dict[str, Any]:
    """Seconds until a broker that hosts them is ready, and milliseconds of Metadata for all."""
    figures: dict[str, Any] = {"partitions": partitions}
    with make(data) as peer:
        admin = AdminClient({"bootstrap.servers": peer.bootstrap})
        started = time.perf_counter()
        for n in range(TOPICS):
            topic = NewTopic(f"many-{n}", partitions // TOPICS, 1)
            admin.create_topics([topic], operation_timeout=120, request_timeout=120)[
                f"many-{n}"
            ].result(150)
        figures["create_seconds"] = round(time.perf_counter() - started, 2)
        peer.stop()
        started = time.perf_counter()
        peer.start()
        figures["start_seconds"] = round(time.perf_counter() - started, 2)
        host, port = peer.bootstrap.rsplit(":", 1)
        took = []
        with socket.create_connection((host, int(port))) as s:
            for _ in range(ASKED_TIMES):
                asked = time.perf_counter()
                frame = ask(s, MetadataRequest(topics=None), METADATA_VERSION)
                took.append((time.perf_counter() - asked) * 1e3)
        told = decode_response(MetadataResponse, METADATA_VERSION, frame)
        if sum(len(t.partitions) for t in told.topics if t.name.startswith("many")) != partitions:
            raise RuntimeError("Metadata does not tell all partitions")
        figures["metadata_p50_ms"] = round(quantile(took, 0.5), 1)
        figures["metadata_max_ms"] = round(max(took), 1)
    return figures
