"""Pauses of a topic's logs, which end with the topic: each broker sees to those that it keeps.

A pause by name would outlive its topic for ever: a new topic of that name would never be cleaned,
and an alert would call for a log that is not there. One that was made for a topic that is made anew
stays. Where that is there as soon as the deletion is noticed, nobody knows for which topic a pause
was meant, and all stay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from lapse.base.clock import Clock
from lapse.base.errors import LapseError
from lapse.base.ids import TopicPartition
from lapse.broker.logs.disk import DiskThreads
from lapse.broker.logs.partitions import Partitions
from lapse.broker.logs.topics import Topics
from lapse.lifecycle.status.pauses import end_pauses
from lapse.metadata.image import Topic

logger = logging.getLogger(__name__)


class TopicPauses:
    """Ends them, in a thread, when a topic is deleted."""

    def __init__(
        self, topics: Topics, partitions: Partitions, disk: DiskThreads, clock: Clock
    ) -> None:
        self._topics, self._partitions = topics, partitions
        self._disk, self._clock = disk, clock
        self._tasks: set[asyncio.Task[None]] = set()
        topics.when_deleted.append(self._topic_deleted)

    async def close(self) -> None:
        """Wait until those that are to end have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _topic_deleted(self, topic: Topic) -> None:
        if topic.name in self._topics.image.topics:
            return
        logs = {str(TopicPartition(topic.name, number)) for number in range(topic.partitions)}
        task = asyncio.create_task(self._end(logs, self._clock.now_ms()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self, logs: Collection[str], until_ms: int) -> None:
        place = self._partitions.env.fs, self._partitions.data_dir
        try:
            await self._disk.run(end_pauses, *place, logs, until_ms)
        except (LapseError, OSError) as e:
            logger.warning("pauses of logs of a deleted topic are not ended: %s", e)
