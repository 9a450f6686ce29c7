"""Produce and fetch: our broker beside real Kafka, the same stock client, the same run.

    python -m benchmarks.broker [--mib 256] [--value-bytes 100 1000]

CPU seconds of the broker process come first, since the client is the same and takes most of the
machine; then MB/s of record values as the client saw them. Real Kafka comes from Maven; where that
cannot be had, our figures are recorded alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.common import save
from lapse.testing.broker_process import BrokerProcess
from tests.oracle.kafka import RealKafka

MIB = 1 << 20
SECONDS_MAX = 600.0
WARM_UP_MIB = 16
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure both brokers for each value size, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=256, help="MiB of values (default %(default)s)")
    parser.add_argument("--value-bytes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--codec", default="none", help="client compression (default %(default)s)")
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        with BrokerProcess(Path(directory) / "lapse") as broker:
            figures["lapse"] = measure(broker.bootstrap, broker.pid, args)
        if shutil.which("java") and shutil.which("mvn"):
            with RealKafka(Path(directory) / "kafka") as kafka:
                figures["kafka"] = measure(kafka.bootstrap, kafka.pid, args)
    save("broker", {"mib": args.mib, "codec": args.codec, "figures": figures})


def measure(bootstrap: str, pid: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each value size: produce, then fetch of the same records."""
    produce(bootstrap, "warm-up", WARM_UP_MIB * MIB // 1000, 1000, args.codec)
    fetch(bootstrap, "warm-up", WARM_UP_MIB * MIB // 1000)
    rows = []
    for value_bytes in args.value_bytes:
        count = args.mib * MIB // value_bytes
        topic = f"v{value_bytes}"
        row: dict[str, Any] = {"value_bytes": value_bytes, "records": count}
        with measured(pid, count * value_bytes) as row["produce"]:
            produce(bootstrap, topic, count, value_bytes, args.codec)
        with measured(pid, count * value_bytes) as row["fetch"]:
            fetch(bootstrap, topic, count)
        row["rss_mib"] = rss_mib(pid)
        rows.append(row)
    return rows


def produce(bootstrap: str, topic: str, count: int, value_bytes: int, codec: str) -> None:
    """Idempotent, acks=all, one partition; every record is acknowledged at the end."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": codec,
            "linger.ms": 5,
            "batch.size": 256 << 10,
            "queue.buffering.max.messages": 200_000,
        }
    )
    value = os.urandom(value_bytes)
    for n in range(count):
        while True:
            try:
                producer.produce(topic, value=value, key=b"%d" % n, partition=0)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(SECONDS_MAX):
        raise RuntimeError(f"{topic}: not every record was acknowledged")


def fetch(bootstrap: str, topic: str, count: int) -> None:
    """Read as many records from the beginning."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "benchmark",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": MIB,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    got = 0
    while got < count:
        messages = consumer.consume(min(10_000, count - got), SECONDS_MAX)
        if not messages or any(m.error() for m in messages):
            raise RuntimeError(f"{topic}: only {got} of {count} records came")
        got += len(messages)
    consumer.close()


@contextmanager
def measured(pid: int, size: int) -> Iterator[dict[str, float]]:
    """Broker CPU and wall time of what is done inside, filled in at its end."""
    figures: dict[str, float] = {}
    cpu, wall = cpu_seconds(pid), time.perf_counter()
    yield figures
    seconds = time.perf_counter() - wall
    figures["broker_cpu_seconds"] = round(cpu_seconds(pid) - cpu, 2)
    figures["broker_cpu_seconds_per_gib"] = round((cpu_seconds(pid) - cpu) * (1 << 30) / size, 2)
    figures["wall_seconds"] = round(seconds, 2)
    figures["mb_per_second"] = round(size / seconds / 1e6, 1)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / MIB, 1)


if __name__ == "__main__":
    main()
