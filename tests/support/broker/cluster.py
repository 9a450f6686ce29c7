"""Three brokers and a ZooKeeper, and what stock clients see of them."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import TopicMetadata
from confluent_kafka.cimpl import NewTopic

from lapse.base.clock import SystemClock
from lapse.client.connection import BrokerConnection
from lapse.log.checkpoints import read_topic_id
from lapse.testing.broker_process import BrokerProcess
from lapse.testing.zookeeper_process import ZooKeeperProcess
from lapse.wire.schema.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from lapse.wire.schema.metadata import MetadataRequest, MetadataResponse
from tests.support.metadata.line import Line

SESSION_MS = 3000
WAIT_SECONDS = 60
POLL_SECONDS = 0.05  # a question makes a client, with its threads and connections
SETTINGS = {
    "auto.create.topics.enable": "false",
    "zookeeper.session.timeout.ms": str(SESSION_MS),
    "replica.lag.time.max.ms": "5000",
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
    "group.initial.rebalance.delay.ms": "0",
}
# What a stock admin client says of a broker that has not heard of who leads, or controls, by now.
UNHEARD = ("NOT_CONTROLLER", "NOT_LEADER_FOR_PARTITION", "No leaders found")
_numbers = count()

Settings = Mapping[str, str]


class Brokers:
    """The processes, by their ids, and what clients see of them."""

    def __init__(
        self,
        path: Path,
        connects: Mapping[int, str],
        stack: ExitStack,
        more: Mapping[int, Settings],
        environments: Mapping[int, Mapping[str, str]],
    ) -> None:
        self.processes = {
            n: BrokerProcess(
                path / f"broker-{n}",
                {"zookeeper.connect": connect, "node.id": str(n), **SETTINGS, **more[n]},
                environments.get(n),
            )
            for n, connect in connects.items()
        }
        for one in self.processes.values():
            stack.enter_context(one)
        self._producers: dict[str, Producer] = {}

    def producer(self, **more: object) -> Producer:
        """An idempotent one with these settings, whose start takes half a second."""
        key = repr(sorted(more.items()))
        if key not in self._producers:
            self._producers[key] = Producer(
                {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "log_level": 0,
                 "topic.metadata.refresh.interval.ms": 500, **more}
            )  # fmt: skip
        return self._producers[key]

    def give_up_producers(self) -> None:
        """Others are made the next time: what these have sent is not all there any more."""
        self._producers.clear()

    @property
    def bootstrap(self) -> str:
        return ",".join(one.bootstrap for one in self.processes.values())

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def topic(self, name: str) -> TopicMetadata:
        return self.admin().list_topics(name, timeout=30).topics[name]

    def topic_id(self, name: str) -> uuid.UUID:
        """Kafka's id of it; this client cannot say it, the directory can."""
        folder = next(p.data / f"{name}-0" for p in self.processes.values()
                      if (p.data / f"{name}-0").exists())  # fmt: skip
        found = read_topic_id(folder)
        assert found is not None
        return found

    def leader(self, name: str, partition: int = 0) -> int:
        return int(self.topic(name).partitions[partition].leader)

    def create(self, name: str, partitions: int = 1, replicas: int = 3, **config: str) -> None:
        self._create(NewTopic(name, partitions, replicas, config=_settings(config)))

    def create_at(self, name: str, *brokers: int, **config: str) -> None:
        """With one partition, on these brokers; the first one leads it."""
        assignment = [list(brokers)]
        self._create(NewTopic(name, 1, replica_assignment=assignment, config=_settings(config)))

    def _create(self, new: NewTopic) -> None:
        name, admin = new.topic, self.admin()
        self.until_ok(lambda: admin.create_topics([new])[name].result(30))
        self.until(
            lambda: all(_has_leaders(seen, name) for seen in self.seen()),
            f"leaders of {name}, as each broker knows them,",
        )

    def seen(self) -> list[MetadataResponse]:
        """What each broker that runs knows; a stock client asks whichever it likes."""
        return [
            asyncio.run(_metadata(one.bootstrap)) for one in self.processes.values() if one.runs
        ]

    def until_ok(self, work: Callable[[], object]) -> None:
        """Kafka's admin client asks again: the controller, or who knows the leader by now.

        librdkafka's does not.
        """

        def done() -> bool:
            try:
                work()
            except Exception as e:
                if any(word in str(e) for word in UNHEARD):
                    return False
                raise
            return True

        self.until(done, "an answer of who knows")

    def until(self, found: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
        clock = SystemClock()
        deadline = clock.monotonic() + seconds
        while not found():
            assert clock.monotonic() < deadline, f"{what} did not come\n{self.logs()}"
            clock.sleep(POLL_SECONDS)

    def logs(self) -> str:
        return "\n".join(f"--- {n}\n{p.log()[-3000:]}" for n, p in self.processes.items())

    def in_sync(self, name: str) -> bool:
        found = self.topic(name).partitions.values()
        return all(len(p.isrs) == len(p.replicas) for p in found)


def _settings(words: Mapping[str, str]) -> dict[str, str]:
    return {key.replace("_", "."): value for key, value in words.items()}


def reassign(brokers: Brokers, topic: str, number: int, *target: int, by: int) -> int:
    """Ask broker `by` for other replicas of a partition; the error code."""
    return asyncio.run(_reassign(brokers.processes[by].bootstrap, topic, number, target))


async def _reassign(bootstrap: str, topic: str, number: int, target: tuple[int, ...]) -> int:
    host, _, port = bootstrap.rpartition(":")
    one = ReassignablePartition(partition_index=number, replicas=target)
    request = AlterPartitionReassignmentsRequest(
        topics=(ReassignableTopic(name=topic, partitions=(one,)),)
    )
    async with await BrokerConnection.open(host, int(port)) as connection:
        answer = await connection.request(request, AlterPartitionReassignmentsResponse)
    return answer.error_code or answer.responses[0].partitions[0].error_code


async def _metadata(bootstrap: str) -> MetadataResponse:
    host, _, port = bootstrap.rpartition(":")
    async with await BrokerConnection.open(host, int(port)) as connection:
        return await connection.request(MetadataRequest(topics=None), MetadataResponse)


def _has_leaders(seen: MetadataResponse, name: str) -> bool:
    found = [one for one in seen.topics if one.name == name]
    return bool(found) and all(p.leader_id >= 0 for one in found for p in one.partitions)


@contextmanager
def running(
    path: Path,
    shared: ZooKeeperProcess,
    more: Mapping[str, str] | None = None,
    lines: Mapping[int, Line] | None = None,
    own: Mapping[int, Settings] | None = None,
    environments: Mapping[int, Mapping[str, str]] | None = None,
) -> Iterator[Brokers]:
    """Three of them, on a path of their own; their logs have no error of ours at the end.

    `lines`: by which ways some reach the ensemble. `own` and `environments`: settings, and
    variables, of one broker alone.
    """
    place, known = f"/three/{next(_numbers)}", lines or {}
    connects = {n: known.get(n, shared).connect + place for n in (1, 2, 3)}
    with ExitStack() as stack:
        settings = {n: {**(more or {}), **(own or {}).get(n, {})} for n in connects}
        brokers = Brokers(path, connects, stack, settings, environments or {})
        brokers.until(
            lambda: all(len(seen.brokers) == len(connects) for seen in brokers.seen()),
            "all brokers, as each sees them,",
        )
        yield brokers
        for one in brokers.processes.values():
            before, found, after = one.log().partition("Traceback")
            assert not found, before[-1000:] + found + after[:5000]


def produced(brokers: Brokers, topic: str, values: range, **more: object) -> list[int]:
    """Which of them were acknowledged."""
    acknowledged: list[int] = []
    producer = brokers.producer(**more)

    def taken(n: int) -> Callable[[KafkaError | None, object], None]:
        return lambda error, _: acknowledged.append(n) if error is None else None

    for n in values:
        producer.produce(topic, b"%d" % n, key=b"k%d" % n, on_delivery=taken(n))
        producer.poll(0)
    producer.flush(WAIT_SECONDS)
    if len(acknowledged) < len(values):
        brokers.give_up_producers()
    return acknowledged


def keyed(brokers: Brokers, topic: str, records: Iterable[tuple[bytes, bytes | None]]) -> None:
    """Write records with acks=all."""
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "acks": "all", "log_level": 0})
    for key, value in records:
        producer.produce(
            topic, value, key, on_delivery=lambda e, _: failed.append(e) if e else None
        )
    assert producer.flush(WAIT_SECONDS) == 0
    assert not failed


