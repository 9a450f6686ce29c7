"""The broker's side of an erasure: where logs end, tombstones, and a setting that brings rounds on.

Over Kafka's protocol, so that Kafka's own brokers will do as well. Rounds are brought on by the
topic's `max.compaction.lag.ms`: the active segment is rolled when its first record is that old, and
a round follows (L5). `min.compaction.lag.ms` is a promise, and is kept.
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
from lapse.client.offsets import LATEST, list_offsets
from lapse.client.producer import Producer, ProducerConfig
from lapse.client.settings import TOPIC, ConfigChange, ConfigEntry, Operation, Resource
from lapse.lifecycle.erase.order import Due, Forced
from lapse.lifecycle.erase.search import Bound

POLICY, MIN_LAG, MAX_LAG = "cleanup.policy", "min.compaction.lag.ms", "max.compaction.lag.ms"
RETENTION, REMOVAL_LAG = "delete.retention.ms", "lapse.tombstone.removal.max.lag.ms"
UNLINK_DELAY = "file.delete.delay.ms"
FORCED_LAG_MS = 1000
_TOPICS_OWN = 1  # source of a setting that is the topic's, not a default
# Refusals that leave open whether the change was made.
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
    """Where it listens, HOST:PORT,…, and how to log in."""

    bootstrap: str
    login: Login


@dataclass(frozen=True, slots=True)
class Served:
    """A topic as its brokers tell it.

    Attributes:
        ends: where each partition ends.
        replicas: the brokers of each partition.
        settings: those above, as far as the broker knows them.
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
    """The brokers of a topic, asked over the network: what `drive.Brokers` promises."""

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
        told = await admin.describe_topic(topic)
        if told.is_internal:
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
    if "compact" not in [one.strip() for one in policy.split(",")]:
        raise ConfigError(
            f"topic {topic}: cleanup.policy={policy}: a tombstone removes nothing there; "
            "`lapse delete-records` does, or retention will"
        )
    partitions = [TopicPartition(topic, one.partition) for one in told.partitions]
    ends = await _ends(broker, partitions)
    replicas = {one.partition: one.replicas for one in told.partitions}
    return Served(topic, told.topic_id.hex, ends, replicas, settings)


async def ask_replicas(broker: Broker, topic: str, topic_id: str) -> Mapping[int, tuple[int, ...]]:
    """The brokers of each partition now, one that is being added included.

    Raises ConfigError where the topic is another by now; KafkaError, ConnectionLost.
    """
    async with await Admin.open(broker.bootstrap, login=broker.login) as admin:
        told = await admin.describe_topic(topic)
    if told.topic_id.hex != topic_id:
        raise another_topic(topic)
    return {one.partition: one.replicas for one in told.partitions}


def another_topic(topic: str) -> ConfigError:
    """An order is about a topic, not about a name."""
    return ConfigError(
        f"topic {topic} is not the one the order is about: it was deleted and made again since; "
        "give a new order"
    )


async def _ends(broker: Broker, partitions: Sequence[TopicPartition]) -> tuple[Bound, ...]:
    found = []
    async with Cluster(parse_bootstrap(broker.bootstrap), broker.login) as cluster:
        for partition in partitions:
            connection = await cluster.leader_connection(partition)
            end = (await list_offsets(connection, {partition: LATEST}))[partition]
            if isinstance(end, KafkaError):
                raise end
            found.append(Bound(partition.partition, end))
    return tuple(found)


async def write_tombstones(
    broker: Broker, topic: str, keys: Sequence[bytes], due: Sequence[Due]
) -> None:
    """All of them are in the logs when this returns. Raises KafkaError, ConnectionLost."""
    config = ProducerConfig(allow_auto_create_topics=False)  # one that is gone stays gone
    try:
        async with Producer(broker.bootstrap, config, login=broker.login) as producer:
            sent = [
                await producer.send(topic, keys[one.target], None, partition=one.partition)
                for one in due
            ]
            await producer.flush()
            await asyncio.gather(*sent)
    except KafkaError as e:
        raise KafkaError(e.code, f"{topic}: tombstones cannot be written: {e}") from e


def lag_wanted(served: Served) -> Forced | None:
    """The change of `max.compaction.lag.ms` that brings rounds on; None where it is low enough."""
    wanted = max(FORCED_LAG_MS, served.ms(MIN_LAG))
    entry = served.settings.get(MAX_LAG)
    if entry is None or entry.value is None or int(entry.value) <= wanted:
        return None
    return Forced(MAX_LAG, _own(entry), str(wanted))


def to_force(served: Served, before: Forced | None) -> Forced | None:
    """What is to be in force, given what an order says that it changed `before`.

    That may not have come to be, or not have stayed: then the setting is as new.
    """
    if before is not None and _own(served.settings.get(before.name)) == before.value:
        return before
    return lag_wanted(served)


def is_refusal(error: LapseError) -> bool:
    """Whether it says for certain that nothing was changed."""
    return isinstance(error, KafkaError) and error.code not in _UNSURE


async def force(broker: Broker, topic: str, forced: Forced) -> bool:
    """Change it, once or again; False where somebody has set something else, which stays.

    Raises KafkaError where that is not allowed, and ConnectionLost: it may have been done.
    """
    async with await Admin.open(broker.bootstrap, login=broker.login) as admin:
        own = await _own_now(admin, topic, forced.name)
        if own not in {forced.before, forced.value}:
            return False
        await _alter(admin, topic, ConfigChange(forced.name, forced.value))
    return True


async def put_back(broker: Broker, topic: str, forced: Forced) -> bool:
    """As it was; False where somebody has set something else meanwhile, which stays."""
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
    told = (await admin.describe_configs([resource], [name]))[resource]
    if told.error is not None:
        raise told.error
    return _own(told.entries.get(name))


def _own(entry: ConfigEntry | None) -> str | None:
    """What a topic has of its own; None where a default applies."""
    return entry.value if entry is not None and entry.source == _TOPICS_OWN else None


async def _alter(admin: Admin, topic: str, change: ConfigChange) -> None:
    resource = Resource(TOPIC, topic)
    refused = (await admin.incremental_alter_configs({resource: [change]}))[resource]
    if refused is not None:
        raise refused
