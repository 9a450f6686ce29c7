"""The coordinator of consumer groups: it runs `coordination`'s machines over `__consumer_offsets`.

What Kafka calls GroupCoordinatorService.

Each partition of that topic is a *shard* (`group_partition`), looked after by the broker that leads
it. A shard is loaded at the first request for one of its groups; other requests wait meanwhile. It
ends when another broker leads its partition: who waits for it is told at once, and what is loaded
then ends as soon as it is. The topic is created when a client first looks for a group, as in Kafka.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

from lapse.base.config import BrokerConfig
from lapse.base.errors import ErrorCode, KafkaError, LapseError
from lapse.base.ids import TopicPartition
from lapse.broker.coordinators.coordinator_log import Parts, StateLog, Writer
from lapse.broker.coordinators.group_partition import CoordinatorSettings, Shard
from lapse.broker.coordinators.internal_topic import InternalTopic
from lapse.broker.logs.led import Led
from lapse.broker.logs.topics import NewTopic, Topics
from lapse.coordination.classic.events import (
    Answer,
    GroupSettings,
    Heartbeat,
    HeartbeatTaken,
    Join,
    Joined,
    Leave,
    Left,
    Request,
    Sync,
    Synced,
    refusal,
)
from lapse.coordination.consumer.events import ConsumerGroupSettings, MigrationPolicy
from lapse.coordination.offsets.store import OffsetSettings
from lapse.coordination.partitioning import partition_for
from lapse.log.markers import EndMarker
from lapse.metadata.image import Topic

logger = logging.getLogger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"


def settings_of(config: BrokerConfig) -> CoordinatorSettings:
    """From the broker's settings."""
    classic = GroupSettings(
        session_timeout_min_ms=config.group_min_session_timeout_ms,
        session_timeout_max_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        size_max=config.group_max_size,
    )
    return CoordinatorSettings(
        classic,
        ConsumerGroupSettings(
            session_timeout_ms=config.group_consumer_session_timeout_ms,
            heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
            size_max=config.group_consumer_max_size,
            assignors=config.group_consumer_assignors,
            assignment_interval_ms=config.group_consumer_assignment_interval_ms,
            regex_refresh_interval_ms=config.group_consumer_regex_refresh_interval_ms,
            migration=MigrationPolicy(config.group_consumer_migration_policy),
            classic=classic,
        ),
        OffsetSettings(
            metadata_size_max=config.offset_metadata_max_bytes,
            retention_ms=config.offsets_retention_minutes * 60_000,
        ),
        partitions=config.offsets_topic_num_partitions,
        replicas=config.offsets_topic_replication_factor,
        topic_overrides={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        },
        expire_every_ms=config.offsets_retention_check_interval_ms,
    )


@dataclass(frozen=True, slots=True)
class _Loading:
    """A shard, loaded or not yet, and in which epoch of its partition.

    `left` is done once it is not this broker's any more.
    """

    led: Led
    shard: asyncio.Task[Shard]
    left: asyncio.Future[None]

    @property
    def is_loaded(self) -> bool:
        done = self.shard.done() and not self.shard.cancelled()
        return done and self.shard.exception() is None

    @property
    def has_failed(self) -> bool:
        return self.shard.done() and not self.is_loaded