def consumed(brokers: Brokers, topic: str, partitions: int = 1) -> list[int]:
    """All values, partition by partition, up to where a consumer comes.

    It is told of an end after half a second. So it sees the last transaction, whose markers follow
    the answer to its commit.
    """
    consumer = Consumer(
        {"bootstrap.servers": brokers.bootstrap, "group.id": "reader", "log_level": 0,
         "auto.offset.reset": "earliest", "enable.auto.commit": False,
         "isolation.level": "read_committed",
         "enable.partition.eof": True}
    )  # fmt: skip
    found = []
    for number in range(partitions):
        consumer.assign([TopicPartition(topic, number, 0)])
        while (message := consumer.poll(WAIT_SECONDS)) is not None:
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                break
            assert error is None, error
            found.append(int(message.value() or b"-1"))
    consumer.close()
    return found


def segments(folder: Path) -> dict[str, bytes]:
    """A partition's segments as they were at one moment, by path; none where it is not.

    While a round's result takes their place there is a moment in which neither old nor new ones
    have a name that ends in `.log`: what is on its way is there, too.
    """

    def listed() -> list[tuple[str, int]]:
        named: list[tuple[str, int]] = []
        with suppress(FileNotFoundError), os.scandir(folder) as found:
            named = [(file.name, file.inode()) for file in found]
        return sorted(one for one in named if one[0].endswith((".log", ".log.swap")))

    while True:
        before = listed()
        with suppress(FileNotFoundError):
            read = {str(folder / name): (folder / name).read_bytes() for name, _ in before}
            if listed() == before:
                return read


def same_bytes(brokers: Brokers, partition: str) -> None:
    """Wait until all replicas of a partition, like "t-0", have the same log."""

    def contents() -> list[bytes]:
        folders = [one.data / partition for one in brokers.processes.values()]
        return [b"".join(segments(folder).values()) for folder in folders if folder.exists()]

    brokers.until(lambda: len(set(contents())) == 1, f"{partition}: the same bytes")
