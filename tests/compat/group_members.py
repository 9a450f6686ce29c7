"""Members of groups with confluent-kafka, whichever protocol the group has."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from lapse.testing.broker_process import BrokerProcess

SECONDS = 40
RECORDS = 200


def fill(broker: BrokerProcess, topic: str, first: int = 0) -> set[bytes]:
    """RECORDS values from that number on, in turn into both partitions."""
    client = Producer({"bootstrap.servers": broker.bootstrap})
    values = {b"value-%d" % n for n in range(first, first + RECORDS)}
    for n, value in enumerate(sorted(values)):
        client.produce(topic, value=value, partition=n % 2)
    assert client.flush(SECONDS) == 0
    return values


def unsubscribed(
    broker: BrokerProcess, group: str, *, protocol: str = "classic", **settings: object
) -> Consumer:
    """A consumer of a group that is yet to say what it reads; settings with _ for dots."""
    of_protocol: dict[str, object] = {"session.timeout.ms": 6000}
    if protocol == "consumer":
        of_protocol = {"group.protocol": "consumer", "topic.metadata.refresh.interval.ms": 1000}
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **of_protocol,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )


def member(
    broker: BrokerProcess, group: str, topic: str, *, protocol: str = "classic", **settings: object
) -> Consumer:
    """One that reads a topic."""
    consumer = unsubscribed(broker, group, protocol=protocol, **settings)
    consumer.subscribe([topic])
    return consumer


def read(consumers: Sequence[Consumer], count: int) -> set[bytes]:
    """That many values, whoever gets them."""
    got: set[bytes] = set()
    end = time.monotonic() + SECONDS
    while len(got) < count:
        assert time.monotonic() < end, f"only {len(got)} of {count}"
        for consumer in consumers:
            message = consumer.poll(0.05)
            if message is not None:
                assert message.error() is None, message.error()
                got.add(message.value())
    return got


def poll_until(consumers: Sequence[Consumer], what: Callable[[], bool]) -> None:
    """Keep members alive, and throw away what they read, until something is so."""
    end = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < end, [c.assignment() for c in consumers]
        for consumer in consumers:
            consumer.poll(0.02)


def parts(consumer: Consumer) -> list[tuple[str, int]]:
    """What it has."""
    return sorted((tp.topic, tp.partition) for tp in consumer.assignment())


class CountedMember:
    """A member that commits each record, and counts it when that is taken.

    What was not taken is counted with a later commit of its partition; if the partition goes to
    somebody else before, that one reads it.
    """

    def __init__(self, consumer: Consumer, topic: str, counts: Counter[bytes]) -> None:
        self.consumer, self._counts = consumer, counts
        self._open: dict[int, list[bytes]] = {}
        consumer.subscribe([topic], on_revoke=self._lose, on_lost=self._lose)

    def _lose(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for tp in partitions:
            self._open.pop(tp.partition, None)

    def step(self) -> None:
        """Read what is there and commit it."""
        message = self.consumer.poll(0.02)
        if message is not None:
            assert message.error() is None, message.error()
            self._commit(message)

    def _commit(self, message: Message) -> None:
        partition, value = message.partition(), message.value()
        assert partition is not None
        assert isinstance(value, bytes)
        self._open.setdefault(partition, []).append(value)
        try:
            self.consumer.commit(message=message, asynchronous=False)
        except KafkaException as e:
            if e.args[0].code() not in REBALANCES:
                raise
        else:
            self._counts.update(self._open.pop(partition))


REBALANCES = {
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.STALE_MEMBER_EPOCH,
}
"""Why a commit may be refused while a group shares anew."""
