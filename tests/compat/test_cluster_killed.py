"""Any of three brokers is killed, stopped, frozen or cut off, under a load that is checked.

The load is that of stock clients. One that was frozen for longer than its session wakes up, and
believes for a moment that it leads; one that hears neither brokers nor ZooKeeper believes it for
longer, and clients reach it all the while.

Nothing that was acknowledged is lost, doubled or out of order; transactions are whole or absent; at
the end all replicas hold the same bytes, of a topic, too, whose replicas move meanwhile. Beside
each broker its lifecycle service cleans: what was deleted goes from all replicas and does not come
back, what was not deleted stays.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Producer

from lapse.base.errors import LapseError
from lapse.testing.broker_process import BrokerProcess
from lapse.testing.zookeeper_process import ZooKeeperProcess
from tests.support.broker.cleaned import AT_ONCE, BROKER, cleaning, records
from tests.support.broker.cluster import (
    WAIT_SECONDS,
    Brokers,
    consumed,
    keyed,
    reassign,
    running,
    same_bytes,
)
from tests.support.broker.network import Network
from tests.support.metadata.line import Line

PARTITIONS = 3
VALUES_AT_ONCE = 20
PATIENCE = {"socket.timeout.ms": 5000}  # with one that is frozen


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
         **PATIENCE, "message.timeout.ms": 120_000, "topic.metadata.refresh.interval.ms": 1000,
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


@dataclass
class Deletions:
    """What became of the keys of a compacted topic, each written once and then deleted or not.

    Attributes:
        deleted: whose tombstone was acknowledged.
        kept: whose value was acknowledged, and who has no tombstone.
    """

    deleted: set[bytes] = field(default_factory=set)
    kept: set[bytes] = field(default_factory=set)


def deleting(brokers: Brokers, topic: str, keys: Deletions, over: threading.Event) -> None:
    """Write keys, and delete all but each fifth; who is not acknowledged is in neither set."""
    producer = Producer(
        {"bootstrap.servers": brokers.bootstrap, "enable.idempotence": True, "log_level": 0,
         **PATIENCE, "message.timeout.ms": 120_000, "topic.metadata.refresh.interval.ms": 1000}
    )  # fmt: skip

    def acknowledged(asked: dict[bytes, bytes | None]) -> set[bytes]:
        done: set[bytes] = set()

        def told(key: bytes) -> Callable[[KafkaError | None, object], None]:
            return lambda error, _: done.add(key) if error is None else None

        for key, value in asked.items():
            producer.produce(topic, value, key, on_delivery=told(key))
        producer.flush(2 * WAIT_SECONDS)
        return done

    n = 0
    while not over.is_set():
        some = [b"%d" % key for key in range(n, n + VALUES_AT_ONCE)]
        n += VALUES_AT_ONCE
        written = acknowledged(dict.fromkeys(some, b"secret"))
        keys.kept |= written & set(some[::5])
        keys.deleted |= acknowledged({key: None for key in some if key not in some[::5]})


def begun(brokers: Brokers) -> Producer:
    producer = Producer(
        {"bootstrap.servers": brokers.bootstrap, "transactional.id": "killed", "log_level": 0,
         **PATIENCE,
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
    with ExitStack() as stack:
        network = stack.enter_context(Network())
        lines = {n: Line(shared.connect) for n in network.brokers}
        for line in lines.values():
            stack.callback(line.close)
        own = {n: network.settings(n) for n in network.brokers}
        brokers = stack.enter_context(running(tmp_path, shared, BROKER, lines, own))
        stack.enter_context(cleaning(brokers))
        brokers.create("deleted", **AT_ONCE, min_insync_replicas="2")
        brokers.create("plain", PARTITIONS, min_insync_replicas="2")
        brokers.create("tx", PARTITIONS, min_insync_replicas="2")
        brokers.create("moved", PARTITIONS, replicas=2)
        loads = {"plain": Load(0), "tx": Load(0), "moved": Load(0)}
        keys, over = Deletions(), threading.Event()
        threads = [
            threading.Thread(target=idempotent, args=(brokers, "plain", loads["plain"], over)),
            threading.Thread(target=idempotent, args=(brokers, "moved", loads["moved"], over)),
            threading.Thread(target=transactional, args=(brokers, "tx", loads["tx"], over)),
            threading.Thread(target=deleting, args=(brokers, "deleted", keys, over)),
        ]
        for thread in threads:
            thread.start()
        story: list[tuple[str, int]] = []
        for _ in range(scaled(80)):
            victim = draw.choice(list(brokers.processes))
            before = sum(map(len, loads["plain"].acknowledged.values()))
            how = draw.choice((hurt, hurt, stopped, frozen, cut_off))
            story.append((how.__name__, victim))
            if how is cut_off:
                back = cut_off(network, lines[victim], victim, is_lost=draw.random() < 0.5)
            else:
                back = how(brokers.processes[victim])
            other, target = others_of(victim, draw), draw.sample([1, 2, 3], 2)
            with suppress(LapseError):  # nobody may be the controller just now
                reassign(brokers, "moved", draw.randrange(PARTITIONS), *target, by=other)
            brokers.until(
                lambda before=before: (
                    sum(map(len, loads["plain"].acknowledged.values())) > before + 100
                ),
                f"acknowledgements while broker {victim} is away",
            )
            back()
            brokers.until(lambda: all(map(brokers.in_sync, loads)), "all in sync again")
        over.set()
        for thread in threads:
            thread.join(3 * WAIT_SECONDS)
            assert not thread.is_alive()
        for topic in (*loads, "deleted", "__transaction_state"):
            brokers.until(lambda topic=topic: brokers.in_sync(topic), f"{topic} in sync")
        for topic, load in loads.items():
            assert not load.failed, (load.failed, story, brokers.logs())
            judge(load, consumed(brokers, topic, PARTITIONS), f"{topic}, killed {story}")
            for n in range(PARTITIONS):
                same_bytes(brokers, f"{topic}-{n}")
        judge_deletions(brokers, "deleted", keys, f"killed {story}")


# --- what is done to a broker: returns how it is back ---------------------------------------------


def others_of(victim: int, draw: random.Random) -> int:
    return draw.choice([n for n in (1, 2, 3) if n != victim])


def hurt(broker: BrokerProcess) -> Callable[[], object]:
    broker.kill()
    return broker.start


def stopped(broker: BrokerProcess) -> Callable[[], object]:
    broker.stop()
    return broker.start


def frozen(broker: BrokerProcess) -> Callable[[], object]:
    os.kill(broker.pid, signal.SIGSTOP)
    return lambda: os.kill(broker.pid, signal.SIGCONT)


def cut_off(network: Network, line: Line, n: int, *, is_lost: bool) -> Callable[[], object]:
    network.isolate(n)
    line.hold()

    def back() -> None:
        network.let_go(is_lost=is_lost)
        line.cut() if is_lost else line.let_go()

    return back


# --- what must be true ----------------------------------------------------------------------------


def judge_deletions(brokers: Brokers, topic: str, keys: Deletions, what: str) -> None:
    """Values of deleted keys go everywhere, though what is away holds tombstones back."""
    assert len(keys.deleted) > 100, what

    def held(n: int) -> dict[bytes, bytes | None]:
        return dict(records(brokers.processes[n].data, f"{topic}-0"))

    for n in brokers.processes:
        assert not [k for k, v in held(n).items() if k in keys.deleted and v], f"back: {what}"
        assert not keys.kept - held(n).keys(), f"lost: {what}"

    def is_gone(n: int) -> bool:
        keyed(brokers, topic, [(b"more", b"")])  # a segment is rolled, and a round due
        found = records(brokers.processes[n].data, f"{topic}-0")
        return not [k for k, _ in found if k in keys.deleted]

    for n in brokers.processes:
        brokers.until(lambda n=n: is_gone(n), f"values and tombstones are gone from {n}: {what}")
        assert not keys.kept - held(n).keys(), f"lost: {what}"


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