class GroupCoordinator:
    """The groups whose partitions this broker leads."""

    def __init__(self, topics: Topics, parts: Parts, settings: CoordinatorSettings) -> None:
        self._topics, self._parts, self._settings = topics, parts, settings
        self._shards: dict[int, _Loading] = {}
        new = NewTopic(
            OFFSETS_TOPIC, settings.partitions, settings.topic_overrides, settings.replicas
        )
        self._topic = InternalTopic(topics, new)
        self._expiring: asyncio.Task[None] | None = None
        self._closing: dict[asyncio.Task[None], Led] = {}
        topics.when_deleted.append(self.topic_deleted)
        parts.replicas.when_led.append(self.leave_others)

    def start(self) -> None:
        """Let offsets expire from now on."""
        self._expiring = asyncio.get_running_loop().create_task(self._expire_for_ever())

    async def require_topic(self) -> int:
        """Make the offsets topic if there is none; returns its partitions.

        Raises KafkaError where it cannot be made.
        """
        return (await self._topic.require()).partitions

    @overload
    async def handle(self, group_id: str, request: Join) -> Joined: ...
    @overload
    async def handle(self, group_id: str, request: Sync) -> Synced: ...
    @overload
    async def handle(self, group_id: str, request: Heartbeat) -> HeartbeatTaken: ...
    @overload
    async def handle(self, group_id: str, request: Leave) -> Left: ...

    async def handle(self, group_id: str, request: Request) -> Answer:
        """A group's response, maybe much later; a refusal where its shard cannot be loaded."""
        try:
            shard = await self.shard_of(group_id)
        except KafkaError as e:
            return refusal(request, e.code).answer
        return await shard.handle(group_id, request)

    async def partition_of(self, group_id: str) -> TopicPartition:
        """The partition of the offsets topic that looks after a group; raises KafkaError."""
        number = partition_for(group_id, await self.require_topic())
        return TopicPartition(OFFSETS_TOPIC, number)

    async def shard_of(self, group_id: str) -> Shard:
        """The shard that looks after a group, loaded; raises KafkaError."""
        try:
            count = await self.require_topic()
            return await self._shard(partition_for(group_id, count))
        except LapseError as e:
            elsewhere = isinstance(e, KafkaError) and e.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
            code = ErrorCode.NOT_COORDINATOR if elsewhere else ErrorCode.COORDINATOR_NOT_AVAILABLE
            raise KafkaError(code, f"group {group_id}: {e}") from e

    async def end_transaction(self, number: int, writer: Writer, marker: EndMarker) -> ErrorCode:
        """Write a transaction's marker into a partition of the offsets topic."""
        try:
            shard = await self._shard(number)
        except KafkaError as e:
            return e.code
        except LapseError as e:
            logger.warning("%s-%d cannot be loaded for a marker: %s", OFFSETS_TOPIC, number, e)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return await shard.end_transaction(writer, marker)

    async def all_shards(self) -> list[Shard]:
        """The shards of this broker, loaded; none where there was never a group.

        Raises KafkaError.
        """
        try:
            return list(await asyncio.gather(*(self._shard(n) for n in self._own_numbers())))
        except LapseError as e:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(e)) from e

    def _own_numbers(self) -> list[int]:
        """The partitions of the offsets topic that this broker leads, as far as it knows."""
        topic, me = self._topics.image.topics.get(OFFSETS_TOPIC), self._parts.partitions.node_id
        return [
            number
            for number in range(0 if topic is None else topic.partitions)
            if topic is not None and (not topic.states or topic.states[number].leader == me)
        ]

    async def _shard(self, number: int) -> Shard:
        """A shard, loaded; raises LapseError, of which NOT_LEADER_OR_FOLLOWER says: elsewhere."""
        partition = TopicPartition(OFFSETS_TOPIC, number)
        led = self._parts.partitions.led(partition)  # raises where its log is offline, or elsewhere
        loading = self._shards.get(number)
        if loading is not None and loading.led != led:
            self._leave(number)
            loading = None
        if loading is None or loading.has_failed:
            loop = asyncio.get_running_loop()
            before = [task for task, ended in self._closing.items() if ended == led]
            task = loop.create_task(self._load(led, before))
            loading = self._shards[number] = _Loading(led, task, loop.create_future())
        if not loading.is_loaded:
            ends: list[asyncio.Future[Any]] = [loading.shard, loading.left]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if loading.left.done():
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition} was left while it was loaded"
            )
        return loading.shard.result()

    async def _load(self, led: Led, before: Sequence[asyncio.Task[None]]) -> Shard:
        """Load a shard once those before it, in the same epoch, append nothing any more.

        What one of another epoch has appended was there before this one began.
        """
        if before:
            await asyncio.wait(before)
        log = StateLog(led, self._parts)
        shard = Shard(log, self._parts, self._settings, lambda: self._topics.image)
        await shard.load()
        topics = self._topics.image.topics.values()
        shard.forget_strangers({topic.name: topic.topic_id for topic in topics})
        return shard

    def _loaded(self) -> list[Shard]:
        return [one.shard.result() for one in list(self._shards.values()) if one.is_loaded]

    def leave_others(self) -> None:
        """End the shards whose partitions another broker leads, or this one in another epoch.

        Their waiting clients get the error that makes them look for the coordinator again.
        """
        for number, loading in list(self._shards.items()):
            try:
                led = self._parts.partitions.led(TopicPartition(OFFSETS_TOPIC, number))
            except KafkaError as e:
                if e.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    self._leave(number)
            else:
                if led != loading.led:
                    self._leave(number)

    def _leave(self, number: int) -> None:
        """End a shard, and the waits for it.

        A load under way goes on: its thread does, and whoever waits for a task that is cancelled
        takes itself for cancelled.
        """
        loading = self._shards.pop(number)
        loading.left.set_result(None)
        task = asyncio.get_running_loop().create_task(self._close(loading))
        self._closing[task] = loading.led
        task.add_done_callback(self._closing.pop)

    async def _close(self, loading: _Loading) -> None:
        await asyncio.wait([loading.shard])
        if loading.is_loaded:
            await loading.shard.result().close()

    def committed(self) -> list[tuple[str, TopicPartition, int]]:
        """Group, partition and offset of all committed offsets in shards that are loaded.

        From any thread, as of about now.
        """
        return [offset for shard in self._loaded() for offset in shard.offsets.committed()]

    def topic_deleted(self, topic: Topic) -> None:
        """Forget the offsets that groups committed for a deleted topic.

        Shards that are not loaded do so when they are loaded. Without the offsets topic there are
        no groups: waiting clients get the error that makes them look for the coordinator again.
        """
        if topic.name == OFFSETS_TOPIC:
            for number in list(self._shards):
                self._leave(number)
            return
        for shard in self._loaded():
            shard.forget_topic(topic.name, topic.topic_id)

    async def _expire_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.expire_every_ms / 1000)
            for number in self._own_numbers():
                await self._expire(number)

    async def _expire(self, number: int) -> None:
        """Have offsets of one partition expire; what goes wrong there stops no other."""
        try:
            (await self._shard(number)).expire()
        except LapseError as e:
            logger.warning("%s-%d: no offsets expire now: %s", OFFSETS_TOPIC, number, e)
        except Exception:  # or nothing would expire any more
            logger.exception("%s-%d: no offsets expire now", OFFSETS_TOPIC, number)

    async def close(self) -> None:
        """End all waits and write what is queued."""
        if self._expiring is not None:
            self._expiring.cancel()
        for number in list(self._shards):
            self._leave(number)
        if self._closing:
            await asyncio.wait(self._closing)
