"""Settings of the logs in a directory that no broker serves: ADR-12.

From what the user says (`-c`), else Lapse's own metadata, else Kafka's metadata log. A log of
which none of them knows the cleanup policy has none here: it is not touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lapse.base.config import (
    TopicConfig,
    known_topic_settings,
    overlaid,
    settled_config,
    topic_config,
)
from lapse.base.contradictions import Contradiction
from lapse.base.errors import ConfigError, CorruptData, StorageError, unreadable
from lapse.base.ids import TopicPartition
from lapse.metadata.features import ALL, Levels
from lapse.metadata.kraft_image import read_kafka_topics
from lapse.metadata.settings import fit_broker_values
from lapse.metadata.sqlite import STORE, look_at_settings
from lapse.metadata.store import ALL_BROKERS, OF_FILE

POLICY = "cleanup.policy"
BROKER_POLICY = "log.cleanup.policy"
UNKNOWN = f"policy unknown: pass -c {POLICY}=compact (or delete) if you know it"

Settings = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Policies:
    """Settings by topic, and where they come from.

    Attributes:
        said: topic settings the user gave; they win.
        given_defaults: broker settings the user gave.
        topics: overrides of each topic the metadata knows.
        defaults: broker settings the metadata knows.
        source: for people.
        levels: what the brokers there have agreed to accept.
        trouble: why the metadata could not be read; nothing of it counts then. "" where it could.
    """

    said: Settings
    given_defaults: Settings
    topics: Mapping[str, Settings]
    defaults: Settings
    source: str
    trouble: str = ""
    levels: Levels = ALL

    def config_of(self, partition: TopicPartition) -> TopicConfig | None:
        """Settings in force, None if the policy is unknown; raises ConfigError on bad ones."""
        settled = self._settled(partition)
        return None if settled is None else settled[0]

    def contradictions_of(self, partition: TopicPartition) -> str:
        """What contradicts what there, and which gave way, as where it is served; "" if nothing."""
        settled = self._settled(partition)
        return "" if settled is None else "; ".join(map(str, settled[1]))

    def _settled(
        self, partition: TopicPartition
    ) -> tuple[TopicConfig, tuple[Contradiction, ...]] | None:
        overrides = {**self.topics.get(partition.topic, {}), **self.said}
        defaults = overlaid(self.defaults, self.given_defaults)
        known = partition.topic in self.topics or POLICY in overrides or BROKER_POLICY in defaults
        try:
            return settled_config(overrides, defaults, self.levels.caps) if known else None
        except ConfigError as e:
            raise ConfigError(f"topic {partition.topic}: {e}") from e

    def flags_count(self, partition: TopicPartition) -> bool:
        """Whether a flagged record is a tombstone (KIP-87): in a log not compacted it is data.

        In a log with unknown policy it is one, too: no consumer shall get a deleted value again.
        Raises ConfigError on bad settings.
        """
        config = self.config_of(partition)
        return config is None or config.compacts

    def configs(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, TopicConfig]:
        """Settings of the partitions for which they are known."""
        found = {p: self.config_of(p) for p in partitions}
        return {p: config for p, config in found.items() if config is not None}


def look_for_policies(log_dir: Path, said: Settings, given_defaults: Settings) -> Policies:
    """As `find_policies`, for code that only reports: unreadable metadata becomes its `trouble`."""
    try:
        return find_policies(log_dir, said, given_defaults)
    except (CorruptData, StorageError) as e:
        return Policies(said, given_defaults, {}, {}, "-c", str(e))


def find_policies(log_dir: Path, said: Settings, given_defaults: Settings) -> Policies:
    """Look for settings in `log_dir`; nothing there is changed, locked or created.

    Raises StorageError and CorruptData where there is metadata that cannot be read, and ConfigError
    where the user's settings are wrong by themselves.
    """
    topic_config(said, given_defaults)
    store = log_dir / STORE
    own = look_at_settings(store) if _exists(store) else None
    kafka = None if own is not None and own.topics else read_kafka_topics(log_dir)
    if own is not None and kafka is None:
        brokers = {broker: fit_broker_values(s) for broker, s in own.brokers.items()}
        defaults: Settings = brokers.get(ALL_BROKERS, {})
        for broker, changed in brokers.items():  # a store is of one broker
            defaults = defaults if broker in {ALL_BROKERS, OF_FILE} else overlaid(defaults, changed)
        topics = own.topics
        policy = brokers.get(OF_FILE, {}).get(BROKER_POLICY)
        if policy is not None and BROKER_POLICY not in {*defaults, *given_defaults}:
            # Not a default: it says nothing of logs that the metadata does not know.
            topics = {name: {POLICY: policy, **own} for name, own in topics.items()}
        return Policies(
            said, given_defaults, topics, defaults, "Lapse's metadata", levels=own.levels
        )
    if kafka is not None:  # also where a start of Lapse left an empty store beside it
        topics = {name: known_topic_settings(o) for name, o in kafka.overrides.items()}
        return Policies(said, given_defaults, topics, kafka.defaults, "Kafka's metadata log")
    return Policies(said, given_defaults, {}, {}, "-c")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as e:
        raise unreadable(e) from e
