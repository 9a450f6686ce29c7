"""Producers that go on while their broker is killed, and all that they are told meanwhile.

Idempotent and transactional producers of librdkafka write to a few partitions with small segments
and several requests in flight. Each does what its documentation says of an error: tries again what
can be, aborts what must be, and makes a new producer after a fatal one. What they did and got is
recorded, to be judged; what they were told is counted.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lapse.testing.history.events import Isolation
from lapse.testing.history.promise import Promise
from lapse.testing.history.recorder import Recorder
from tests.support.recorded import RecordedProducer, sweep

PARTITIONS, KEYS = (0, 1), 50
TRANSACTIONAL = 3
SETTINGS = {"cleanup.policy": "delete", "retention.ms": "-1", "segment.ms": "1000"}
CALL_SECONDS = 30  # a commit or an abort that takes longer is called again
GIVE_UP_SECONDS = 600
TIMEOUT_MS = 900_000  # no transaction times out: that would be an error of its own
PROGRESS_SECONDS_MAX = 120
# No broker to talk to: what a client says to itself, of which it goes on by itself.
_UNREACHABLE = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE}


class Told(NamedTuple):
    """An error as a producer was told it.

    Attributes:
        by: what told: delivery, send, init, commit, abort, callback.
        then: what the client wants done: fatal, abort, retry, or nothing.
    """

    kind: str
    by: str
    code: int
    error: str
    then: str


@dataclass
class Written:
    """What all producers came to, to be looked at when they have ended.

    Attributes:
        told: how often each error.
        said: each error's text, once.
    """

    recorder: Recorder
    told: Counter[Told] = field(default_factory=Counter)
    said: dict[Told, str] = field(default_factory=dict)
    commits: int = 0
    producers: int = 0
    crashes: list[BaseException] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def tell(self, kind: str, by: str, error: KafkaError) -> None:
        wants = ((error.fatal, "fatal"), (error.txn_requires_abort, "abort"),
                 (error.retriable, "retry"))  # fmt: skip
        then = next((word for asks, word in wants if asks()), "")
        told = Told(kind, by, error.code(), error.name(), then)
        with self._changed:
            self.told[told] += 1
            self.said.setdefault(told, error.str())

    def committed(self) -> None:
        with self._changed:
            self.commits += 1
            self._changed.notify_all()

    def crashed(self, error: BaseException) -> None:
        with self._changed:
            self.crashes.append(error)
            self._changed.notify_all()

    def wait_for_commits(self, more: int) -> None:
        """Until so many more transactions, or rounds of plain records, were acknowledged."""
        with self._changed:
            wanted = self.commits + more
            came = self._changed.wait_for(
                lambda: self.crashes or self.commits >= wanted, PROGRESS_SECONDS_MAX
            )
        assert came, f"nothing was acknowledged for {PROGRESS_SECONDS_MAX} s: {self.told}"
        assert not self.crashes, self.crashes


class _Writer(threading.Thread, ABC):
    """One producer after the other, until the end."""

    kind = ""

    def __init__(
        self, name: str, bootstrap: str, topics: Sequence[str], written: Written, seed: int,
        end: threading.Event,
    ) -> None:  # fmt: skip
        super().__init__(name=name, daemon=True)
        self._address, self._topics, self._written, self._end = bootstrap, topics, written, end
        self._chance = random.Random(f"{seed}/{name}")
        self._lives = 0

    def run(self) -> None:
        try:
            while not self._end.is_set():
                producer = self._make()
                try:
                    self._live(producer)
                except KafkaException as e:
                    self._written.tell(self.kind, "send", e.args[0])
                    producer.give_up()
                self._end_of(producer)
        except BaseException as e:  # noqa: BLE001 - told to whoever waits
            self._written.crashed(e)

    def _make(self) -> RecordedProducer:
        self._lives += 1
        self._written.producers += 1
        recorder = self._written.recorder.producer(f"{self.name}.{self._lives}")
        return RecordedProducer(recorder, self._settings())

    def _settings(self) -> dict[str, object]:
        return {
            "bootstrap.servers": self._address,
            "enable.idempotence": True,
            "message.timeout.ms": TIMEOUT_MS,
            "batch.num.messages": 20,
            "linger.ms": self._chance.choice((0, 1, 5)),
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 10,
            "retry.backoff.max.ms": 100,
            "log_level": 0,
            "error_cb": self._called_back,
        }

    def _called_back(self, error: KafkaError) -> None:
        if error.code() not in _UNREACHABLE:
            self._written.tell(self.kind, "callback", error)

    @abstractmethod
    def _live(self, producer: RecordedProducer) -> None:
        """Write until the end or for a while. Raises KafkaException where no more is taken."""

    def _send(self, producer: RecordedProducer, most: int) -> None:
        chance = self._chance
        for _ in range(chance.randint(1, most)):
            value = chance.randbytes(chance.randint(0, 100))
            producer.send(
                chance.choice(self._topics), b"%d" % chance.randrange(KEYS), value,
                chance.choice(PARTITIONS),
            )  # fmt: skip
        if chance.random() < 0.3:
            producer.client.poll(chance.uniform(0, 0.02))

    def _deliveries(self, producer: RecordedProducer) -> None:
        while producer.errors:
            self._written.tell(self.kind, "delivery", producer.errors.pop())

    def _end_of(self, producer: RecordedProducer) -> None:
        with contextlib.suppress(KafkaException):  # the fatal error, once more
            producer.client.flush(CALL_SECONDS)
        self._deliveries(producer)


class _Idempotent(_Writer):
    kind = "idempotent"

    def _live(self, producer: RecordedProducer) -> None:
        """Several requests in flight, now and then all waited for."""
        while not self._end.is_set():
            self._send(producer, 40)
            if self._chance.random() < 0.2:
                producer.client.flush(GIVE_UP_SECONDS)
                self._written.committed()
            self._deliveries(producer)


class _Transactional(_Writer):
    kind = "transactional"

    def _settings(self) -> dict[str, object]:
        more = {"transactional.id": self.name, "transaction.timeout.ms": TIMEOUT_MS}
        return {**super()._settings(), **more}

    def _live(self, producer: RecordedProducer) -> None:
        self._call("init", lambda: producer.client.init_transactions(CALL_SECONDS))
        while not self._end.is_set() and self._chance.random() < 0.99:
            producer.begin()
            self._send(producer, 60)
            commits = self._chance.random() < 0.8
            if commits and self._call("commit", lambda: producer.commit(CALL_SECONDS)):
                self._written.committed()
            else:
                self._call("abort", lambda: producer.abort(CALL_SECONDS))
            self._deliveries(producer)

    def _call(self, by: str, call: Callable[[], None]) -> bool:
        """Whether it was done; if not, the transaction is to be aborted. Raises what is fatal."""
        until = time.monotonic() + GIVE_UP_SECONDS
        while True:
            try:
                call()
            except KafkaException as e:
                error = e.args[0]
                if error.code() != KafkaError._TIMED_OUT:
                    self._written.tell(self.kind, by, error)
                if error.txn_requires_abort():
                    return False
                waits = error.code() == KafkaError._TIMED_OUT or error.retriable()
                if not waits or time.monotonic() > until:
                    raise
            else:
                return True


def create_topic(
    bootstrap: str, name: str, settings: Mapping[str, str], partitions: int = 1
) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(name, partitions, 1, config=dict(settings))
    admin.create_topics([new])[name].result(60)


def writers(
    bootstrap: str, topics: Sequence[str], written: Written, seed: int, end: threading.Event
) -> Sequence[threading.Thread]:
    """Two idempotent and three transactional ones; their names begin as the topics' do."""
    prefix = topics[0].rpartition("-")[0]
    kinds = [*((f"{prefix}-i{n}", _Idempotent) for n in range(2)),
             *((f"{prefix}-t{n}", _Transactional) for n in range(TRANSACTIONAL))]  # fmt: skip
    return [kind(name, bootstrap, topics, written, seed, end) for name, kind in kinds]


