"""The stock clients: who writes, who is refused, and who reads everything back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from lapse.base.errors import LapseError
from lapse.base.extras import needed_for

with needed_for("the demo"):
    from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

TOPIC = "aircraft"
PARTITIONS = 2
ACK_SECONDS_MAX = 60
QUIET = 0  # librdkafka tells of every refused connection while the broker is away
QUEUED_MAX = 500_000
QUIET_SECONDS = 1.0  # a consumer that got nothing for so long has read to the end


def create_topic(bootstrap: str, config: dict[str, str], replicas: int) -> None:
    """The compacted topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=replicas, config=config)
    admin.create_topics([topic])[TOPIC].result(30)


@dataclass
class Sent:
    """What was acknowledged.

    Attributes:
        places: (partition, offset) of each key's records, in order; the last may be a tombstone.
        appended_ms: the record times the broker was given, beside `places`.
    """

    places: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    appended_ms: dict[tuple[int, int], int] = field(default_factory=dict)
    count: int = 0
    last_ack_ms: int = 0
    failed: list[str] = field(default_factory=list)


class Writer:
    """An idempotent lz4 producer that remembers what became of each record."""

    def __init__(self, bootstrap: str) -> None:
        self.sent = Sent()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": QUIET,
                "enable.idempotence": True,
                "compression.type": "lz4",
                "linger.ms": 20,
                "queue.buffering.max.messages": QUEUED_MAX + 1,
                "message.timeout.ms": ACK_SECONDS_MAX * 1000,
                "reconnect.backoff.max.ms": 500,
            }
        )

    def send_paced(
        self,
        records: Iterable[tuple[bytes, bytes | None]],
        per_second: float,
        tick: Callable[[int], None],
    ) -> None:
        """Send at a steady rate; `tick` is told how many were handed over, now and then."""
        started = time.monotonic()
        for n, (key, value) in enumerate(records, 1):
            self._send(key, value)
            if n % 200 == 0:
                self._producer.poll(0)
                tick(n)
                ahead = n / per_second - (time.monotonic() - started)
                if ahead > 0:
                    time.sleep(ahead)
        self._producer.poll(0)

    def _send(self, key: bytes, value: bytes | None) -> None:
        now_ms = time.time_ns() // 1_000_000
        while len(self._producer) >= QUEUED_MAX:
            self._producer.poll(0.1)
        self._producer.produce(TOPIC, value, key, timestamp=now_ms, on_delivery=self._delivered)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.sent.failed.append(error.str())
            return
        key, partition, offset = message.key(), message.partition(), message.offset()
        assert key is not None
        assert partition is not None
        assert offset is not None
        place = (partition, offset)
        self.sent.places.setdefault(key, []).append(place)
        self.sent.appended_ms[place] = message.timestamp()[1]
        self.sent.count += 1
        self.sent.last_ack_ms = time.time_ns() // 1_000_000

    def flush(self) -> None:
        """Wait for every acknowledgement."""
        left = self._producer.flush(ACK_SECONDS_MAX)
        if left:
            self.sent.failed.append(f"{left} records were never acknowledged")


def offer_keyless(bootstrap: str, values: list[bytes]) -> dict[str, int]:
    """Offer each record in a batch of its own; how many came to what end."""
    outcomes: dict[str, int] = {}

    def delivered(error: KafkaError | None, _: Message) -> None:
        name = "accepted" if error is None else error.name()
        outcomes[name] = outcomes.get(name, 0) + 1

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": QUIET,
            "batch.num.messages": 1,
            "linger.ms": 0,
            "message.timeout.ms": ACK_SECONDS_MAX * 1000,
            "reconnect.backoff.max.ms": 500,
        }
    )
    for n, value in enumerate(values):
        producer.produce(TOPIC, value, partition=n % PARTITIONS, on_delivery=delivered)
        producer.poll(0)
    producer.flush(ACK_SECONDS_MAX)
    return outcomes


def read_all(bootstrap: str) -> list[tuple[bytes | None, bytes | None]]:
    """Every record of the topic, from the first offset to the end, by a raw consumer."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",  # librdkafka insists on one; nothing is committed
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    found: list[tuple[bytes | None, bytes | None]] = []
    at_end: set[int] = set()
    try:
        consumer.assign([TopicPartition(TOPIC, p, 0) for p in range(PARTITIONS)])
        until = time.monotonic() + ACK_SECONDS_MAX
        while len(at_end) < PARTITIONS and time.monotonic() < until:
            message = consumer.poll(QUIET_SECONDS)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append((message.key(), message.value()))
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition() or 0)
            elif error.fatal():
                raise LapseError(f"the consumer gave up: {error.str()}")
    finally:
        consumer.close()
    return found
