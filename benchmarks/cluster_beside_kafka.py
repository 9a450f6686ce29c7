"""Three brokers beside three of real Kafka, acks=all on three replicas: throughput, CPU and p99.

    python -m benchmarks.cluster_beside_kafka

The same stock client (librdkafka) writes to one cluster and then to the other, five times in turn;
medians. All of it shares this machine's cores, so CPU decides: seconds a gigabyte of values, of the
three brokers and of who coordinates them (ZooKeeper here; there one of the brokers is the
controller, too). An idempotent producer of that client uses up a core while it waits for answers,
so there are rows without idempotence, too. The latency is of records at a fixed rate.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.broker.peers import cpu_seconds, quantile
from benchmarks.broker.stock import VALUE_BYTES, produce
from benchmarks.common import MIB, save
from lapse.testing.broker_process import BrokerProcess
from lapse.testing.zookeeper_process import ZooKeeperProcess
from tests.oracle.kafka import RealKafka

RUNS = 5
PARTITIONS = 3
REPLICAS = 3
# MiB of values, by batch (KiB) and idempotence.
MIB_OF = {(16, False): 16, (64, False): 64, (256, False): 128, (64, True): 64, (256, True): 128}
RATE_A_SECOND, LATENCY_SECONDS = 200, 6
SECONDS_MAX = 120.0


@dataclass(frozen=True, slots=True)
class Three:
    """A cluster: where clients reach it, and its processes."""

    bootstrap: str
    pids: Sequence[int]

    def cpu(self) -> float:
        return sum(map(cpu_seconds, self.pids))

    def create(self, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(topic, PARTITIONS, REPLICAS)])[topic].result(30)
        until = time.monotonic() + SECONDS_MAX
        while time.monotonic() < until:
            found = admin.list_topics(topic, timeout=30).topics[topic].partitions.values()
            if len(found) == PARTITIONS and all(len(p.isrs) == REPLICAS for p in found):
                return
            time.sleep(0.1)
        raise RuntimeError(f"{topic}: its replicas are not in sync")

    def delete(self, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.delete_topics([topic])[topic].result(30)


@contextmanager
def lapses(path: Path) -> Iterator[Three]:
    """Ours."""
    with ExitStack() as stack:
        zookeeper = stack.enter_context(ZooKeeperProcess(path / "zookeeper"))
        connect = {"zookeeper.connect": f"{zookeeper.connect}/lapse", "lapse.http.port": "-1"}
        brokers = [
            stack.enter_context(BrokerProcess(path / str(n), {**connect, "node.id": str(n)}))
            for n in (1, 2, 3)
        ]
        bootstrap = ",".join(one.bootstrap for one in brokers)
        yield Three(bootstrap, [*(one.pid for one in brokers), zookeeper.pid])


@contextmanager
def kafkas(path: Path) -> Iterator[Three]:
    """Real ones, of which the first is the controller."""
    with ExitStack() as stack:
        first = stack.enter_context(RealKafka(path / "1"))
        others = [
            stack.enter_context(RealKafka(path / str(n), joins=first, node_id=n)) for n in (2, 3)
        ]
        brokers = [first, *others]
        yield Three(",".join(one.bootstrap for one in brokers), [one.pid for one in brokers])


def throughput(
    clusters: Mapping[str, Three], batch_kib: int, *, idempotent: bool
) -> dict[str, Any]:
    """Medians of runs in turn."""
    count = MIB_OF[batch_kib, idempotent] * MIB // VALUE_BYTES
    size, topic = count * VALUE_BYTES, f"produced-{batch_kib}-{idempotent}".lower()
    more: dict[str, object] = {"enable.idempotence": idempotent}
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in clusters}
    for one in clusters.values():
        one.create(topic)
        produce(one.bootstrap, topic, PARTITIONS, count, batch_kib, **more)  # warm
    for _ in range(RUNS):
        for name, one in clusters.items():
            cpu, wall = one.cpu(), time.perf_counter()
            produce(one.bootstrap, topic, PARTITIONS, count, batch_kib, **more)
            seconds = time.perf_counter() - wall
            runs[name].append((size / seconds / 1e6, (one.cpu() - cpu) * 1e9 / size))
    for one in clusters.values():
        one.delete(topic)
    row: dict[str, Any] = {
        "batch_kib": batch_kib, "partitions": PARTITIONS, "idempotent": idempotent,
    }  # fmt: skip
    for name, found in runs.items():
        row[name] = {
            "mb_per_second": round(median(mb for mb, _ in found), 1),
            "cpu_seconds_per_gb": round(median(cpu for _, cpu in found), 2),
            "cpu_seconds_per_gb_of_runs": [round(cpu, 2) for _, cpu in found],
        }
    return row


def latency(clusters: Mapping[str, Three]) -> dict[str, Any]:
    """Milliseconds until a record is acknowledged by all replicas; medians of runs in turn."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in clusters}
    for one in clusters.values():
        one.create("latency")
        _latencies(one)  # warm
    for _ in range(RUNS):
        for name, one in clusters.items():
            took = _latencies(one)
            found[name].append((quantile(took, 0.5), quantile(took, 0.99)))
    return {
        "records_a_second": RATE_A_SECOND,
        **{
            name: {
                "p50_ms": round(median(p50 for p50, _ in runs), 2),
                "p99_ms": round(median(p99 for _, p99 in runs), 2),
            }
            for name, runs in found.items()
        },
    }


def _latencies(cluster: Three) -> list[float]:
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0}
    )  # fmt: skip
    took: list[float] = []
    over = threading.Event()

    def polls() -> None:
        while not over.is_set():
            producer.poll(0.01)

    thread = threading.Thread(target=polls)
    thread.start()
    began = time.perf_counter()
    for n in range(RATE_A_SECOND * LATENCY_SECONDS):
        due = began + n / RATE_A_SECOND
        time.sleep(max(due - time.perf_counter(), 0))
        sent = time.perf_counter()
        producer.produce(
            "latency", b"v" * VALUE_BYTES, partition=n % PARTITIONS,
            on_delivery=lambda _e, _m, sent=sent: took.append(time.perf_counter() - sent),
        )  # fmt: skip
    producer.flush(SECONDS_MAX)
    over.set()
    thread.join()
    return [1000 * seconds for seconds in took[RATE_A_SECOND:]]  # the first second warms up


def main() -> None:
    """Measure, and keep the result."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        clusters = {
            "lapse": stack.enter_context(lapses(Path(directory) / "lapse")),
            "kafka": stack.enter_context(kafkas(Path(directory) / "kafka")),
        }
        save(
            "cluster-beside-kafka",
            {
                "runs": RUNS,
                "latency": latency(clusters),
                "produce": [
                    throughput(clusters, batch_kib, idempotent=idempotent)
                    for batch_kib, idempotent in MIB_OF
                ],
            },
        )


if __name__ == "__main__":
    main()