def disturb_while_writing(
    bootstrap: str,
    recorder: Recorder,
    disturb: Callable[[random.Random], None],
    times: int,
    seed: int,
    prefix: str,
) -> Written:
    """So many disturbances, each after some transactions were done; then all is read.

    `disturb` returns when the broker can be reached again.
    """
    topics = [f"{prefix}-{n}" for n in range(2)]
    for topic in topics:
        create_topic(bootstrap, topic, SETTINGS, len(PARTITIONS))
        recorder.promised(topic, Promise.of(SETTINGS, slack_ms=None))
    chance, end, written = random.Random(seed), threading.Event(), Written(recorder)
    threads = writers(bootstrap, topics, written, seed, end)
    for thread in threads:
        thread.start()
    try:
        for _ in range(times):
            written.wait_for_commits(chance.randint(1, 5))
            disturb(chance)
        written.wait_for_commits(5)
    finally:
        end.set()
        for thread in threads:
            thread.join(GIVE_UP_SECONDS)
    assert not written.crashes, written.crashes
    assert not any(thread.is_alive() for thread in threads)
    end_open_transactions(bootstrap, prefix)
    where = [(topic, partition) for topic in topics for partition in PARTITIONS]
    for isolation in (Isolation.COMMITTED, Isolation.UNCOMMITTED):
        sweep(recorder, bootstrap, where, isolation, name=f"sweep-{isolation}")
    return written


def end_open_transactions(bootstrap: str, prefix: str) -> None:
    """What a producer that had to give up left open is aborted by its successor."""
    for n in range(TRANSACTIONAL):
        name = f"{prefix}-t{n}"
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
        producer.init_transactions(GIVE_UP_SECONDS)
