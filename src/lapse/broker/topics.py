"""Creating and deleting topics on a single node: store first, then files, then the image.

Called by the API handlers, one change at a time. A crash in between leaves a topic that is in the
store and gets its missing directories at the next start, or a deletion that is finished then
(`Partitions.open_all`).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from lapse.base.config import BrokerConfig, topic_config
from lapse.base.errors import ErrorCode, KafkaError, StorageError
from lapse.base.ids import TopicPartition
from lapse.broker.disk import DiskThreads
from lapse.broker.partitions import Partitions
from lapse.broker.purgatory import Purgatory
from lapse.metadata.image import Image, Topic
from lapse.metadata.store import MetadataStore, TopicRecord


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic that may be created: its name, partitions and settings are checked."""

    name: str
    partitions: int
    overrides: Mapping[str, str]


class Topics:
    """The cluster's topics.

    Attributes:
        image: the current snapshot; a new object after each change.
    """

    def __init__(
        self,
        store: MetadataStore,
        partitions: Partitions,
        disk: DiskThreads,
        purgatory: Purgatory,
        config: BrokerConfig,
    ) -> None:
        self._store = store
        self._partitions = partitions
        self._disk = disk
        self._purgatory = purgatory
        self._defaults = dict(config.defaults)
        self._changing = asyncio.Lock()
        self.image = Image.of("", ())

    async def load(self) -> None:
        """Read the store, finish what a crash interrupted, open the logs."""
        self.image = await self._disk.run(self._load)

    def _load(self) -> Image:
        self._finish_deletions()
        image = Image.of(
            self._store.cluster_id(), (self._topic(record) for record in self._store.topics())
        )
        self._partitions.open_all(image)
        return image

    def _finish_deletions(self, of: str | None = None) -> None:
        """Remove what a crash or a failing disk kept from being removed."""
        for record in self._store.deletions():
            if of in {None, record.name}:
                self._remove(self._topic(record))

    def _remove(self, topic: Topic) -> None:
        """What lies in a directory that is offline is removed at the next start without one."""
        if self._partitions.remove(topic):
            self._store.finish_deletion(topic.topic_id)

    async def create(self, new: NewTopic) -> Topic:
        """Create a topic; it is durable and its logs are open when this returns."""
        async with self._changing:
            record = TopicRecord(new.name, uuid.uuid4(), new.partitions, new.overrides)
            topic = self._topic(record)
            try:
                await self._disk.run(self._create, record, topic)
            except StorageError as e:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"topic {topic.name}: {e}") from e
            self.image = self.image.with_topics((topic,))
            return topic

    def _create(self, record: TopicRecord, topic: Topic) -> None:
        self._finish_deletions(of=topic.name)
        self._store.create_topics((record,))
        try:
            self._partitions.create(topic)
        except StorageError:
            self._store.start_deletion(topic.topic_id)
            self._remove(topic)
            raise

    async def delete(self, topic: Topic) -> None:
        """Delete a topic; it is gone for clients when this returns."""
        async with self._changing:
            self.image = self.image.without((topic.topic_id,))
            try:
                await self._disk.run(self._delete, topic)
            except StorageError as e:
                # In the store the deletion has begun or has not; the next start goes by that.
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"topic {topic.name}: {e}") from e
            finally:
                for number in range(topic.partitions):
                    self._purgatory.changed(TopicPartition(topic.name, number))

    def _delete(self, topic: Topic) -> None:
        self._store.start_deletion(topic.topic_id)
        self._remove(topic)

    def _topic(self, record: TopicRecord) -> Topic:
        config = topic_config(record.overrides, self._defaults)
        return Topic(record.name, record.topic_id, record.partitions, record.overrides, config)
