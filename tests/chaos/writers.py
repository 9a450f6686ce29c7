"""Stock producers that write and remember: plain idempotent ones, and transactional ones."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Sequence

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from lapse.testing.history.events import Outcome
from lapse.testing.history.recorder import ProducerRecorder
from tests.chaos.record import Record
from tests.chaos.topics import PARTITIONS, Topic
from tests.support.deliveries import FATAL, safely

QUIET = 0  # librdkafka tells of every refused connection while the broker is away
ACK_SECONDS_MAX = 60
TOMBSTONE_SHARE = 0.1
ABORTED_SHARE = 0.2
TRANSACTION_RECORDS_MAX = 20
TRANSACTION_TIMEOUT_MS = 15_000
COMMON = {"log_level": QUIET, "reconnect.backoff.max.ms": 500, "retry.backoff.max.ms": 500}


class Writer(threading.Thread):
    """One thread, one producer after the other: who fails for good gets a successor.

    Args:
        per_second: how many records, about.
        end: set when no more is to be written.
    """

    def __init__(
        self, name: str, bootstrap: str, topics: Sequence[Topic], record: Record,
        per_second: float, seed: int, end: threading.Event,
    ) -> None:  # fmt: skip
        super().__init__(name=name, daemon=True)
        self._address, self._topics, self._record = bootstrap, topics, record
        self._per_second, self._end = per_second, end
        self._chance = random.Random(seed)
        self._producers = 0
        self._wrote = record.producer(f"{name}.0")
        self._is_spent = False
        self.crash: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._end.is_set():
                self._produce_until_spent()
        except BaseException as e:  # noqa: BLE001 - the run tells of it
            self.crash = e

    def _settings(self) -> dict[str, object]:
        # Nothing is given up: what lies behind a record that timed out librdkafka sends again,
        # under another epoch, and so may double it.
        return {"message.timeout.ms": 0}

    def _produce_until_spent(self) -> None:
        self._producers, self._is_spent = self._producers + 1, False
        self._wrote = self._record.producer(f"{self.name}.{self._producers}")
        producer = Producer(
            {
                **COMMON,
                **self._settings(),
                "bootstrap.servers": self._address,
                "enable.idempotence": True,
                "linger.ms": self._chance.choice((0, 5, 50)),
                "compression.type": self._chance.choice(("none", "lz4", "zstd", "gzip", "snappy")),
                "error_cb": self._told,
            }
        )
        try:
            self._write(producer)
            left = producer.flush(ACK_SECONDS_MAX + 10)
        except FATAL as e:  # raised by whatever is called next after a fatal error
            name = e.args[0].name() if isinstance(e, KafkaException) else "lost by the client"
            self._record.error(f"fatal: {name}")
        else:
            if left:
                self._record.error(f"{left} records of {self._wrote.name} never answered")

    def _write(self, producer: Producer) -> None:
        started, count = time.monotonic(), 0
        while not self._end.is_set() and not self._is_spent:
            self._send(producer)
            count += 1
            producer.poll(0)
            ahead_s = count / self._per_second - (time.monotonic() - started)
            if ahead_s > 0:
                self._end.wait(ahead_s)

    def _send(self, producer: Producer) -> None:
        chance, topic = self._chance, self._chance.choice(self._topics)
        key = f"k{chance.randrange(topic.keys)}".encode() if topic.keys else None
        gone = key is not None and chance.random() < TOMBSTONE_SHARE
        value = None if gone else chance.randbytes(chance.randint(20, 300))
        # A key has one partition, whoever writes it; `-1` would leave the choice to the client.
        partition = int(key[1:]) % PARTITIONS if key is not None else chance.randrange(PARTITIONS)
        wrote, sent_ms = self._wrote, self._record.now_ms()
        number, headers = wrote.sending(topic.name, partition, key, value, timestamp_ms=sent_ms)

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                wrote.acknowledged(number, message.partition(), message.offset())
                return
            # Purged ones of an aborted transaction may have been sent all the same.
            wrote.failed(number, error.name())
            self._record.error(f"produce: {error.name()}")
            self._is_spent |= error.fatal()

        def produce() -> None:
            producer.produce(
                topic.name, value, key, partition, on_delivery=safely(delivered), timestamp=sent_ms,
                headers=headers,
            )  # fmt: skip

        self._hand_over(producer, produce, wrote, number)

    def _hand_over(
        self, producer: Producer, produce: Callable[[], None], wrote: ProducerRecorder, number: int
    ) -> None:
        """As soon as there is room for it; not at all after a fatal error."""
        while True:
            try:
                produce()
            except BufferError:
                producer.poll(0.1)
            except KafkaException as e:
                wrote.failed(number, e.args[0].name(), is_sure=True)
                self._is_spent = True
                return
            else:
                return

    def _told(self, error: KafkaError) -> None:
        if error.fatal():
            self._record.error(f"fatal: {error.name()}")
            self._is_spent = True


class TransactionalWriter(Writer):
    """Transactions under one transactional id; one that cannot go on is fenced by its successor."""

    def _settings(self) -> dict[str, object]:
        return {
            "transactional.id": self.name,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "message.timeout.ms": TRANSACTION_TIMEOUT_MS,
        }

    def _write(self, producer: Producer) -> None:
        if not self._retried("init", lambda: producer.init_transactions(10)):
            return
        while not self._end.is_set() and not self._is_spent:
            self._one(producer)

    def _one(self, producer: Producer) -> None:
        try:
            producer.begin_transaction()
        except KafkaException as e:
            self._record.error(f"begin: {e.args[0].name()}")
            self._is_spent = True
            return
        self._wrote.begins()
        records = self._chance.randint(1, TRANSACTION_RECORDS_MAX)
        for _ in range(records):
            self._send(producer)
            producer.poll(0)
            self._end.wait(1 / self._per_second)
            if self._is_spent:
                break
        aborts = self._chance.random() < ABORTED_SHARE
        outcome = Outcome.UNKNOWN
        if aborts:
            outcome = self._abort(producer)
        elif self._retried("commit", lambda: producer.commit_transaction(10)):
            outcome = Outcome.COMMITTED
        elif not self._is_spent:
            outcome = self._abort(producer)
        self._wrote.ends(outcome)

    def _abort(self, producer: Producer) -> Outcome:
        done = self._retried("abort", lambda: producer.abort_transaction(10))
        return Outcome.ABORTED if done else Outcome.UNKNOWN

    def _retried(self, what: str, call: Callable[[], object]) -> bool:
        """Until it is done; False: it never will be, or the transaction must be aborted."""
        until = time.monotonic() + ACK_SECONDS_MAX
        while True:
            try:
                call()
            except KafkaException as e:
                error = e.args[0]
                self._record.error(f"{what}: {error.name()}")
                if error.retriable() and time.monotonic() < until:
                    with contextlib.suppress(KafkaException):
                        time.sleep(0.1)
                    continue
                self._is_spent |= error.fatal() or not error.txn_requires_abort()
                return False
            return True
