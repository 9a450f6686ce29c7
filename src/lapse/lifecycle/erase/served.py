"""The brokers' part of an erasure: log end offsets, tombstones, a setting that speeds up rounds.

It uses Kafka's protocol, so it works with Kafka's brokers, too. The topic's
`max.compaction.lag.ms` makes rounds come sooner: the active segment is rolled when its first record
is that old, and a round follows (L5). `min.compaction.lag.ms` is a promise, and is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lapse.base.errors import ConfigError, ErrorCode, KafkaError, LapseError
from lapse.base.ids import TopicPartition
from lapse.client.admin import Admin
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.login import Login
from lapse.client.offsets import LATEST, list_offsets, log_end
from lapse.client.producer import Producer, ProducerConfig
from lapse.client.settings import (
    FROM_TOPIC,
    TOPIC,
    ConfigChange,
    ConfigEntry,
    Operation,
    Resource,
)
from lapse.lifecycle.erase.order import Due, Forced
from lapse.lifecycle.erase.search import Bound

POLICY, MIN_LAG, MAX_LAG = "cleanup.policy", "min.compaction.lag.ms", "max.compaction.lag.ms"
RETENTION, REMOVAL_LAG = "delete.retention.ms", "lapse.tombstone.removal.max.lag.ms"
UNLINK_DELAY = "file.delete.delay.ms"
NO_EPOCH = -1  # of brokers that do not say it
FORCED_LAG_MS = 1000
# Errors after which it is unknown whether the change was made.
_UNSURE = frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


@dataclass(frozen=True, slots=True)
class Broker:
    """The bootstrap address, HOST:PORT,…, and the login."""

    bootstrap: str
    login: Login


@dataclass(frozen=True, slots=True)
class Served:
    """A topic as its brokers describe it.

    Attributes:
        ends: where each partition ends.
        replicas: the brokers of each partition.
        settings: those named above, as far as the broker knows them.
    """

    topic: str
    topic_id: str
    ends: tuple[Bound, ...]
    replicas: Mapping[int, tuple[int, ...]]
    settings: Mapping[str, ConfigEntry]

    def ms(self, name: str, default: int = 0) -> int:
        """A setting that is a time."""
        entry = self.settings.get(name)
        return int(entry.value) if entry is not None and entry.value is not None else default


@dataclass(frozen=True, slots=True)
class Network:
    """The brokers of a topic, over the network; implements `drive.Brokers`."""

    broker: Broker

    def replicas(self, topic: str, topic_id: str) -> Mapping[int, tuple[int, ...]]:
        return asyncio.run(ask_replicas(self.broker, topic, topic_id))

    def write_tombstones(self, topic: str, keys: Sequence[bytes], due: Sequence[Due]) -> None:
        asyncio.run(write_tombstones(self.broker, topic, keys, due))

    def force(self, topic: str, forced: Forced) -> bool:
        return asyncio.run(force(self.broker, topic, forced))

    def put_back(self, topic: str, forced: Forced) -> bool:
        return asyncio.run(put_back(self.broker, topic, forced))


async def ask(broker: Broker, topic: str) -> Served:
    """Raises ConfigError for a topic where no tombstone can remove anything; KafkaError."""
    async with await Admin.open(broker.bootstrap, login=broker.login) as admin:
        description = await admin.describe_topic(topic)
        if description.is_internal:
            raise ConfigError(
                f"topic {topic} is internal: its coordinator alone writes tombstones there, when "
                "a group, its offsets or a transactional id are deleted or expire"
            )
        resource = Resource(TOPIC, topic)
        names = (POLICY, MIN_LAG, MAX_LAG, RETENTION, REMOVAL_LAG, UNLINK_DELAY)
        configs = (await admin.describe_configs([resource], None))[resource]
    if configs.error is not None:
        raise configs.error
    settings = {name: configs.entries[name] for name in names if name in configs.entries}
    policy = settings[POLICY].value or ""
    if "compact" not in [part.strip() for part in policy.split(",")]:
        raise ConfigError(
            f"topic {topic}: cleanup.policy={policy}: a tombstone removes nothing there; "
            "`lapse delete-records` does, or retention will"
        )
    partitions = [TopicPartition(topic, p.partition) for p in description.partitions]
    ends = await _ends(broker, partitions)
    replicas = {p.partition: p.replicas for p in description.partitions}
    return Served(topic, description.topic_id.hex, ends, replicas, settings)


async def ask_replicas(broker: Broker, topic: str, topic_id: str) -> Mapping[int, tuple[int, ...]]:
    """The brokers of each partition now, including a replica that is being added.

    Raises ConfigError if another topic has the name by now; KafkaError, ConnectionLost.
    """
    async with await Admin.open(broker.bootstrap, login=broker.login) as admin:
        description = await admin.describe_topic(topic)
    if description.topic_id.hex != topic_id:
        raise another_topic(topic)
    return {p.partition: p.replicas for p in description.partitions}


def another_topic(topic: str) -> ConfigError:
    """The error for an order whose topic was recreated: it is about a topic id, not a name."""
    return ConfigError(
        f"topic {topic} is not the one the order is about: it was deleted and made again since; "
        "give a new order"
    )


async def _ends(broker: Broker, partitions: Sequence[TopicPartition]) -> tuple[Bound, ...]:
    """Where the logs end: a record that no follower has yet was written before the order, too."""
    found = []
    async with Cluster(parse_bootstrap(broker.bootstrap), broker.login) as cluster:
        for partition in partitions:
            connection = await cluster.leader_connection(partition)
            end = (await list_offsets(connection, {partition: LATEST}))[partition]
            if isinstance(end, KafkaError):
                raise end
            epochs = (await cluster.topic(partition.topic)).leader_epochs
            epoch = epochs.get(partition.partition, NO_EPOCH)
            if epoch != NO_EPOCH:
                end = max(end, await log_end(connection, partition, epoch))
            found.append(Bound(partition.partition, end, epoch))
    return tuple(found)


async def write_tombstones(
    broker: Broker, topic: str, keys: Sequence[bytes], due: Sequence[Due]
) -> None:
    """All of them are in the logs when this returns. Raises KafkaError, ConnectionLost."""
    config = ProducerConfig(allow_auto_create_topics=False)  # a deleted topic stays deleted
    try:
        async with Producer(broker.bootstrap, config, login=broker.login) as producer:
            sent = [
                await producer.send(topic, keys[d.target], None, partition=d.partition) for d in due
            ]
            await producer.flush()
            await asyncio.gather(*sent)
    except KafkaError as e:
        raise KafkaError(e.code, f"{topic}: tombstones cannot be written: {e}") from e


def lag_wanted(served: Served) -> Forced | None:
    """The change of `max.compaction.lag.ms` that speeds up rounds; None if it is low enough."""
    lag_ms = max(FORCED_LAG_MS, served.ms(MIN_LAG))
    entry = served.settings.get(MAX_LAG)
    if entry is None or entry.value is None or int(entry.value) <= lag_ms:
        return None
    return Forced(MAX_LAG, _own(entry), str(lag_ms))


def to_force(served: Served, before: Forced | None) -> Forced | None:
    """The change to make, given the change `before` that the order records.

    That change may not have been made, or not have lasted: then it is worked out anew.
    """
    if before is not None and _own(served.settings.get(before.name)) == before.value:
        return before
    return lag_wanted(served)


def is_refusal(error: LapseError) -> bool:
    """Whether the error means for certain that nothing was changed."""
    return isinstance(error, KafkaError) and error.code not in _UNSURE


async def force(broker: Broker, topic: str, forced: Forced) -> bool:
    """Make the change, repeatably; False if the topic has another value by now, which stays.

    Raises KafkaError if it is not allowed, and ConnectionLost: the change may have been made.
    """
    async with await Admin.open(broker.bootstrap, login=broker.login) as admin:
        own = await _own_now(admin, topic, forced.name)
        if own not in {forced.before, forced.value}:
            return False
        await _alter(admin, topic, ConfigChange(forced.name, forced.value))
    return True


async def put_back(broker: Broker, topic: str, forced: Forced) -> bool:
    """Restore the setting; False if it was set to another value meanwhile, which stays."""
    async with await Admin.open(broker.bootstrap, login=broker.login) as admin:
        own = await _own_now(admin, topic, forced.name)
        if own != forced.value:
            return own == forced.before
        back = (
            ConfigChange(forced.name, None, Operation.DELETE)
            if forced.before is None
            else ConfigChange(forced.name, forced.before)
        )
        await _alter(admin, topic, back)
    return True


async def _own_now(admin: Admin, topic: str, name: str) -> str | None:
    resource = Resource(TOPIC, topic)
    config = (await admin.describe_configs([resource], [name]))[resource]
    if config.error is not None:
        raise config.error
    return _own(config.entries.get(name))


def _own(entry: ConfigEntry | None) -> str | None:
    """The value that the topic itself sets; None where a default applies."""
    return entry.value if entry is not None and entry.source == FROM_TOPIC else None


async def _alter(admin: Admin, topic: str, change: ConfigChange) -> None:
    resource = Resource(TOPIC, topic)
    refused = (await admin.incremental_alter_configs({resource: [change]}))[resource]
    if refused is not None:
        raise refused
