"""Any of three brokers is killed, again and again, under a load of stock clients that is checked.

Nothing that was acknowledged is lost, doubled or out of order; transactions are whole or absent;
at the end all replicas hold the same bytes.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Producer

from lapse.testing.zookeeper_process import ZooKeeperProcess
from tests.support.broker.cluster import WAIT_SECONDS, Brokers, consumed, running, same_bytes

PARTITIONS = 3
VALUES_AT_ONCE = 20


@dataclass
class Load:
    """One producer, until it is told to stop.

    Attributes:
        acknowledged: by partition, in the order in which it was sent.
        aborted: what must be nowhere.
        unknown: what may be there or not: the producer was told neither.
    """

    first: int
    acknowledged: dict[int, list[int]] = field(
        default_factory=lambda: {n: [] for n in range(PARTITIONS)}
    )
    aborted: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    failed: list[str] = field(default_factory=list)

    def sent(self, n: int) -> Callable[[KafkaError | None, object], None]:
        def told(error: KafkaError | None, _: object) -> None:
            if error is None:
                self.acknowledged[n % PARTITIONS].append(n)
            else:
                self.unknown.add(n)

        return told


def idempotent(brokers: Brokers, topic: str, load: Load, over: threading.Event) -> None:
    producer = Producer(
        {"bootstrap.servers": brokers.bootstrap, "enable.idempotence": True, "log_level": 0,
         "message.timeout.ms": 120_000, "topic.metadata.refresh.interval.ms": 1000,
         "linger.ms": 5}
    )  # fmt: skip
    n = load.first
    while not over.is_set():
        for _ in range(VALUES_AT_ONCE):
            producer.produce(topic, b"%d" % n, partition=n % PARTITIONS, on_delivery=load.sent(n))
            n += 1
        producer.flush(WAIT_SECONDS)
    load.failed += [] if producer.flush(WAIT_SECONDS) == 0 else ["not flushed"]


# Of aborts, the client's own doing: test_killed_producers shows each of them.
EXPLAINED = frozenset({KafkaError.INVALID_TXN_STATE, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER})


def transactional(brokers: Brokers, topic: str, load: Load, over: threading.Event) -> None:
    producer, n = begun(brokers), load.first
    while not over.is_set():
        commit = n // VALUES_AT_ONCE % 4 != 3
        values = range(n, n + VALUES_AT_ONCE)
        n += VALUES_AT_ONCE
        try:
            producer.begin_transaction()
            for value in values:
                producer.produce(topic, b"%d" % value, partition=value % PARTITIONS)
            if commit:
                again(lambda producer=producer: producer.commit_transaction(WAIT_SECONDS))
                for value in values:
                    load.acknowledged[value % PARTITIONS].append(value)
                continue
        except KafkaException as e:
            if not e.args[0].txn_requires_abort():
                load.failed.append(str(e))
                return
        load.aborted |= set(values)
        try:
            again(lambda producer=producer: producer.abort_transaction(WAIT_SECONDS))
        except KafkaException as e:
            if e.args[0].code() not in EXPLAINED:
                load.failed.append(str(e))
                return
            producer = begun(brokers)  # the client is of no use any more; this ends its transaction


def begun(brokers: Brokers) -> Producer:
    producer = Producer(
        {"bootstrap.servers": brokers.bootstrap, "transactional.id": "killed", "log_level": 0,
         "topic.metadata.refresh.interval.ms": 1000, "transaction.timeout.ms": 60_000}
    )  # fmt: skip
    again(lambda: producer.init_transactions(WAIT_SECONDS))
    return producer


def again(work: Callable[[], object]) -> None:
    """Something of a transaction is asked for again while that is said to help."""
    for _ in range(20):
        try:
            work()
        except KafkaException as e:
            if not e.args[0].retriable():
                raise
        else:
            return
    work()


def test_nothing_is_lost_or_doubled(
    tmp_path: Path, shared: ZooKeeperProcess, seed: int, scaled: Callable[[int], int]
) -> None:
    draw = random.Random(seed)
    with running(tmp_path, shared) as brokers:
        brokers.create("plain", PARTITIONS, min_insync_replicas="2")
        brokers.create("tx", PARTITIONS, min_insync_replicas="2")
        loads = {"plain": Load(0), "tx": Load(0)}
        over = threading.Event()
        threads = [
            threading.Thread(target=idempotent, args=(brokers, "plain", loads["plain"], over)),
            threading.Thread(target=transactional, args=(brokers, "tx", loads["tx"], over)),
        ]
        for thread in threads:
            thread.start()
        story = []
        for _ in range(scaled(80)):
            victim = draw.choice(list(brokers.processes))
            before = sum(map(len, loads["plain"].acknowledged.values()))
            story.append(victim)
            if draw.random() < 0.3:
                brokers.processes[victim].stop()
            else:
                brokers.processes[victim].kill()
            brokers.until(
                lambda before=before: (
                    sum(map(len, loads["plain"].acknowledged.values())) > before + 100
                ),
                f"acknowledgements while broker {victim} is away",
            )
            brokers.processes[victim].start()
            brokers.until(lambda: all(map(brokers.in_sync, loads)), "all in sync again")
        over.set()
        for thread in threads:
            thread.join(3 * WAIT_SECONDS)
            assert not thread.is_alive()
        for topic in ("plain", "tx", "__transaction_state"):
            brokers.until(lambda topic=topic: brokers.in_sync(topic), f"{topic} in sync")
        for topic, load in loads.items():
            assert not load.failed, (load.failed, story, brokers.logs())
            judge(load, consumed(brokers, topic, PARTITIONS), f"{topic}, killed {story}")
            for n in range(PARTITIONS):
                same_bytes(brokers, f"{topic}-{n}")


def judge(load: Load, found: list[int], what: str) -> None:
    counts = Counter(found)
    assert not [n for n, times in counts.items() if times > 1], f"doubled: {what}"
    lost = [n for part in load.acknowledged.values() for n in part if n not in counts]
    assert not lost, f"lost: {what}: {lost[:20]}"
    assert not load.aborted & counts.keys(), f"aborted and there: {what}"
    known = {n for part in load.acknowledged.values() for n in part} | load.unknown
    assert counts.keys() <= known, f"never sent: {what}"
    for n in range(PARTITIONS):
        order = [value for value in found if value % PARTITIONS == n]
        assert order == sorted(order), f"out of order: {what}"
    assert sum(map(len, load.acknowledged.values())) > 100, what
