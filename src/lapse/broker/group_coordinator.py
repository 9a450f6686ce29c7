"""The coordinator of consumer groups: it runs `coordination`'s machines over `__consumer_offsets`.

A *shard* is what one partition of that topic looks after: its log, its groups, its offsets. It is
loaded when it is first asked for; whoever asks meanwhile waits. Machines live in the event loop and
do no I/O: a request goes in, effects come out. A `Store` goes to the shard's log, which says when
it is appended; a `Reply` ends the wait of one request. Offsets change in memory only by what was
appended, in the order of the log.

The topic is made when the first group is looked for, as in Kafka.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from lapse.base.config import BrokerConfig
from lapse.base.errors import ErrorCode, KafkaError, LapseError
from lapse.base.ids import TopicPartition
from lapse.broker.consumer_shard import ConsumerShard, Retired, Surroundings
from lapse.broker.internal_topic import InternalTopic
from lapse.broker.state_log import KeyValue, Parts, StateLog, Writer
from lapse.broker.timers import Timers
from lapse.broker.topics import NewTopic, Topics
from lapse.coordination.classic_events import (
    Answer,
    Commit,
    Effects,
    GroupSettings,
    Heartbeat,
    HeartbeatTaken,
    Join,
    Joined,
    Leave,
    Left,
    Reply,
    Request,
    Store,
    Sync,
    Synced,
    creates_group,
    refusal,
)
from lapse.coordination.classic_group import ClassicGroup
from lapse.coordination.classic_state import APPEND_ERRORS, State
from lapse.coordination.consumer_checks import check_commit, check_fetch
from lapse.coordination.consumer_events import Cluster, ConsumerGroupSettings
from lapse.coordination.entries import NO_VERSION, Entry, Marker, Write, encode_entry, fold
from lapse.coordination.offset_expiry import ExpiryRule
from lapse.coordination.offset_store import (
    Expiry,
    NewOffset,
    OffsetSettings,
    OffsetStore,
    Outcome,
)
from lapse.coordination.offsets import GROUP_METADATA, TYPES, GroupMetadataKey
from lapse.coordination.partitioning import partition_for
from lapse.log.markers import EndMarker
from lapse.metadata.image import Topic

logger = logging.getLogger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"

_METHODS: Mapping[type[Request], Callable[[ClassicGroup, Any, int], Effects]] = {
    Join: ClassicGroup.join,
    Sync: ClassicGroup.sync,
    Heartbeat: ClassicGroup.heartbeat,
    Leave: ClassicGroup.leave,
}


def new_id() -> str:
    """What makes a member id unique."""
    return str(uuid.uuid4())


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """What a broker's settings say of groups.

    Attributes:
        partitions: of the offsets topic, if it is yet to be made.
        topic_overrides: its settings then.
        expire_every_ms: `offsets.retention.check.interval.ms`.
        groups: of the classic protocol.
        consumers: of KIP-848.
    """

    groups: GroupSettings = field(default_factory=GroupSettings)
    consumers: ConsumerGroupSettings = field(default_factory=ConsumerGroupSettings)
    offsets: OffsetSettings = field(default_factory=OffsetSettings)
    partitions: int = 50
    topic_overrides: Mapping[str, str] = field(default_factory=dict)
    expire_every_ms: int = 600_000


def settings_of(config: BrokerConfig) -> CoordinatorSettings:
    """From the broker's settings."""
    return CoordinatorSettings(
        GroupSettings(
            session_timeout_min_ms=config.group_min_session_timeout_ms,
            session_timeout_max_ms=config.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            size_max=config.group_max_size,
        ),
        ConsumerGroupSettings(
            session_timeout_ms=config.group_consumer_session_timeout_ms,
            heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
            size_max=config.group_consumer_max_size,
            assignors=config.group_consumer_assignors,
            assignment_interval_ms=config.group_consumer_assignment_interval_ms,
            regex_refresh_interval_ms=config.group_consumer_regex_refresh_interval_ms,
        ),
        OffsetSettings(
            metadata_size_max=config.offset_metadata_max_bytes,
            retention_ms=config.offsets_retention_minutes * 60_000,
        ),
        partitions=config.offsets_topic_num_partitions,
        topic_overrides={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        },
        expire_every_ms=config.offsets_retention_check_interval_ms,
    )


