"""Produce and fetch by frames that are made beforehand: many connections, one request each.

A stock client of its own for each of 200 connections would be measured itself, on two cores. Each
connection here sends a request, waits for its answer and sends the next: what an answer takes is
the latency. Both brokers get the same bytes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from benchmarks.broker.load import Bounds, Load, Request
from benchmarks.broker.peers import Peer, measured, quantile
from benchmarks.broker.stock import create, delete
from benchmarks.common import KIB, MIB
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.wire.envelope import encode_request
from lapse.wire.schema.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
)
from lapse.wire.schema.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

BATCHES_KIB = (1, 16, 1000)  # the last one just below max.message.bytes
CONNECTIONS = (1, 200)
VALUE_BYTES = 1000 - 60  # with what a batch and a record need, 1 KiB holds one
PRODUCE_VERSION = 7
FETCH_VERSION = 11
SECONDS_MAX = 4.0
BYTES_MAX = 512 * MIB
_MARK = 0x1122334455667788


def latencies(peers: dict[str, Peer], partitions: int) -> list[dict[str, Any]]:
    """A row for each size of batch and number of connections."""
    rows = []
    for batch_kib in BATCHES_KIB:
        for connections in CONNECTIONS:
            row: dict[str, Any] = {
                "batch_kib": batch_kib, "partitions": partitions, "connections": connections,
            }  # fmt: skip
            for name, peer in peers.items():
                row[name] = _one(peer, batch_kib, partitions, connections)
            rows.append(row)
    return rows


def _one(peer: Peer, batch_kib: int, partitions: int, connections: int) -> dict[str, Any]:
    topic = f"frames-{batch_kib}-{partitions}-{connections}"
    create(peer.bootstrap, topic, partitions)
    count = max(1, batch_kib * KIB // KIB)
    now_ms = time.time_ns() // 1_000_000
    value = os.urandom(VALUE_BYTES)
    batch = build_batch([NewRecord(None, value, now_ms) for _ in range(count)], BatchSpec())
    produce = _produce_requests(topic, partitions, batch)
    _run(peer, connections, produce, seconds_max=0.5)
    before = _end_offsets(peer.bootstrap, topic, partitions)
    figures: dict[str, Any] = {}
    with measured(peer.pid) as figures["produce"]:
        done = _run(peer, connections, produce)
        figures["produce"]["bytes"] = len(done) * len(batch)
    _tell(figures["produce"], done)
    after = _end_offsets(peer.bootstrap, topic, partitions)
    if sum(after) - sum(before) != len(done) * count:
        raise RuntimeError(f"{topic}: {len(done)} batches answered, but the log ends at {after}")
    fetch = _fetch_requests(topic, [end // count for end in after], count, len(batch))
    _run(peer, connections, fetch, seconds_max=0.5)
    with measured(peer.pid) as figures["fetch"]:
        done = _run(peer, connections, fetch, answer_bytes=len(batch))
        figures["fetch"]["bytes"] = len(done) * len(batch)
    _tell(figures["fetch"], done)
    delete(peer.bootstrap, topic)
    return figures


def _run(
    peer: Peer,
    connections: int,
    request: Request,
    *,
    seconds_max: float = SECONDS_MAX,
    answer_bytes: int = 0,
) -> list[float]:
    load = Load(request, Bounds(seconds_max, BYTES_MAX, answer_bytes))
    return load.run(peer.bootstrap, connections)


def _tell(figures: dict[str, Any], took: list[float]) -> None:
    figures["requests"] = len(took)
    figures["p50_ms"] = round(quantile(took, 0.5) * 1e3, 3)
    figures["p99_ms"] = round(quantile(took, 0.99) * 1e3, 3)


def produce_frame(topic: str, partition: int, batch: bytes) -> list[bytes]:
    """The parts of a Produce of one batch, acks=all."""
    data = (PartitionProduceData(index=partition, records=batch),)
    message = ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=(TopicProduceData(name=topic, partition_data=data),)
    )
    parts = encode_request(message, version=PRODUCE_VERSION, correlation_id=7, client_id="b")
    return [bytes(part) for part in parts]


def _produce_requests(topic: str, partitions: int, batch: bytes) -> Request:
    requests = [produce_frame(topic, p, batch) for p in range(partitions)]
    shared = max(requests[0], key=len)  # one copy of the batch for all partitions
    requests = [[shared if part == shared else part for part in parts] for parts in requests]
    return lambda n: requests[n % partitions]


def _fetch_requests(topic: str, batches: list[int], count: int, size: int) -> Request:
    """One batch a request, from one place after the other, so that all are read again and again."""
    templates = []
    for p in range(len(batches)):
        partition = FetchPartition(partition=p, fetch_offset=_MARK, partition_max_bytes=size)
        message = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=size,
            topics=(FetchTopic(topic=topic, partitions=(partition,)),),
        )
        parts = encode_request(message, version=FETCH_VERSION, correlation_id=7, client_id="b")
        templates.append(b"".join(map(bytes, parts)).split(_MARK.to_bytes(8, "big")))

    def request(n: int) -> Sequence[bytes]:
        p, turn = n % len(batches), n // len(batches)
        head, tail = templates[p]
        return [head + (turn % batches[p] * count).to_bytes(8, "big") + tail]

    return request


def _end_offsets(bootstrap: str, topic: str, partitions: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "benchmark"})
    ends = [
        consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1]
        for p in range(partitions)
    ]
    consumer.close()
    return ends
