"""All clients of a run, and what a story asks of them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from lapse.testing.history.promise import Promise
from tests.chaos import frail
from tests.chaos.crowd import Crowd
from tests.chaos.readers import Group, Member, Sweeper
from tests.chaos.record import Record
from tests.chaos.topics import FRAIL_SETTINGS, PARTITIONS, Topic
from tests.chaos.writers import COMMON, TransactionalWriter, Writer

ASK_SECONDS_MAX = 10.0
END_SECONDS_MAX = 100.0
SLACK_MS = 15_000  # rolls, a round, its commit and its queue, on a busy machine
PROTOCOLS = ("classic", "consumer")
CHURN_RECORDS = 200


class Loads:
    """Clients of one run: writers, sweeps and groups from `start` to `finish`.

    Args:
        per_second: records, over all writers, about.
        rest_seconds: between two sweeps.
    """

    def __init__(
        self,
        bootstrap: str,
        record: Record,
        topics: Sequence[Topic],
        per_second: float,
        rest_seconds: float,
        seed: int,
    ) -> None:
        self._topics = topics
        self._address, self._record = bootstrap, record
        self._admin = AdminClient({**COMMON, "bootstrap.servers": bootstrap})
        self._writing_ends, self._reading_ends = threading.Event(), threading.Event()
        self._settings = {topic.name: dict(topic.settings) for topic in topics}
        self._short: list[threading.Thread] = []
        self.findings: list[str] = []
        by_name = {topic.name: topic for topic in topics}
        transactional = [by_name["transactional"], by_name["keyed"], by_name["plain"]]
        share = per_second / 4
        ask = (bootstrap, topics, record, share)
        self.writers: list[Writer] = [
            Writer("w1", *ask, seed + 1, self._writing_ends),
            Writer("w2", *ask, seed + 2, self._writing_ends),
            *(TransactionalWriter(f"x{n}", bootstrap, transactional, record, share, seed + 2 + n,
                                  self._writing_ends) for n in (1, 2)),
        ]  # fmt: skip
        self.sweeper = Sweeper(bootstrap, topics, record, rest_seconds, self._reading_ends)
        self.groups = {p: Group(p, bootstrap, by_name["plain"], record) for p in PROTOCOLS}
        self.members = [self._member(p) for p in PROTOCOLS for _ in range(2)]
        self._joined: list[Member] = []

    def _member(self, protocol: str) -> Member:
        return Member(f"member-{protocol}", self.groups[protocol], self._reading_ends)

    def create_topics(self) -> None:
        """With what they promise noted before their first record."""
        for topic in self._topics:
            promise = Promise.of(topic.settings, slack_ms=SLACK_MS)
            self._record.promised(topic.name, promise)
        asked = [NewTopic(t.name, PARTITIONS, 1, config=dict(t.settings)) for t in self._topics]
        asked.append(NewTopic(frail.TOPIC, PARTITIONS, 1, config=dict(FRAIL_SETTINGS)))
        for done in self._admin.create_topics(asked).values():
            done.result(ASK_SECONDS_MAX)

    def start(self) -> None:
        for thread in (*self.writers, self.sweeper, *self.members):
            thread.start()

    def stop_writing(self) -> None:
        """Until all is answered or given up."""
        self._writing_ends.set()
        self._join(self.writers)

    def finish(self) -> None:
        """Until nobody is there any more."""
        self._writing_ends.set()
        self._reading_ends.set()
        self._join([*self.writers, self.sweeper, *self.members, *self._joined, *self._short])
        self.findings += [f for group in self.groups.values() for f in group.findings]

    def _join(self, threads: Sequence[threading.Thread]) -> None:
        for thread in threads:
            thread.join(END_SECONDS_MAX)
            crash = getattr(thread, "crash", None)
            if thread.is_alive():
                self._find(f"client {thread.name} does not end")
            elif crash is not None:
                self._find(f"client {thread.name} ended with {crash!r}")

    def _find(self, finding: str) -> None:
        if finding not in self.findings:
            self.findings.append(finding)

    # --- what a story asks ---------------------------------------------------------------------

    def churn(self, seed: int) -> Callable[[], None]:
        """A topic is made and written to, and deleted when the fault ends."""
        name = f"churn-{seed}"
        topic = NewTopic(
            name, PARTITIONS, 1, config=dict(self._topics[seed % len(self._topics)].settings)
        )

        def come() -> None:
            self._ask("create", self._admin.create_topics([topic])[name])
            producer = Producer(
                {**COMMON, "bootstrap.servers": self._address, "message.timeout.ms": 5000}
            )
            for n in range(CHURN_RECORDS):
                producer.produce(name, b"v", f"k{n}".encode())
            producer.flush(10)

        thread = self._in_background(come)

        def go() -> None:
            def deleted() -> None:
                thread.join(END_SECONDS_MAX)
                self._ask("delete", self._admin.delete_topics([name])[name])

            self._in_background(deleted)

        return go

    def alter(self, setting: str, seed: int) -> None:
        """One setting of an altered topic. Lags that count are those of the longer promise."""
        topics = [topic.name for topic in self._topics if topic.is_altered]
        topic = random.Random(seed).choice(topics)
        name, _, value = setting.partition("=")

        def alter() -> None:
            entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            asked = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
            self._promise(topic, {name: value})
            self._ask("alter", self._admin.incremental_alter_configs([asked])[asked])

        self._in_background(alter)

    def _promise(self, topic: str, settings: Mapping[str, str]) -> None:
        self._settings[topic].update(settings)
        promise = Promise.of(self._settings[topic], slack_ms=SLACK_MS)
        self._record.promised(topic, promise)

    def rebalance(self, protocol: str, seed: int) -> Callable[[], None]:
        """One more member, which leaves when the fault ends."""
        del seed
        member = self._member(protocol)
        self._joined.append(member)
        member.start()
        return member.leaving.set

    def crowd(self, seed: int) -> Callable[[], None]:
        """It takes a while to come."""
        crowds: list[Crowd] = []
        thread = self._in_background(lambda: crowds.append(Crowd(self._address, seed)))

        def leave() -> None:
            thread.join(END_SECONDS_MAX)
            for crowd in crowds:
                crowd.leave()

        return leave

    def delete_records(self, seed: int) -> None:
        """Up to somewhere in the middle of a partition."""
        chance = random.Random(seed)
        topic = chance.choice([topic.name for topic in self._topics if topic.is_deleted_from])
        partition, share = chance.randrange(PARTITIONS), chance.random()

        def delete() -> None:
            place = TopicPartition(topic, partition)
            found = self._watermarks(place)
            if found is None:
                return
            place.offset = before = found[0] + int(share * (found[1] - found[0]))
            asked_ms = self._record.now_ms()
            done = self._admin.delete_records([place])[place]
            is_sure = self._ask("delete records", done)
            self._record.deleted(asked_ms, topic, partition, before, is_sure=is_sure)

        self._in_background(delete)

    def _watermarks(self, place: TopicPartition) -> tuple[int, int] | None:
        from confluent_kafka import Consumer  # noqa: PLC0415

        consumer = Consumer({**COMMON, "bootstrap.servers": self._address, "group.id": "none"})
        try:
            low, high = consumer.get_watermark_offsets(place, timeout=ASK_SECONDS_MAX)
        except KafkaException as e:
            self._record.error(f"watermarks: {e.args[0].name()}")
            return None
        else:
            return low, high
        finally:
            consumer.close()

    def _ask(self, what: str, done: object) -> bool:
        """Whether the broker did it; what else it said is noted."""
        try:
            done.result(ASK_SECONDS_MAX)  # type: ignore[attr-defined]
        except KafkaException as e:
            self._record.error(f"{what}: {e.args[0].name()}")
            return False
        except TimeoutError:
            self._record.error(f"{what}: no answer")
            return False
        return True

    def _in_background(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, daemon=True)
        self._short.append(thread)
        thread.start()
        return thread
