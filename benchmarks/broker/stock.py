"""Produce, fetch and the way from end to end, through a stock client (librdkafka)."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.broker.peers import Peer, measured, quantile
from benchmarks.common import KIB, MIB

SECONDS_MAX = 600.0
BATCHES_KIB = (1, 16, 1024)
MIB_BY_BATCH = {1: 32, 16: 256, 1024: 512}
VALUE_BYTES = 1000
RECORD_OVERHEAD_BYTES = 24  # a batch of 1 KiB shall hold one record
RATE_A_SECOND = 1000
END_TO_END_SECONDS = 20
WARM_UP_SECONDS = 3


def throughput(peers: dict[str, Peer], partitions: int) -> list[dict[str, Any]]:
    """A row for each size of batch: every record produced, then all of them fetched."""
    rows = []
    for batch_kib in BATCHES_KIB:
        count = MIB_BY_BATCH[batch_kib] * MIB // VALUE_BYTES
        row: dict[str, Any] = {"batch_kib": batch_kib, "partitions": partitions}
        for name, peer in peers.items():
            topic = f"stock-{batch_kib}-{partitions}"
            create(peer.bootstrap, topic, partitions)
            produce(peer.bootstrap, topic, partitions, count // 10, batch_kib)
            row[name] = {}
            with measured(peer.pid) as row[name]["produce"]:
                produce(peer.bootstrap, topic, partitions, count, batch_kib)
                row[name]["produce"]["bytes"] = count * VALUE_BYTES
            with measured(peer.pid) as row[name]["fetch"]:
                fetch(peer.bootstrap, topic, partitions, count, batch_kib)
                row[name]["fetch"]["bytes"] = count * VALUE_BYTES
            delete(peer.bootstrap, topic)
        rows.append(row)
    return rows


def create(bootstrap: str, topic: str, partitions: int) -> None:
    """A topic, there when this returns."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    wait_until_led(bootstrap, topic, partitions)


def wait_until_led(bootstrap: str, topic: str, partitions: int) -> None:
    """Until it takes records."""
    while not _is_led(bootstrap, topic, partitions):
        time.sleep(0.05)


def _is_led(bootstrap: str, topic: str, partitions: int) -> bool:
    """Whether every partition answers; Kafka tells of a topic before it does."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "benchmark"})
    try:
        for p in range(partitions):
            consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)
    except KafkaException:
        return False
    finally:
        consumer.close()
    return True


def delete(bootstrap: str, topic: str) -> None:
    """Nobody reads it any more; its pages in memory are not to be anybody's load."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(30)


def produce(
    bootstrap: str, topic: str, partitions: int, count: int, batch_kib: int, **more: object
) -> None:
    """Idempotent, acks=all, unless `more` says otherwise; all is acknowledged at the end."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5 if batch_kib > 1 else 0,
            "batch.size": batch_kib * KIB,
            "batch.num.messages": max(1, batch_kib * KIB // (VALUE_BYTES + RECORD_OVERHEAD_BYTES)),
            "queue.buffering.max.messages": 100_000,
            **more,
        }
    )
    value = os.urandom(VALUE_BYTES)
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    for n in range(count):
        while True:
            try:
                producer.produce(topic, value, partition=n % partitions, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(SECONDS_MAX) or failed:
        raise RuntimeError(f"{topic}: not every record was acknowledged {failed[:1]}")


def fetch(bootstrap: str, topic: str, partitions: int, count: int, batch_kib: int) -> None:
    """Read as many records from the beginning, a partition's answer as large as a batch or so."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "benchmark",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": max(batch_kib * KIB, 16 * KIB),
        }
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    got = 0
    while got < count:
        messages = consumer.consume(min(10_000, count - got), SECONDS_MAX)
        if not messages or any(m.error() for m in messages):
            raise RuntimeError(f"{topic}: only {got} of {count} records came")
        got += len(messages)
    consumer.close()


def end_to_end(peer: Peer) -> dict[str, float]:
    """Milliseconds from `produce` to the consumer's hands, at 1,000 records a second."""
    topic = "end-to-end"
    create(peer.bootstrap, topic, 1)
    total = RATE_A_SECOND * END_TO_END_SECONDS
    took: list[float] = []
    ready = threading.Event()
    reading = threading.Thread(target=_read_all, args=(peer, topic, total, took, ready))
    reading.start()
    ready.wait(30)
    producer = Producer({"bootstrap.servers": peer.bootstrap, "linger.ms": 0, "acks": "all"})
    padding = bytes(100 - 8)
    started = time.perf_counter()
    for n in range(total):
        ahead = started + n / RATE_A_SECOND - time.perf_counter()
        if ahead > 0:
            producer.poll(ahead)
        producer.produce(topic, time.perf_counter_ns().to_bytes(8, "big") + padding)
    producer.flush(30)
    reading.join(30)
    delete(peer.bootstrap, topic)
    if len(took) != total:
        raise RuntimeError(f"{topic}: {len(took)} of {total} records came")
    measured = took[RATE_A_SECOND * WARM_UP_SECONDS :]
    return {f"p{q * 100:g}_ms": round(quantile(measured, q), 2) for q in (0.5, 0.99, 0.999)}


def _read_all(
    peer: Peer, topic: str, total: int, took: list[float], ready: threading.Event
) -> None:
    settings = {"bootstrap.servers": peer.bootstrap, "group.id": "benchmark"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "fetch.wait.max.ms": 500})
    consumer.assign([TopicPartition(topic, 0, 0)])
    consumer.poll(1)  # the connection is made
    ready.set()
    until = time.monotonic() + 3 * END_TO_END_SECONDS
    while len(took) < total and time.monotonic() < until:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            sent_ns = int.from_bytes(message.value()[:8], "big")
            took.append((time.perf_counter_ns() - sent_ns) / 1e6)
    consumer.close()
