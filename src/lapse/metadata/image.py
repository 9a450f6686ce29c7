"""The cluster as one broker knows it: an immutable snapshot that handlers ask without waiting.

What Kafka calls MetadataImage.

Built from the store at start; every change to the store makes a new image, which replaces the old
one in one assignment (`broker.logs.topics`). A holder of an image sees one consistent moment.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from lapse.base.config import TopicConfig
from lapse.base.ids import TopicPartition
from lapse.metadata.partition_states import PartitionState

# Kafka's own topics (KIP-848 and KIP-932 included); clients may read them and no more.
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
# A real Kafka's metadata log. Kafka, and tools that only look, believe what a folder of that name
# says of all other topics: so no topic may have it, and one that is there is never written.
METADATA_LOG = "__cluster_metadata"
METADATA_FOLDER = f"{METADATA_LOG}-0"  # of a Kafka without ZooKeeper


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic.

    Attributes:
        partitions: how many; they are numbered from 0.
        overrides: the settings it was given, as text.
        config: the settings in force: overrides, broker defaults, Kafka's defaults.
        states: of its partitions, where several brokers may have them; else empty.
    """

    name: str
    topic_id: uuid.UUID
    partitions: int
    overrides: Mapping[str, str]
    config: TopicConfig
    states: tuple[PartitionState, ...] = ()

    def of_broker(self, node_id: int, first: int = 0) -> list[TopicPartition]:
        """The partitions from `first` on that a broker has, or shall have."""
        numbers = range(first, self.partitions)
        return [TopicPartition(self.name, n) for n in numbers if self.is_at(n, node_id)]

    def is_at(self, number: int, node_id: int) -> bool:
        """Whether a broker has a partition, or shall have it."""
        if not self.states:
            return number < self.partitions
        return number < len(self.states) and node_id in self.states[number].replicas

    def is_lost(self, number: int, node_id: int) -> bool:
        """Whether a broker's log of a partition is gone, and may come back."""
        return bool(self.states) and node_id in self.states[number].lost


@dataclass(frozen=True, slots=True)
class Image:
    """All topics, by name and by id.

    Attributes:
        read: the number of the read of the store that it is made of; one that began later has a
            greater one.
    """

    cluster_id: str
    topics: Mapping[str, Topic]
    ids: Mapping[uuid.UUID, Topic] = field(repr=False)
    read: int = 0

    @staticmethod
    def of(cluster_id: str, topics: Iterable[Topic], read: int = 0) -> Image:
        """The image that holds these topics."""
        by_name = {topic.name: topic for topic in topics}
        by_id = {topic.topic_id: topic for topic in by_name.values()}
        return Image(cluster_id, MappingProxyType(by_name), MappingProxyType(by_id), read)

    def with_topics(self, added: Iterable[Topic]) -> Image:
        """The same image and some more topics; one whose name is there takes its place."""
        return Image.of(self.cluster_id, [*self.topics.values(), *added], self.read)

    def without(self, topic_ids: Iterable[uuid.UUID]) -> Image:
        """The same image less some topics."""
        gone = set(topic_ids)
        kept = [t for t in self.topics.values() if t.topic_id not in gone]
        return Image.of(self.cluster_id, kept, self.read)
