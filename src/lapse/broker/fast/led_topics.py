"""What the fast path has to know of topics, prepared: found by a name's bytes, and by number.

What is prepared rests on the metadata's image, and on which logs are here and who leads them
(`Partitions.settled`). Where one of them is another than before, all is prepared anew, partition by
partition as they are asked for. What the log itself decides, with its settings, is not prepared.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from lapse.base.errors import KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.api.produce import NOT_FOR_CLIENTS
from lapse.broker.logs.counters import TopicCounters
from lapse.broker.request.context import Services
from lapse.log.partition_log import PartitionLog
from lapse.metadata.image import Topic
from lapse.wire.primitives import uuid_of, uvarint

_NAME_SIZE = struct.Struct(">h")


@dataclass(frozen=True, slots=True, weakref_slot=True)
class LedPartition:
    """A partition that this broker leads.

    Attributes:
        is_replicated: whether other brokers have it, too.
        has_enough: whether as many are in sync as `min.insync.replicas` wants.
    """

    where: TopicPartition
    log: PartitionLog
    leader_epoch: int
    topic: LedTopic
    is_replicated: bool
    has_enough: bool


@dataclass(frozen=True, slots=True)
class LedTopic:
    """A topic, and those of its partitions that were asked for.

    Attributes:
        name, compact_name: its bytes in an answer, in versions before and after flexible ones.
    """

    topic: Topic
    name: bytes
    compact_name: bytes
    counters: TopicCounters
    partitions: dict[int, LedPartition] = field(default_factory=dict)


class LedTopics:
    """All of them; for the event loop alone.

    Attributes:
        generation: another object whenever all is prepared anew.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self.generation = object()
        self._by_name: dict[bytes, LedTopic] = {}
        self._by_id: dict[bytes, LedTopic] = {}
        self._image = services.topics.image
        self._settled = services.partitions.settled

    def of(self, name: bytes) -> LedTopic | None:
        """A topic of clients; None where there is none of that name."""
        self.mind_changes()
        known = self._by_name.get(name)
        return known or self._prepared(self._by_name, name, self._image.topics.get(_text(name)))

    def by_id(self, raw: bytes) -> LedTopic | None:
        """The same by the 16 bytes of its id."""
        self.mind_changes()
        known = self._by_id.get(raw)
        return known or self._prepared(self._by_id, raw, self._image.ids.get(uuid_of(raw)))

    def mind_changes(self) -> None:
        """Forget all if it is not so any more."""
        services = self._services
        image, settled = services.topics.image, services.partitions.settled
        if image is not self._image or settled is not self._settled:
            self._by_name.clear()
            self._by_id.clear()
            self._image, self._settled = image, settled
            self.generation = object()

    def _prepared(
        self, kept: dict[bytes, LedTopic], key: bytes, topic: Topic | None
    ) -> LedTopic | None:
        if topic is None or topic.name in NOT_FOR_CLIENTS:
            return None
        name = topic.name.encode()
        known = kept[key] = LedTopic(
            topic,
            _NAME_SIZE.pack(len(name)) + name,
            uvarint(len(name) + 1) + name,
            self._services.counters.topics[topic.name],
        )
        return known

    def partition(self, known: LedTopic, number: int) -> LedPartition | None:
        """One of a topic that `of` just gave; None where it is not led here."""
        found = known.partitions.get(number)
        if found is not None:
            return found
        services = self._services
        where = TopicPartition(known.topic.name, number)
        try:
            led = services.partitions.led(where)
        except KafkaError:
            return None
        state = services.partitions.state_of(where)
        required = known.topic.config.min_insync_replicas
        found = known.partitions[number] = LedPartition(
            where,
            led.log,
            led.epoch,
            known,
            is_replicated=state is not None and len(state.replicas) > 1,
            has_enough=services.replicas.in_sync(where) >= required,
        )
        return found


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")  # which no topic has in its name