class Shard:
    """The groups and offsets of one partition of the offsets topic.

    Attributes:
        groups: those of the classic protocol.
        consumers: those of KIP-848; no id is in both.
    """

    def __init__(
        self,
        log: StateLog,
        parts: Parts,
        settings: CoordinatorSettings,
        cluster: Callable[[], Cluster],
    ) -> None:
        self._log, self._clock, self._settings = log, parts.clock, settings
        self._partitions = parts.partitions
        self.groups: dict[str, ClassicGroup] = {}
        around = Surroundings(self._append, cluster, self._retire, new_id)
        self.consumers = ConsumerShard(parts, settings.consumers, around)
        self.offsets = OffsetStore(settings.offsets)
        self._waiting: dict[object, asyncio.Future[Answer]] = {}
        self._timers = Timers(parts.clock)
        self._tasks: set[asyncio.Task[ErrorCode]] = set()
        self._last: asyncio.Future[ErrorCode] | None = None

    async def load(self) -> None:
        """Read the log; raises CorruptData, StorageError."""
        events = await self._log.load(TYPES)
        for event in events:
            self.offsets.apply(event)
        now_ms, folded = self._clock.now_ms(), fold(events)
        self.consumers.load(folded)
        for key, value in folded.of(GROUP_METADATA).items():
            group = ClassicGroup.load(key.group, value, self._settings.groups, new_id, now_ms)
            self.groups[key.group] = group
            self._carry_out(group, group.tick(now_ms))

    # --- members --------------------------------------------------------------------------------

    async def ask(self, group_id: str, request: Request) -> Answer:
        """What a group answers, maybe much later."""
        while self.consumers.holds(group_id):
            # A group of KIP-848 is in the way, or is just being made or removed.
            try:
                is_free = await self.consumers.give_way(group_id, to_classic=creates_group(request))
            except KafkaError as e:
                return refusal(request, e.code).answer
            if not is_free:
                mixes = isinstance(request, Join) and self.consumers.has_members(group_id)
                code = (
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL if mixes else ErrorCode.UNKNOWN_MEMBER_ID
                )
                return refusal(request, code).answer
        group = self.groups.get(group_id)
        if group is None:
            if not creates_group(request):
                return refusal(request, ErrorCode.UNKNOWN_MEMBER_ID).answer
            group = ClassicGroup(group_id, self._settings.groups, new_id, self._clock.now_ms())
            self.groups[group_id] = group
        waits: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[request.token] = waits
        self._carry_out(group, _METHODS[type(request)](group, request, self._clock.now_ms()))
        try:
            return await waits
        finally:
            self._waiting.pop(request.token, None)

    def _carry_out(self, group: ClassicGroup, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Reply(token, answer):
                    waits = self._waiting.get(token)
                    if waits is not None and not waits.done():
                        waits.set_result(answer)
                case Store(ticket):
                    self._log.append([effect.record()], self._teller(group, ticket))
        if group.is_unused or group.state is State.DEAD:
            self._forget(group)
        else:
            self._set_timer(group)

    def _teller(self, group: ClassicGroup, ticket: int) -> Callable[[ErrorCode, int], None]:
        def stored(error: ErrorCode, _offset: int) -> None:
            self._carry_out(group, group.stored(ticket, error, self._clock.now_ms()))

        return stored

    def _forget(self, group: ClassicGroup) -> None:
        if self.groups.get(group.group_id) is group and not group.storing:
            del self.groups[group.group_id]
        self._timers.stop(group.group_id)

    # --- timers ---------------------------------------------------------------------------------

    def _set_timer(self, group: ClassicGroup) -> None:
        """Have the group ticked when something comes due."""
        self._timers.set(group.group_id, group.next_deadline_ms, lambda: self._tick(group))

    def _tick(self, group: ClassicGroup) -> None:
        self._carry_out(group, group.tick(self._clock.now_ms()))

    # --- from one protocol to the other ---------------------------------------------------------

    def _retire(self, group_id: str) -> Retired:
        """Take a classic group without members out of the way of one of KIP-848.

        Raises GROUP_ID_NOT_FOUND where it lives: groups that live are not converted.
        """
        group = self.groups.get(group_id)
        if group is None:
            return (), lambda _: None
        if group.state is not State.EMPTY or group.members.pending:
            words = f"Group {group_id} is not a consumer group."
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, words)
        _, effects = group.delete(self._clock.now_ms())
        stores = [effect for effect in effects if isinstance(effect, Store)]
        self._carry_out(group, tuple(e for e in effects if not isinstance(e, Store)))

        def told(error: ErrorCode) -> None:
            for store in stores:
                self._carry_out(group, group.stored(store.ticket, error, self._clock.now_ms()))

        key = GroupMetadataKey(group=group_id)
        return [Entry(GROUP_METADATA, key, None, NO_VERSION) for _ in stores], told

    # --- offsets --------------------------------------------------------------------------------

    async def commit(
        self, group_id: str, member: Commit, offsets: Mapping[TopicPartition, NewOffset],
        retention_ms: int,
    ) -> Mapping[TopicPartition, ErrorCode]:  # fmt: skip
        """Errors by partition; those without are in the log."""
        now_ms = self._partitions.noting_ms()  # offsets are kept from then on
        group, consumer = self.groups.get(group_id), self.consumers.groups.get(group_id)
        if group is not None:
            error = group.commit(member, now_ms)
            self._set_timer(group)
        elif consumer is not None:
            error = check_commit(consumer.state, member, _by_id(offsets))
        else:  # no group need be known for offsets to be kept
            outside = member.generation < 0
            error = ErrorCode.NONE if outside else ErrorCode.GROUP_ID_NOT_FOUND
        if error is not ErrorCode.NONE:
            return dict.fromkeys(offsets, error)
        return await self._settle(self.offsets.commit(group_id, offsets, now_ms, retention_ms))

    @property
    def end_offset(self) -> int:
        """Where its log ends: what a transaction is verified at before it commits offsets."""
        return self._log.end_offset

    async def commit_in_transaction(
        self, group_id: str, member: Commit, offsets: Mapping[TopicPartition, NewOffset],
        writer: Writer,
    ) -> Mapping[TopicPartition, ErrorCode]:  # fmt: skip
        """As `commit`, of offsets that are pending until the transaction's marker comes."""
        now_ms = self._partitions.noting_ms()  # offsets are kept from then on
        group, consumer = self.groups.get(group_id), self.consumers.groups.get(group_id)
        if group is not None:
            error = group.commit(member, now_ms)
        elif consumer is not None:
            error = check_commit(consumer.state, member, _by_id(offsets))
        else:
            error = ErrorCode.NONE if member.generation < 0 else ErrorCode.ILLEGAL_GENERATION
        if error is not ErrorCode.NONE:
            return dict.fromkeys(offsets, error)
        return await self._settle(self.offsets.commit(group_id, offsets, now_ms), writer)

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> ErrorCode:
        """Whether a group's offsets may be fetched; members of classic ones need not say who."""
        group, consumer = self.groups.get(group_id), self.consumers.groups.get(group_id)
        if consumer is not None:
            return check_fetch(consumer.state, member_id, epoch)
        return ErrorCode.NONE if group is None else group.check_fetch()

    async def end_transaction(self, writer: Writer, marker: EndMarker) -> ErrorCode:
        """Write a transaction's marker; what it committed counts from then on, or is dropped."""
        self._last = written = asyncio.get_running_loop().create_future()

        def done(error: ErrorCode, _offset: int) -> None:
            if error is ErrorCode.NONE:
                self.offsets.apply(Marker(writer.producer_id, commit=marker.commit))
            if not written.done():
                written.set_result(error)

        self._log.append_marker(writer, marker, done)
        return await asyncio.shield(written)

    async def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Errors by partition; raises KafkaError for the group as a whole."""
        group, consumer = self.groups.get(group_id), self.consumers.groups.get(group_id)
        asked = list(partitions)
        subscribed: list[str] = []
        if consumer is not None:
            subscribed = list(consumer.state.subscribed())
        elif group is not None:
            error = group.check_delete_offsets()
            if error is not ErrorCode.NONE:
                raise KafkaError(error, f"group {group_id}")
            subscribed = [tp.topic for tp in asked if group.is_subscribed_to(tp.topic)]
        elif group_id not in self.offsets.groups():
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id}")
        return await self._settle(self.offsets.delete(group_id, asked, subscribed))

    async def delete_group(self, group_id: str) -> ErrorCode:
        """Remove a group without members, and all its offsets."""
        if self.consumers.holds(group_id):
            error = await self.consumers.delete(
                group_id, lambda: self.offsets.delete_group(group_id)
            )
            if error is not None:
                return error
        group = self.groups.get(group_id)
        entries = self.offsets.delete_group(group_id)
        if group is None:
            return await self._append(entries) if entries else ErrorCode.GROUP_ID_NOT_FOUND
        error, effects = group.delete(self._clock.now_ms())
        return error or await self._remove(group, effects, entries)

    async def _remove(
        self, group: ClassicGroup, effects: Effects, entries: Sequence[Entry]
    ) -> ErrorCode:
        """A group's tombstone and those of its offsets, in one batch."""
        stores = [effect for effect in effects if isinstance(effect, Store)]
        self._carry_out(group, tuple(e for e in effects if not isinstance(e, Store)))
        error = await self._append(entries, [store.record() for store in stores])
        for store in stores:
            self._carry_out(group, group.stored(store.ticket, error, self._clock.now_ms()))
        return APPEND_ERRORS.get(error, error)

    async def _settle(
        self, outcome: Outcome, writer: Writer | None = None
    ) -> Mapping[TopicPartition, ErrorCode]:
        error = await self._append(outcome.entries, writer=writer)
        if error is ErrorCode.NONE:
            return outcome.errors
        fine = (tp for tp, code in outcome.errors.items() if code is ErrorCode.NONE)
        return {**outcome.errors, **dict.fromkeys(fine, APPEND_ERRORS.get(error, error))}

    async def _append(
        self,
        entries: Sequence[Entry],
        more: Sequence[KeyValue] = (),
        writer: Writer | None = None,
    ) -> ErrorCode:
        """Offsets, and then records of groups, in one batch."""
        if not entries and not more:
            return ErrorCode.NONE
        self._last = written = asyncio.get_running_loop().create_future()

        def done(error: ErrorCode, offset: int) -> None:
            if error is ErrorCode.NONE:
                producer_id = -1 if writer is None else writer.producer_id
                for n, entry in enumerate(entries):
                    self.offsets.apply(Write(offset + n, entry, producer_id))
            if not written.done():
                written.set_result(error)

        records = [encode_entry(e.type, e.key, e.value, e.version) for e in entries]
        self._log.append([*records, *more], done, writer)
        return await asyncio.shield(written)  # whoever asked may go; the append goes on

    def forget_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """The offsets of partitions that are no more, those on their way to the log included."""
        self._begin(self._forget_partitions(tuple(partitions)))

    async def _forget_partitions(self, partitions: Sequence[TopicPartition]) -> ErrorCode:
        if self._last is not None:
            await asyncio.wait([self._last])
        return await self._append(self.offsets.delete_partitions(partitions))

    def forget_strangers(self, topics: Mapping[str, uuid.UUID]) -> None:
        """The offsets of all topics but these: deletions that this shard was not there for."""
        self._begin(self._append(self.offsets.delete_strangers(topics)))

    def expire(self) -> None:
        """Remove offsets that are over their retention, and groups that nothing is left of.

        By the time that is believed: none go because a clock jumped.
        """
        past_ms = self._partitions.past_ms(self._settings.offsets.retention_ms)
        if past_ms is None:
            return
        now_ms = past_ms + self._settings.offsets.retention_ms
        for group_id in self.consumers.groups:
            self._begin(self._expire_consumers(group_id, now_ms))
        for group_id in {*self.offsets.groups(), *self.groups} - self.consumers.groups.keys():
            group = self.groups.get(group_id)
            rule = ExpiryRule() if group is None else group.expiry_rule()
            expiry = self.offsets.expire(group_id, rule, now_ms)
            if group is not None and expiry.is_group_unused and group.state is State.EMPTY:
                _, effects = group.delete(self._clock.now_ms())
                self._begin(self._remove(group, effects, expiry.entries))
            elif expiry.entries:
                self._begin(self._append(expiry.entries))

    async def _expire_consumers(self, group_id: str, now_ms: int) -> ErrorCode:
        """The same of a group of KIP-848: offsets of topics that no member reads age."""

        def expired() -> Expiry:
            group = self.consumers.groups.get(group_id)
            subscribed = frozenset[str]() if group is None else group.state.subscribed()
            rule = ExpiryRule(subscribed=subscribed)
            return self.offsets.expire(group_id, rule, now_ms)

        def all_of_it() -> Sequence[Entry] | None:
            expiry = expired()
            return expiry.entries if expiry.is_group_unused else None

        await self.consumers.delete(group_id, all_of_it)
        return await self._append(expired().entries)

    def _begin(self, work: Coroutine[Any, Any, ErrorCode]) -> None:
        """Something that nobody waits for; what fails is tried at the next turn."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- the end --------------------------------------------------------------------------------

    async def close(self) -> None:
        """Tell whoever waits to look for the group elsewhere, and write what is queued."""
        now_ms = self._clock.now_ms()
        for group in list(self.groups.values()):
            self._carry_out(group, group.unload(now_ms))
        self._timers.stop_all()
        await self.consumers.close()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._log.close()


def _by_id(offsets: Mapping[TopicPartition, NewOffset]) -> list[tuple[uuid.UUID, int]]:
    return [(offset.topic_id, tp.partition) for tp, offset in offsets.items()]


class GroupCoordinator:
    """All groups of this broker, which is every group: it is the only one."""

    def __init__(self, topics: Topics, parts: Parts, settings: CoordinatorSettings) -> None:
        self._topics, self._parts, self._settings = topics, parts, settings
        self._shards: dict[int, asyncio.Task[Shard]] = {}
        new = NewTopic(OFFSETS_TOPIC, settings.partitions, settings.topic_overrides)
        self._topic = InternalTopic(topics, new)
        self._expiring: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        topics.when_deleted.append(self.topic_deleted)

    def start(self) -> None:
        """Let offsets expire from now on."""
        self._expiring = asyncio.get_running_loop().create_task(self._expire_for_ever())

    async def require_topic(self) -> int:
        """Make the offsets topic if there is none; returns its partitions.

        Raises KafkaError where it cannot be made.
        """
        return (await self._topic.require()).partitions

    @overload
    async def ask(self, group_id: str, request: Join) -> Joined: ...
    @overload
    async def ask(self, group_id: str, request: Sync) -> Synced: ...
    @overload
    async def ask(self, group_id: str, request: Heartbeat) -> HeartbeatTaken: ...
    @overload
    async def ask(self, group_id: str, request: Leave) -> Left: ...

    async def ask(self, group_id: str, request: Request) -> Answer:
        """What a group answers, maybe much later; a refusal where nobody looks after it."""
        try:
            shard = await self.shard_of(group_id)
        except KafkaError as e:
            return refusal(request, e.code).answer
        return await shard.ask(group_id, request)

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
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {group_id}: {e}") from e

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
        """All of them, loaded; none where there was never a group. Raises KafkaError."""
        topic = self._topics.image.topics.get(OFFSETS_TOPIC)
        numbers = range(0 if topic is None else topic.partitions)
        try:
            return list(await asyncio.gather(*(self._shard(n) for n in numbers)))
        except LapseError as e:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(e)) from e

    async def _shard(self, number: int) -> Shard:
        partition = TopicPartition(OFFSETS_TOPIC, number)
        self._parts.partitions.get(partition)  # raises where its log is offline
        loading = self._shards.get(number)
        if loading is None or (loading.done() and loading.exception() is not None):
            loading = asyncio.get_running_loop().create_task(self._load(partition))
            self._shards[number] = loading
        return await asyncio.shield(loading)

    async def _load(self, partition: TopicPartition) -> Shard:
        log = StateLog(self._parts.partitions.get(partition), self._parts)
        shard = Shard(log, self._parts, self._settings, lambda: self._topics.image)
        await shard.load()
        topics = self._topics.image.topics.values()
        shard.forget_strangers({topic.name: topic.topic_id for topic in topics})
        return shard

    def _loaded(self) -> list[Shard]:
        tasks = (t for t in self._shards.values() if t.done() and not t.cancelled())
        return [task.result() for task in tasks if task.exception() is None]

    def topic_deleted(self, topic: Topic) -> None:
        """Forget what groups committed for a topic that is no more.

        Shards that are not loaded find out when they are. Without the offsets topic there are no
        groups: whoever waits is told to look for them again.
        """
        if topic.name == OFFSETS_TOPIC:
            for shard in self._loaded():
                task = asyncio.get_running_loop().create_task(shard.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
            self._shards.clear()
            return
        gone = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
        for shard in self._loaded():
            shard.forget_partitions(gone)

    async def _expire_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.expire_every_ms / 1000)
            try:
                for shard in await self.all_shards():
                    shard.expire()
            except KafkaError as e:
                logger.warning("no offsets expire now: %s", e)

    async def close(self) -> None:
        """End all waits and write what is queued."""
        if self._expiring is not None:
            self._expiring.cancel()
        for shard in self._loaded():
            await shard.close()
        if self._closing:
            await asyncio.wait(self._closing)
