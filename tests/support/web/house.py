"""A broker and its lifecycle service to look at in a browser, and what is kept there.

with house(tmp_path / "data") as home:
    home.topic("orders", cleanup_policy="compact")
    home.send("orders", [Sent("key", "value")])
    home.until_rounds("orders-0", 1)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from lapse.base.fs import RealFs
from lapse.base.properties import properties_text
from lapse.lifecycle.status.reports import read_reports
from tests.support.up import FREE, until, up

SECONDS_MAX = 60
RECORD_BYTES_MAX = 10 << 20
SOON = ("-c", "log.cleaner.backoff.ms=1000", "-c", "offsets.topic.num.partitions=3")
ROUND_AT_ONCE = {
    "cleanup_policy": "compact",
    "segment_ms": "100",
    "min_cleanable_dirty_ratio": "0.01",
}


@dataclass(frozen=True, slots=True)
class Sent:
    """A record to send; `at_ms` 0 is now."""

    key: str | bytes | None
    value: str | bytes | None
    at_ms: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int = 0


@dataclass(frozen=True, slots=True)
class House:
    """Where it is, and hands to fill it with, without a login.

    Attributes:
        bootstrap: HOST:PORT for such clients.
        http: HOST:PORT of the pages.
    """

    data: Path
    bootstrap: str
    http: str
    _clients: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def admin(self) -> AdminClient:
        """Kafka's."""
        if "admin" not in self._clients:
            self._clients["admin"] = AdminClient({"bootstrap.servers": self.bootstrap})
        admin: AdminClient = self._clients["admin"]
        return admin

    def topic(self, name: str, partitions: int = 1, **settings: str) -> None:
        """Make one; in names of settings `_` stands for a dot."""
        config = {setting.replace("_", "."): text for setting, text in settings.items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(
            SECONDS_MAX
        )

    def send(self, topic: str, records: Iterable[Sent]) -> None:
        """Until all are in the log."""
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "linger.ms": 0,
                "message.max.bytes": RECORD_BYTES_MAX,
            }
        )
        errors: list[object] = []
        for one in records:
            producer.produce(
                topic, key=one.key, value=one.value, partition=one.partition,
                timestamp=one.at_ms, headers=list(one.headers),
                on_delivery=lambda error, _: errors.append(error) if error else None,
            )  # fmt: skip
        assert producer.flush(SECONDS_MAX) == 0
        assert not errors

    def commit(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Offsets of a group that has no members."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        places = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()

    def until_rounds(self, log: str, count: int) -> None:
        """Wait until so many rounds of a log were made."""
        until(
            lambda: sum(one.log == log for one in read_reports(self.data)) >= count,
            f"{log} has not had {count} rounds",
        )


@contextmanager
def house(
    data: Path, settings: Mapping[str, str] | None = None, options: Sequence[str] = ()
) -> Iterator[House]:
    """`lapse up` with an engine that begins at once; `settings` name their own listeners, if any.

    The first listener that is called PLAINTEXT is the one that the house is filled by.
    """
    free: tuple[str, ...] = FREE
    if settings is not None:
        RealFs().make_dir(data)
        own = {"log.dirs": str(data), "lapse.http.port": "0", **settings}
        RealFs().write_file(data / "server.properties", properties_text(own))
        free = FREE[2:]  # several listeners: --port would be of none
    with up(data, *free, *SOON, *options) as running:
        ready = running.ready
        assert ready, running.errors()
        kafka = re.search(r"[ ,=]PLAINTEXT://([^ ,]+)", ready) or re.search(r"kafka=(\S+)", ready)
        http = re.search(r"http=(\S+)", ready)
        assert kafka is not None, ready
        assert http is not None, ready
        home = House(data, kafka[1], http[1])
        yield home
        home._clients.clear()  # which would complain that nobody serves them any more
        assert "ended by an error of ours" not in running.errors()
