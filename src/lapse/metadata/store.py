"""What must be remembered about topics and producers, durably: the seam and its records.

Production on one node: `sqlite`. Called from worker threads only (it waits for the disk), by
`broker.topics` and the producer id blocks. Every call is atomic and durable when it returns.

Deleting takes two steps, so that a crash between "the topic is gone" and "its files are gone"
leaves a note of what is still to be removed: `start_deletion` frees the name, `finish_deletion`
forgets the topic.

Settings that are changed while brokers run are kept by whom they are of: a broker's id, or
`ALL_BROKERS`. Topics' settings are in their records.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

ALL_BROKERS = ""  # Kafka's name of the resource whose settings hold for every broker


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic as stored; its settings are text, as they were given."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    overrides: Mapping[str, str]


class MetadataStore(Protocol):
    """Durable metadata of a cluster (of one node, so far)."""

    def cluster_id(self) -> str:
        """The cluster's id, in Kafka's spelling; the same one for ever."""
        ...

    def topics(self) -> Sequence[TopicRecord]:
        """Topics that exist, by name."""
        ...

    def deletions(self) -> Sequence[TopicRecord]:
        """Topics deleted whose files may still be there."""
        ...

    def create_topics(self, topics: Sequence[TopicRecord]) -> None:
        """Add topics, all or none; raises TOPIC_ALREADY_EXISTS."""
        ...

    def change_topic(self, topic: TopicRecord) -> None:
        """Other partitions or settings for the topic with this id; raises UNKNOWN_TOPIC_ID."""
        ...

    def start_deletion(self, topic_id: uuid.UUID) -> None:
        """The topic is gone for clients; raises UNKNOWN_TOPIC_ID."""
        ...

    def finish_deletion(self, topic_id: uuid.UUID) -> None:
        """Its files are gone, or renamed to go."""
        ...

    def broker_settings(self) -> Mapping[str, Mapping[str, str]]:
        """Settings that were changed while brokers ran, as text, by broker id or `ALL_BROKERS`."""
        ...

    def set_broker_settings(self, broker: str, settings: Mapping[str, str]) -> None:
        """Exactly these from now on, of one broker or of `ALL_BROKERS`."""
        ...

    def allocate_producer_ids(self, count: int) -> range:
        """A block of producer ids that nobody else ever gets."""
        ...

    def close(self) -> None: ...
