"""Stock consumers: sweeps over everything, and groups whose members come and go."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from lapse.testing.history.events import Isolation
from lapse.testing.history.recorder import RunRecorder
from tests.chaos.record import Record
from tests.chaos.topics import PARTITIONS, Topic
from tests.chaos.writers import COMMON

POLL_SECONDS = 0.2
SWEEP_SECONDS_MAX = 120.0
REST_SECONDS = 2.0
SESSION_TIMEOUT_MS = 6000


def sweep(
    name: str, bootstrap: str, topics: Sequence[Topic], record: Record, isolation: Isolation,
    end: threading.Event,
) -> bool:  # fmt: skip
    """Read everything once, from the start to the end; whether it came that far."""
    consumer = Consumer(
        {
            **COMMON, "bootstrap.servers": bootstrap, "group.id": "none",  # nothing is committed
            "enable.auto.commit": False, "auto.offset.reset": "earliest",
            "enable.partition.eof": True, "isolation.level": isolation.value,
        }
    )  # fmt: skip
    places = [(topic.name, n) for topic in topics for n in range(PARTITIONS)]
    try:
        firsts = {place: _first(consumer, place) for place in places}
        reader = record.reader(name)
        runs = {
            place: reader.begins(*place, first, isolation, from_start=True)
            for place, first in firsts.items()
        }
        consumer.assign([TopicPartition(t, n, first) for (t, n), first in firsts.items()])
        return _drain(consumer, runs, record, end)
    except KafkaException as e:
        record.error(f"sweep: {e.args[0].name()}")
        return False
    finally:
        consumer.close()


def _first(consumer: Consumer, place: tuple[str, int]) -> int:
    low, _ = consumer.get_watermark_offsets(TopicPartition(*place), timeout=10)
    return int(low)


def _drain(
    consumer: Consumer, runs: Mapping[tuple[str, int], RunRecorder], record: Record,
    end: threading.Event,
) -> bool:  # fmt: skip
    until, left = time.monotonic() + SWEEP_SECONDS_MAX, set(runs)
    while left and time.monotonic() < until and not end.is_set():
        for message in consumer.consume(500, POLL_SECONDS):
            error = message.error()
            place = (message.topic(), message.partition())
            if place not in left and (error is None or error.code() == KafkaError._PARTITION_EOF):
                continue  # it has come to its end before; what was written since is the next one's
            if error is None:
                at_ms = message.timestamp()[1]
                headers, key, value = message.headers() or (), message.key(), message.value()
                runs[place].read(message.offset(), headers, key, value, at_ms)
            elif error.code() == KafkaError._PARTITION_EOF:
                runs[place].reached(message.offset(), at_end=True)
                left.discard(place)
            else:
                record.error(f"sweep: {error.name()}")
                if not error.retriable():
                    return False
    return not left


class Sweeper(threading.Thread):
    """Sweeps all the time, by either isolation in turn."""

    def __init__(
        self, bootstrap: str, topics: Sequence[Topic], record: Record, rest_seconds: float,
        end: threading.Event,
    ) -> None:  # fmt: skip
        super().__init__(name="sweeper", daemon=True)
        self._address, self._topics = bootstrap, topics
        self._record, self._rest_seconds, self._end = record, rest_seconds, end
        self.count = 0
        self.crash: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._end.wait(self._rest_seconds):
                isolation = (Isolation.COMMITTED, Isolation.UNCOMMITTED)[self.count % 2]
                self.count += 1
                sweep(
                    f"sweep-{self.count}", self._address, self._topics, self._record,
                    isolation, self._end,
                )  # fmt: skip
        except BaseException as e:  # noqa: BLE001 - the run tells of it
            self.crash = e


class Group:
    """One consumer group over a topic in which nothing goes: what it commits must stay committed.

    Args:
        protocol: classic, or consumer (KIP-848).

    Attributes:
        findings: where a member was told of a committed offset below one that had been answered.
    """

    def __init__(self, protocol: str, bootstrap: str, topic: Topic, record: Record) -> None:
        self.protocol, self._address = protocol, bootstrap
        self.topic, self.record = topic, record
        self.findings: list[str] = []
        self._committed: dict[int, int] = {}
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return f"group-{self.protocol}"

    def settings(self) -> dict[str, object]:
        mine: dict[str, object] = {
            **COMMON, "bootstrap.servers": self._address, "group.id": self.name,
            "enable.auto.commit": False, "auto.offset.reset": "earliest",
            "group.protocol": self.protocol,
        }  # fmt: skip
        if self.protocol == "classic":
            mine["session.timeout.ms"] = SESSION_TIMEOUT_MS
        return mine

    def has_committed(self, committed: Sequence[TopicPartition]) -> None:
        """The broker has answered so."""
        with self._lock:
            for one in committed:
                if one.error is None:
                    before = self._committed.get(one.partition, -1)
                    self._committed[one.partition] = max(before, one.offset)

    def answered(self) -> dict[int, int]:
        """What had been answered by now, by partition."""
        with self._lock:
            return dict(self._committed)

    def is_told(self, before: dict[int, int], told: Sequence[TopicPartition]) -> None:
        """What the broker says is committed, asked after `before` had been answered."""
        for one in told:
            expected = before.get(one.partition, -1)
            if one.error is None and max(one.offset, -1) < expected:
                where = f"{self.name} over {one.topic}-{one.partition}"
                self.findings.append(
                    f"{where}: offset {expected} was committed, now it is {one.offset}"
                )


class Member(threading.Thread):
    """One member of a group: reads, commits, leaves."""

    def __init__(self, name: str, group: Group, end: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self._group, self._end = group, end
        self.leaving = threading.Event()
        self.reads = 0
        self.crash: BaseException | None = None

    def run(self) -> None:
        try:
            consumer = Consumer(self._group.settings())
            try:
                consumer.subscribe([self._group.topic.name], on_assign=self._assigned)
                while not self._end.is_set() and not self.leaving.is_set():
                    self._step(consumer)
            finally:
                consumer.close()
        except BaseException as e:  # noqa: BLE001 - the run tells of it
            self.crash = e

    def _assigned(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        self._ask(consumer, assigned)

    def _ask(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        before = self._group.answered()
        try:
            self._group.is_told(before, consumer.committed(places, timeout=5))
        except KafkaException as e:
            self._group.record.error(f"committed: {e.args[0].name()}")

    def _step(self, consumer: Consumer) -> None:
        messages = consumer.consume(200, POLL_SECONDS)
        for message in messages:
            if (error := message.error()) is not None:
                self._group.record.error(f"group: {error.name()}")
        if not any(message.error() is None for message in messages):
            return
        self.reads += len(messages)
        try:
            committed = consumer.commit(asynchronous=False)
        except KafkaException as e:
            self._group.record.error(f"commit: {e.args[0].name()}")
        else:
            self._group.has_committed(committed or ())
