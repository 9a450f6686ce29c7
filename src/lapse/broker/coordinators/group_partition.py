"""One partition of `__consumer_offsets`: its log, its groups, its offsets.

What Kafka calls GroupCoordinatorShard and GroupMetadataManager.

State machines run in the event loop and do no I/O: a request goes in, effects come out. A `Store`
goes to the shard's log, which reports when it is appended; a `Reply` ends the wait of one request.
Offsets change in memory only by what was appended, in the order of the log.

A group is in `groups` or in `consumers`, never in both. The code that converts a group holds the
lock that `consumers` has for its name, so that other requests wait meanwhile (`ask`); a classic
group that is being converted is not ticked, unless the conversion fails. One that failed may be in
the log all the same: what is loaded is the kind that was written last (`records.groups`).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lapse.base.clock import monotonic_ms
from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.base.readable import shortened
from lapse.base.times import after_ms
from lapse.broker.coordinators.consumer_groups import (
    NONE_RETIRED,
    ConsumerShard,
    Retired,
    Surroundings,
)
from lapse.broker.coordinators.coordinator_log import (
    BATCH_BYTES_MAX,
    KeyValue,
    Parts,
    StateLog,
    Writer,
)
from lapse.broker.coordinators.late_requests import NewestConnections
from lapse.broker.coordinators.timers import Jumps, Timers
from lapse.coordination.classic.events import (
    Answer,
    Commit,
    Effects,
    GroupSettings,
    Heartbeat,
    Join,
    Leave,
    Reply,
    Request,
    Store,
    Sync,
    creates_group,
    refusal,
)
from lapse.coordination.classic.group import ClassicGroup
from lapse.coordination.classic.state import APPEND_ERRORS, State
from lapse.coordination.consumer.checks import check_commit, check_fetch
from lapse.coordination.consumer.events import Cluster, ConsumerGroupSettings
from lapse.coordination.consumer.migration import upgraded
from lapse.coordination.consumer.state import ConsumerState, Draft
from lapse.coordination.offsets.expiry import ExpiryRule
from lapse.coordination.offsets.store import (
    CommitDecision,
    Expiry,
    NewOffset,
    OffsetSettings,
    OffsetStore,
)
from lapse.coordination.records.entries import (
    NO_VERSION,
    Entry,
    Folded,
    Marker,
    Write,
    encode_entry,
    fold,
)
from lapse.coordination.records.groups import settling
from lapse.coordination.records.offsets import (
    GROUP_METADATA,
    OFFSET_COMMIT,
    TYPES,
    GroupMetadataKey,
)
from lapse.log.markers import EndMarker

logger = logging.getLogger(__name__)

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
    """A broker's settings of groups.

    Attributes:
        partitions: of the offsets topic, used when the topic is created.
        replicas: of each of them, at most.
        topic_overrides: settings of the offsets topic, used when it is created.
        expire_every_ms: `offsets.retention.check.interval.ms`.
        groups: of the classic protocol.
        consumers: of KIP-848.
    """

    groups: GroupSettings = field(default_factory=GroupSettings)
    consumers: ConsumerGroupSettings = field(default_factory=ConsumerGroupSettings)
    offsets: OffsetSettings = field(default_factory=OffsetSettings)
    partitions: int = 50
    replicas: int = 1
    topic_overrides: Mapping[str, str] = field(default_factory=dict)
    expire_every_ms: int = 600_000


class Shard:
    """The groups and offsets of one partition of the offsets topic.

    Attributes:
        groups: the groups of the classic protocol.
        consumers: the groups of KIP-848; no id is in both.
    """

    def __init__(
        self,
        log: StateLog,
        parts: Parts,
        settings: CoordinatorSettings,
        cluster: Callable[[], Cluster],
    ) -> None:
        self._log, self._settings = log, settings
        self._partitions = parts.partitions
        self.groups: dict[str, ClassicGroup] = {}
        self._cluster = cluster
        around = Surroundings(
            self._append, cluster, self._predecessor, self._retire, self._succeed, new_id,
            self._now_ms,
        )  # fmt: skip
        self.consumers = ConsumerShard(parts, settings.consumers, around)
        self.offsets = OffsetStore(settings.offsets)
        self._heard = NewestConnections()
        self._converting: set[str] = set()
        self._when_stored: list[asyncio.Future[None]] = []
        self._waiting: dict[object, asyncio.Future[Answer]] = {}
        noting_ms = parts.partitions.noting_ms
        self._jumps = Jumps(noting_ms, partial(monotonic_ms, parts.clock))
        self._timers = Timers(noting_ms)
        self._tasks: set[asyncio.Task[ErrorCode]] = set()
        self._last: asyncio.Future[ErrorCode] | None = None
        self._queued: Counter[Any] = Counter()  # keys of commits that are to be appended

    async def load(self) -> None:
        """Read the log; raises CorruptData, StorageError."""
        events, settled, folded = await self._log.load(TYPES, self._read)
        if settled:
            for batch in settled:
                events += self._settle_kind(batch)
            folded = fold(events)
        now_ms = self._now_ms()
        self.consumers.load(folded)
        for key, value in folded.of(GROUP_METADATA).items():
            group = ClassicGroup.load(key.group, value, self._settings.groups, new_id, now_ms)
            self.groups[key.group] = group
            self._carry_out(group, group.tick(now_ms))

    def _read(
        self, events: Iterator[Write | Marker]
    ) -> tuple[list[Write | Marker], list[Sequence[Entry]], Folded]:
        """Take up offsets; what is of groups, what settles those of both kinds, and all of it."""
        of_groups: list[Write | Marker] = []
        for event in events:
            self.offsets.apply(event)
            if isinstance(event, Marker) or event.entry.type.id != OFFSET_COMMIT.id:
                of_groups.append(event)
        return of_groups, settling(of_groups), fold(of_groups)

    def _settle_kind(self, batch: Sequence[Entry]) -> list[Write]:
        """Write a group anew that the log has as both kinds; what its last entries are then.

        Now, so that it is in the log before anything that comes next of the group. If it fails, the
        next load does the same.
        """
        logger.warning("group %s is of both kinds in the log", shortened(batch[0].key.group))
        records = [encode_entry(e.type, e.key, e.value, e.version) for e in batch]
        self._log.append(records, lambda *_: None)
        return [Write(self._log.end_offset, entry) for entry in batch]

    # --- members --------------------------------------------------------------------------------

    async def handle(self, group_id: str, request: Request) -> Answer:
        """A group's response, maybe much later."""
        while self.consumers.holds(group_id):
            # A group of KIP-848, or one that is being created, removed or converted.
            answer = await self.consumers.handle(group_id, request)
            if answer is not None:
                return answer
        group = self.groups.get(group_id)
        if group is None:
            if not creates_group(request):
                return refusal(request, ErrorCode.UNKNOWN_MEMBER_ID).answer
            group = ClassicGroup(group_id, self._settings.groups, new_id, self._now_ms())
            self.groups[group_id] = group
        waits: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[request.token] = waits
        self._carry_out(group, _METHODS[type(request)](group, request, self._now_ms()))
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
                    self._log.append([effect.record()], partial(self._stored, group, ticket))
        if group.is_unused or group.state is State.DEAD:
            self._forget(group)
        else:
            self._set_timer(group)

    def _stored(
        self, group: ClassicGroup, ticket: int, error: ErrorCode, _offset: int = -1
    ) -> None:
        self._carry_out(group, group.stored(ticket, error, self._now_ms()))
        waiting, self._when_stored = self._when_stored, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _forget(self, group: ClassicGroup) -> None:
        if self.groups.get(group.group_id) is group and not group.storing:
            del self.groups[group.group_id]
        self._timers.stop(group.group_id)

    # --- timers ---------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        """The time to note by; where that has jumped, deadlines have moved along with it."""
        by_ms = self._jumps.take_ms()
        if by_ms:
            for group in self.groups.values():
                group.move_deadlines(by_ms)
            for consumer in self.consumers.groups.values():
                consumer.move_deadlines(by_ms)
        return self._partitions.noting_ms()

    def _set_timer(self, group: ClassicGroup) -> None:
        """Have the group ticked when something comes due."""
        self._timers.set(group.group_id, group.next_deadline_ms, lambda: self._tick(group))

    def _tick(self, group: ClassicGroup) -> None:
        if group.group_id not in self._converting:
            self._carry_out(group, group.tick(self._now_ms()))

    # --- from one protocol to the other ---------------------------------------------------------

    async def _predecessor(self, group_id: str) -> Draft:
        """The members of the classic group that a group of KIP-848 replaces, if there are any.

        Waits for the classic group's pending appends. Raises KafkaError where the group may not be
        converted.
        """
        while (group := self.groups.get(group_id)) is not None and group.storing:
            stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._when_stored.append(stored)
            await stored
        if group is None or group.state is State.EMPTY:
            return Draft(ConsumerState(group_id))
        return upgraded(group, self._settings.consumers, self._cluster())

    def _retire(self, group_id: str) -> Retired:
        """Stop a classic group that one of KIP-848 replaces: nothing happens to it meanwhile.

        A group without members is being deleted from now on; one with members hands them over.
        """
        group = self.groups.get(group_id)
        if group is None:
            return NONE_RETIRED
        entry = Entry(GROUP_METADATA, GroupMetadataKey(group=group_id), None, NO_VERSION)
        if group.state is State.EMPTY:
            _, effects = group.delete(self._now_ms())
            return [entry], self._deletion_callback(group, effects)
        self._converting.add(group_id)

        def done(error: ErrorCode) -> None:
            self._converting.discard(group_id)
            if error is ErrorCode.NONE:
                self._carry_out(group, group.hand_over(self._now_ms()))
            else:
                self._set_timer(group)

        return [entry], done

    def _deletion_callback(
        self, group: ClassicGroup, effects: Effects
    ) -> Callable[[ErrorCode], None]:
        """Carry out a deletion's effects but the stores; the callback reports these as stored."""
        stores = [effect for effect in effects if isinstance(effect, Store)]
        self._carry_out(group, tuple(e for e in effects if not isinstance(e, Store)))

        def done(error: ErrorCode) -> None:
            for store in stores:
                self._stored(group, store.ticket, error)

        return done

    def _succeed(self, group: ClassicGroup) -> None:
        """Put a classic group in the place of one of KIP-848; it is already in the log."""
        self.groups[group.group_id] = group
        self._carry_out(group, ())

    # --- offsets --------------------------------------------------------------------------------

    async def commit(
        self, group_id: str, member: Commit, offsets: Mapping[TopicPartition, NewOffset],
        retention_ms: int,
    ) -> Mapping[TopicPartition, ErrorCode]:  # fmt: skip
        """Errors by partition; those without are in the log."""
        now_ms = self._now_ms()  # offsets are kept from then on
        error = self._check_commit(group_id, member, offsets, now_ms, ErrorCode.GROUP_ID_NOT_FOUND)
        if error is not ErrorCode.NONE:
            return dict.fromkeys(offsets, error)
        return await self._settle(self.offsets.commit(group_id, offsets, now_ms, retention_ms))

    @property
    def end_offset(self) -> int:
        """Where its log ends: what a transaction is verified at before it commits offsets."""
        return self._log.end_offset

    async def commit_in_transaction(
        self, group_id: str, member: Commit, offsets: Mapping[TopicPartition, NewOffset],
        writer: Writer, connection: int,
    ) -> Mapping[TopicPartition, ErrorCode]:  # fmt: skip
        """As `commit`, of offsets that are pending until the transaction's marker comes.

        Raises LateRequestError where they may be of an earlier transaction (`late_requests`):
        they would take the group back.
        """
        producer = (writer.producer_id, group_id)
        self._heard.require_newest(producer, connection, f"TxnOffsetCommit of group {group_id!r}")
        now_ms = self._now_ms()  # offsets are kept from then on
        error = self._check_commit(group_id, member, offsets, now_ms, ErrorCode.ILLEGAL_GENERATION)
        if error is not ErrorCode.NONE:
            return dict.fromkeys(offsets, error)
        errors = await self._settle(self.offsets.commit(group_id, offsets, now_ms), writer)
        if ErrorCode.NONE in errors.values():
            self._heard.heard(producer, connection)
        return errors

    def _check_commit(
        self, group_id: str, member: Commit, offsets: Mapping[TopicPartition, NewOffset],
        now_ms: int, unknown: ErrorCode,
    ) -> ErrorCode:  # fmt: skip
        """Whether a member may commit; `unknown` where it names a group that does not exist."""
        group, consumer = self.groups.get(group_id), self.consumers.groups.get(group_id)
        if group is not None:
            error = group.commit(member, now_ms)
            self._set_timer(group)
            return error
        if consumer is not None:
            named = [(offset.topic_id, tp.partition) for tp, offset in offsets.items()]
            return check_commit(consumer.state, member, named)
        # Offsets may be kept without a group.
        return ErrorCode.NONE if member.generation < 0 else unknown

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> ErrorCode:
        """Whether a group's offsets may be fetched; classic groups need no member id."""
        group, consumer = self.groups.get(group_id), self.consumers.groups.get(group_id)
        if consumer is not None:
            return check_fetch(consumer.state, member_id, epoch)
        return ErrorCode.NONE if group is None else group.check_fetch()

    async def end_transaction(self, writer: Writer, marker: EndMarker) -> ErrorCode:
        """Write a transaction's marker; its offsets then take effect (commit) or are dropped."""
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
        requested = list(partitions)
        subscribed: list[str] = []
        if consumer is not None:
            subscribed = list(consumer.state.subscribed())
        elif group is not None:
            error = group.check_delete_offsets()
            if error is not ErrorCode.NONE:
                raise KafkaError(error, f"group {group_id}")
            subscribed = [tp.topic for tp in requested if group.is_subscribed_to(tp.topic)]
        elif group_id not in self.offsets.groups():
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id}")
        return await self._settle(self.offsets.delete(group_id, requested, subscribed))

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
        error, effects = group.delete(self._now_ms())
        return error or await self._remove(group, effects, entries)

    async def _remove(
        self, group: ClassicGroup, effects: Effects, entries: Sequence[Entry]
    ) -> ErrorCode:
        """Append a group's tombstone and those of its offsets in one batch."""
        records = [effect.record() for effect in effects if isinstance(effect, Store)]
        done = self._deletion_callback(group, effects)
        error = await self._append(entries, records)
        done(error)
        return APPEND_ERRORS.get(error, error)

    async def _settle(
        self, outcome: CommitDecision, writer: Writer | None = None
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
        """Append offsets, and then records of groups, in one batch."""
        if not entries and not more:
            return ErrorCode.NONE
        self._last = written = asyncio.get_running_loop().create_future()
        commits = [entry.key for entry in entries if entry.value is not None]
        self._queued.update(commits)

        def done(error: ErrorCode, offset: int) -> None:
            for key in commits:
                self._queued[key] -= 1
                if not self._queued[key]:
                    del self._queued[key]
            if error is ErrorCode.NONE:
                producer_id = -1 if writer is None else writer.producer_id
                for n, entry in enumerate(entries):
                    self.offsets.apply(Write(offset + n, entry, producer_id))
            if not written.done():
                written.set_result(error)

        records = [encode_entry(e.type, e.key, e.value, e.version) for e in entries]
        self._log.append([*records, *more], done, writer)
        return await asyncio.shield(written)  # the append goes on if the caller is cancelled

    def forget_topic(self, topic: str, topic_id: uuid.UUID) -> None:
        """Drop the offsets of a deleted topic, also those not yet appended to the log."""
        self._begin(self._take_out(lambda one: self.offsets.delete_topic(one, topic, topic_id)))

    def forget_strangers(self, topics: Mapping[str, uuid.UUID]) -> None:
        """Drop the offsets of all topics but these: others were deleted before the shard loaded."""
        self._begin(self._take_out(lambda one: self.offsets.delete_strangers(one, topics)))

    async def _take_out(self, due: Callable[[str], Iterable[Entry]]) -> ErrorCode:
        """Append what is `due` of each group, a batch at a time: all of it may be too much for one.

        A commit that waits to be appended is to a topic that has the name by now, as all before
        are in memory; it takes the place of the offset that is to go, and stays.
        """
        if self._last is not None:
            await asyncio.wait([self._last])
        groups = deque(self.offsets.groups())
        while True:
            entries: list[Entry] = []
            size = 0
            while groups and size < BATCH_BYTES_MAX:
                for entry in due(groups[0]):
                    if entry.key not in self._queued:
                        entries.append(entry)
                        size += len(encode_entry(entry.type, entry.key, None)[0])
                    if size >= BATCH_BYTES_MAX:
                        break  # the rest of it comes with the next batch
                else:
                    groups.popleft()
            error = await self._append(entries)
            if not entries or error is not ErrorCode.NONE:
                return error

    def expire(self) -> None:
        """Remove offsets past their retention, and groups that have neither members nor offsets.

        By the time that the broker believes: none are removed because a clock jumped. Each group
        is looked at once more by the step that appends, between which and its look no commit comes.
        """
        past_ms = self._partitions.past_ms(self._settings.offsets.retention_ms)
        if past_ms is None:
            return
        now_ms = after_ms(past_ms, self._settings.offsets.retention_ms)
        for group_id in self.consumers.groups:
            self._begin(self._expire_consumers(group_id, now_ms))
        for group_id in {*self.offsets.groups(), *self.groups} - self.consumers.groups.keys():
            expiry = self._expired_of_classic(group_id, now_ms)
            if expiry.entries or expiry.is_group_unused:
                self._begin(self._expire_classic(group_id, now_ms))

    def _expired(self, group_id: str, rule: ExpiryRule | None, now_ms: int) -> Expiry:
        """What of a group may go, but for what is being committed: that takes its place, and stays.

        Its tombstone would come behind it in the log.
        """
        expiry = self.offsets.expire(group_id, rule, now_ms)
        entries = tuple(entry for entry in expiry.entries if entry.key not in self._queued)
        is_unused = expiry.is_group_unused and all(key.group != group_id for key in self._queued)
        return Expiry(entries, is_unused)

    def _expired_of_classic(self, group_id: str, now_ms: int) -> Expiry:
        """The same of a classic group, or of offsets that no group has."""
        group = self.groups.get(group_id)
        rule = ExpiryRule() if group is None else group.expiry_rule()
        return self._expired(group_id, rule, now_ms)

    async def _expire_classic(self, group_id: str, now_ms: int) -> ErrorCode:
        if self.consumers.holds(group_id):
            return ErrorCode.NONE  # one of KIP-848 by now, or soon
        group, expiry = self.groups.get(group_id), self._expired_of_classic(group_id, now_ms)
        if group is None or group.state is not State.EMPTY or not expiry.is_group_unused:
            return await self._append(expiry.entries)
        _, effects = group.delete(self._now_ms())
        return await self._remove(group, effects, expiry.entries)

    async def _expire_consumers(self, group_id: str, now_ms: int) -> ErrorCode:
        """The same for a group of KIP-848: offsets of topics without a subscriber expire."""

        def expired() -> Expiry:
            group = self.consumers.groups.get(group_id)
            subscribed = frozenset[str]() if group is None else group.state.subscribed()
            return self._expired(group_id, ExpiryRule(subscribed=subscribed), now_ms)

        def all_of_it() -> Sequence[Entry] | None:
            expiry = expired()
            return expiry.entries if expiry.is_group_unused else None

        await self.consumers.delete(group_id, all_of_it)
        return await self._append(expired().entries)

    def _begin(self, work: Coroutine[Any, Any, ErrorCode]) -> None:
        """Start work in the background; failed work is retried at the next turn."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- the end --------------------------------------------------------------------------------

    async def close(self) -> None:
        """Answer waiting clients that the coordinator is elsewhere, and write what is queued."""
        await self.consumers.close()  # first: a group may be on its way back to the classic ones
        now_ms = self._now_ms()
        for group in list(self.groups.values()):
            self._carry_out(group, group.unload(now_ms))
        self._timers.stop_all()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._log.close()
