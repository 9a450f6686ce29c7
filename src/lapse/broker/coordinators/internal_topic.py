"""A coordinator's own topic, created when it is first needed, as in Kafka."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from lapse.broker.logs.topics import NewTopic, Topics
from lapse.metadata.image import Topic


class InternalTopic:
    """`__consumer_offsets` or `__transaction_state`.

    It gets as many replicas as `new` says, or as there are brokers, if they are fewer.
    """

    def __init__(self, topics: Topics, new: NewTopic) -> None:
        self._topics, self._new = topics, new
        self._making = asyncio.Lock()

    @property
    def found(self) -> Topic | None:
        """The topic, if there is one."""
        return self._topics.image.topics.get(self._new.name)

    async def require(self) -> Topic:
        """Make the topic if there is none; raises KafkaError where it cannot be made."""
        if self.found is None:
            async with self._making:
                if self.found is None:
                    return await self._make()
        found = self.found
        assert found is not None
        return found

    async def _make(self) -> Topic:
        new, wanted = self._new, self._new.replication_factor or 1
        factor = max(1, min(wanted, len(self._topics.members.able)))
        overrides = dict(new.overrides)
        least = min(int(overrides.pop("min.insync.replicas", "1")), factor)
        if least > 1:
            overrides["min.insync.replicas"] = str(least)
        return await self._topics.require(
            replace(new, replication_factor=factor, overrides=overrides)
        )
