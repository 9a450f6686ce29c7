"""What an export must know of a topic before reading it: its ends, its id and its retention."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lapse.base.clock import Clock
from lapse.base.errors import ConfigError
from lapse.base.ids import TopicPartition, format_topic_id
from lapse.client.admin import Admin
from lapse.client.login import login
from lapse.client.settings import TOPIC, Resource
from lapse.log.checkpoints import read_topic_id
from lapse.metadata.policies import find_policies
from lapse.spark.export.decide import LogNow
from lapse.spark.scan import place
from lapse.spark.scan.files import DataLost
from lapse.spark.scan.options import TOMBSTONE_VALUES, parse_options

_RETENTION, _POLICY = "delete.retention.ms", "cleanup.policy"


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A topic that can be looked at.

    Attributes:
        options: of `format("lapse")`, to read it by.
        topic_id: None where the broker reports none.
        delete_retention_ms: None where it is unknown.
    """

    topic: str
    options: Mapping[str, str]
    topic_id: str | None
    delete_retention_ms: int | None

    def look(self, clock: Clock) -> LogNow:
        """As it is now.

        Raises what the data source raises; DataLost where it is another topic by now.
        """
        now_ms = clock.now_ms()  # before the end is read
        options = {
            **self.options,
            "subscribe": self.topic,
            "kafka.isolation.level": "read_committed",
        }
        extents = place.extents(parse_options(options))
        ids = {format_topic_id(e.topic_id) for e in extents.values() if e.topic_id is not None}
        if self.topic_id is not None and ids - {self.topic_id}:
            raise DataLost(
                f"{self.topic} was made anew meanwhile: its id is {', '.join(sorted(ids))}, not "
                f"{self.topic_id}; export it again"
            )
        found = {p.partition: (e.start_offset, e.end_offset) for p, e in extents.items()}
        return LogNow(self.topic, self.topic_id, found, now_ms, self.delete_retention_ms)


def in_files(topic: str, folders: str, said: Mapping[str, str]) -> SourceTopic:
    """In log directories, comma-separated. Raises ConfigError where they hold two such topics."""
    places = [Path(name) for name in folders.split(",")]
    logs = [
        path
        for place in places
        for path in place.glob(f"{topic}-*")
        if (found := TopicPartition.parse(path.name)) is not None and found.topic == topic
    ]
    ids = {format_topic_id(one) for path in logs if (one := read_topic_id(path)) is not None}
    if len(ids) > 1:
        raise ConfigError(f"--from {folders}: {topic} is two topics: {', '.join(sorted(ids))}")
    first = TopicPartition(topic, 0)
    policies = [find_policies(place, said, {}) for place in places]
    known = [policy.configs([first]).get(first) for policy in policies]
    retention = min((c.delete_retention_ms for c in known if c is not None), default=None)
    counts = all(policy.flags_count(first) for policy in policies)
    options = {"path": folders, **_flags(counts=counts)}
    return SourceTopic(topic, options, min(ids, default=None), _said(said, retention))


def at_brokers(
    topic: str, bootstrap: str, properties: Mapping[str, str], said: Mapping[str, str]
) -> SourceTopic:
    """At a broker, Lapse or Kafka. Raises ConfigError, ConnectionLost, KafkaError."""
    topic_id, settings = asyncio.run(_asked(topic, bootstrap, properties))
    retention = settings.get(_RETENTION)
    policy = said.get(_POLICY, settings.get(_POLICY, "compact"))
    options = {f"kafka.{name}": text for name, text in properties.items()}
    options |= {"kafka.bootstrap.servers": bootstrap, **_flags(counts="compact" in policy)}
    known_ms = None if retention is None else int(retention)
    return SourceTopic(topic, options, topic_id, _said(said, known_ms))


async def _asked(
    topic: str, bootstrap: str, properties: Mapping[str, str]
) -> tuple[str, Mapping[str, str]]:
    resource = Resource(TOPIC, topic)
    async with await Admin.open(bootstrap, login=login(properties)) as admin:
        described = await admin.describe_topic(topic)
        config = (await admin.describe_configs([resource], [_RETENTION, _POLICY]))[resource]
    settings = {name: e.value for name, e in config.entries.items() if e.value is not None}
    return format_topic_id(described.topic_id), settings


def _flags(*, counts: bool) -> Mapping[str, str]:
    """A flagged value deletes its key (KIP-87); where nothing compacts it is plain data."""
    return {} if counts else {TOMBSTONE_VALUES: "false"}


def _said(said: Mapping[str, str], known: int | None) -> int | None:
    return int(said[_RETENTION]) if _RETENTION in said else known
