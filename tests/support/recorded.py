"""Stock clients (librdkafka's) whose history is noted, for `lapse.testing.history` to judge."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from lapse.testing.history.events import Isolation, Outcome
from lapse.testing.history.recorder import ProducerRecorder, Recorder
from tests.support.deliveries import safely

SWEEP_SECONDS_MAX = 120
QUEUE_SECONDS = 0.01
CALL_SECONDS = 1.0
# The client gave these up before it sent anything, or the broker refused the whole batch.
SURELY_FAILED = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_TXN_STATE,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
)


@dataclass
class RecordedProducer:
    """A producer, every record of which is noted before the client has it.

    Attributes:
        errors: codes of failed deliveries, in their order.
    """

    recorder: ProducerRecorder
    settings: Mapping[str, object]
    errors: list[KafkaError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client = Producer(dict(self.settings))

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int = -1,
        timestamp_ms: int = -1,
    ) -> None:
        """Raises KafkaException where the client takes nothing any more (a fatal error)."""
        number, headers = self.recorder.sending(
            topic, partition, key, value, timestamp_ms=timestamp_ms
        )

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                at, offset = message.partition(), message.offset()
                assert at is not None
                assert offset is not None
                self.recorder.acknowledged(number, at, offset)
                return
            self.errors.append(error)
            self.recorder.failed(number, error.name(), is_sure=error.code() in SURELY_FAILED)

        more: dict[str, Any] = {} if timestamp_ms < 0 else {"timestamp": timestamp_ms}
        while True:
            try:
                self.client.produce(
                    topic,
                    value,
                    key,
                    partition,
                    headers=list(headers),
                    on_delivery=safely(delivered),
                    **more,
                )
                break
            except BufferError:
                self.client.poll(QUEUE_SECONDS)
            except KafkaException as e:
                self.recorder.failed(number, e.args[0].name(), is_sure=True)
                raise
        self.client.poll(0)

    def begin(self) -> None:
        self.client.begin_transaction()
        self.recorder.begins()

    def commit(self, seconds: float) -> None:
        """Raises KafkaException, after which the transaction is as open as before."""
        self._ended(self.client.commit_transaction, seconds)
        self.recorder.ends(Outcome.COMMITTED)

    def abort(self, seconds: float) -> None:
        """Raises KafkaException."""
        self._ended(self.client.abort_transaction, seconds)
        self.recorder.ends(Outcome.ABORTED)

    def _ended(self, end: Callable[[float], None], seconds: float) -> None:
        """In short calls: the client wants deliveries to be taken before it ends anything."""
        until = time.monotonic() + seconds
        while True:
            self.client.poll(0)
            try:
                return end(CALL_SECONDS)
            except KafkaException as e:
                if e.args[0].code() != KafkaError._TIMED_OUT or time.monotonic() > until:
                    raise

    def give_up(self) -> None:
        """Nobody will learn what became of the transaction."""
        self.recorder.ends(Outcome.UNKNOWN)


def sweep(
    recorder: Recorder,
    bootstrap: str,
    partitions: Iterable[tuple[str, int]],
    isolation: Isolation = Isolation.COMMITTED,
    *,
    name: str = "sweep",
) -> None:
    """All partitions from their starts to their ends, noted as runs of one reader."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "isolation.level": str(isolation),
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    try:
        runs = {}
        assigned = []
        for topic, partition in partitions:
            low, _ = consumer.get_watermark_offsets(TopicPartition(topic, partition), 30)
            runs[topic, partition] = recorder.reader(name).begins(
                topic, partition, low, isolation, from_start=True
            )
            assigned.append(TopicPartition(topic, partition, low))
        consumer.assign(assigned)
        left = set(runs)
        end = time.monotonic() + SWEEP_SECONDS_MAX
        while left:
            assert time.monotonic() < end, f"{left} did not end"
            message = consumer.poll(1.0)
            if message is None:
                continue
            its_topic, number, offset = message.topic(), message.partition(), message.offset()
            assert its_topic is not None
            assert number is not None
            assert offset is not None
            where, error = (its_topic, number), message.error()
            if error is None:
                headers: Any = message.headers() or ()
                key, value, at_ms = message.key(), message.value(), message.timestamp()[1]
                runs[where].read(offset, headers, key, value, at_ms)
            elif error.code() == KafkaError._PARTITION_EOF:
                runs[where].reached(offset, at_end=True)
                left.discard(where)
            elif not error.retriable():
                raise KafkaException(error)
    finally:
        consumer.close()
