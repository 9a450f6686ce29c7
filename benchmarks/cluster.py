"""Three brokers on this machine: how long a failover takes, and how fast a follower catches up.

    python -m benchmarks.cluster

- failover: a broker is killed while a producer with acks=all writes to a partition that it leads;
  the longest pause between two acknowledgements, less the session's time, is what elections and
  clients take;
- elections: a broker is killed that leads a third of a thousand partitions: from the end of its
  session (the first that another one leads) until all are led;
- catching up: a follower is away while records are written, and comes back: MB/s, and its CPU;
  first where there is no other partition, then beside a thousand, which each fetch looks at.
"""

from __future__ import annotations

import tempfile
import threading
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.broker.peers import cpu_seconds
from benchmarks.common import MIB, save
from lapse.testing.broker_process import BrokerProcess
from lapse.testing.zookeeper_process import ZooKeeperProcess

SESSION_MS = 6000
PARTITIONS = 1000
CATCH_UP_BYTES = 512 * MIB
VALUE = b"v" * 10_000
SECONDS_MAX = 120.0


class Brokers:
    """The three processes."""

    def __init__(self, path: Path, connect: str, stack: ExitStack) -> None:
        self.processes = {
            n: stack.enter_context(
                BrokerProcess(
                    path / str(n),
                    {
                        "zookeeper.connect": connect,
                        "node.id": str(n),
                        "zookeeper.session.timeout.ms": str(SESSION_MS),
                    },
                )
            )
            for n in (1, 2, 3)
        }
        self.bootstrap = ",".join(one.bootstrap for one in self.processes.values())
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        self.until(lambda: len(self.admin.list_topics(timeout=30).brokers) == 3)

    def until(self, done: Any) -> float:
        """Seconds until it is so."""
        began = time.perf_counter()
        while not done():
            if time.perf_counter() > began + SECONDS_MAX:
                raise RuntimeError("it takes too long")
            time.sleep(0.02)
        return time.perf_counter() - began

    def create(self, name: str, partitions: int) -> None:
        self.admin.create_topics([NewTopic(name, partitions, 3)])[name].result(SECONDS_MAX)
        self.until(lambda: set(self.leaders(name)) >= {1, 2, 3} or partitions == 1)

    def leaders(self, name: str) -> list[int]:
        found = self.admin.list_topics(name, timeout=30).topics[name].partitions
        return [one.leader for one in found.values()]

    def in_sync(self, name: str) -> bool:
        found = self.admin.list_topics(name, timeout=30).topics[name].partitions
        return all(len(one.isrs) == 3 for one in found.values())


def failover(brokers: Brokers) -> dict[str, float]:
    """The longest pause between two acknowledgements."""
    brokers.create("one", 1)
    acknowledged: list[float] = []
    producer = Producer(
        {"bootstrap.servers": brokers.bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0,
         "topic.metadata.refresh.interval.ms": 200, "retry.backoff.ms": 50}
    )  # fmt: skip
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            producer.produce("one", b"x", on_delivery=lambda *_: acknowledged.append(time.time()))
            producer.poll(0.02)
        producer.flush(60)

    thread = threading.Thread(target=write)
    thread.start()
    brokers.until(lambda: len(acknowledged) > 50)
    [victim] = brokers.leaders("one")
    brokers.processes[victim].kill()
    before = len(acknowledged)
    brokers.until(lambda: len(acknowledged) > before + 50)
    over.set()
    thread.join()
    pause = max(b - a for a, b in pairwise(acknowledged))
    brokers.processes[victim].start()
    brokers.until(lambda: brokers.in_sync("one"))
    return {
        "pause_seconds": round(pause, 2),
        "beyond_session_seconds": round(pause - SESSION_MS / 1000, 2),
    }


def elections(brokers: Brokers) -> dict[str, float]:
    """From the first other leader to the last."""
    brokers.create("many", PARTITIONS)
    victim = 2
    led = brokers.leaders("many").count(victim)
    brokers.processes[victim].kill()
    brokers.until(lambda: brokers.leaders("many").count(victim) < led)
    seconds = brokers.until(lambda: not {victim, -1} & set(brokers.leaders("many")))
    brokers.processes[victim].start()
    back = brokers.until(lambda: brokers.in_sync("many"))
    again = round(back, 2)
    return {"partitions": led, "seconds": round(seconds, 2), "in_sync_again_seconds": again}


def catching_up(brokers: Brokers, topic: str) -> dict[str, float]:
    """By bytes of the follower's log."""
    brokers.create(topic, 1)
    [leader] = brokers.leaders(topic)
    away = next(n for n in brokers.processes if n != leader)
    brokers.processes[away].kill()
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "acks": "1", "log_level": 0,
                         "linger.ms": 20, "batch.size": 900_000})  # fmt: skip
    for _ in range(CATCH_UP_BYTES // len(VALUE)):
        while True:
            try:
                producer.produce(topic, VALUE)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush(SECONDS_MAX)
    one = brokers.processes[away].start()
    folder = one.data / f"{topic}-0"
    began, cpu = time.perf_counter(), cpu_seconds(one.pid)
    at_start = _size(folder)
    brokers.until(lambda: _size(folder) >= CATCH_UP_BYTES)
    seconds, cpu = time.perf_counter() - began, cpu_seconds(one.pid) - cpu
    size = (_size(folder) - at_start) / 1e6
    return {
        "mb": round(size, 1),
        "mb_per_second": round(size / seconds, 1),
        "mb_per_follower_cpu_second": round(size / max(cpu, 0.01), 1),
    }


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))


def main() -> None:
    """Measure, and keep the result."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        path = Path(directory)
        zookeeper = stack.enter_context(ZooKeeperProcess(path / "zookeeper"))
        brokers = Brokers(path, f"{zookeeper.connect}/lapse", stack)
        save(
            "cluster",
            {
                "session_ms": SESSION_MS,
                "catching_up": catching_up(brokers, "bytes"),
                "failover": failover(brokers),
                "elections": elections(brokers),
                "catching_up_beside_many": catching_up(brokers, "more"),
            },
        )


if __name__ == "__main__":
    main()
