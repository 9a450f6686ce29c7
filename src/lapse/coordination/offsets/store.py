"""The committed offsets of one partition of `__consumer_offsets`, all its groups; without I/O.

What a request wants is returned as entries to append; the table changes only by `apply`, with what
was appended and where. So loading a log and living through it are the same, and what could not be
stored never shows. Offsets of a transaction are pending until its marker; one that was written
before another commit of the same partition loses against it, as it does in the log.

Who may commit, fetch or delete is the group's to say (`classic.group`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.base.times import after_ms
from lapse.coordination.offsets.expiry import ExpiryRule
from lapse.coordination.records.entries import NO_VERSION, Entry, Marker, Write
from lapse.coordination.records.offsets import OFFSET_COMMIT, OffsetCommitKey, OffsetCommitValue
from lapse.wire.declaration import ZERO_UUID

NO_OFFSET = -1
NO_TIMESTAMP_MS = -1
NO_RETENTION_MS = -1

# The only version of the value that can say when an offset goes.
_VERSION_WITH_EXPIRY = 1


@dataclass(frozen=True, slots=True)
class OffsetSettings:
    """A broker's settings of committed offsets, with Kafka's defaults.

    Attributes:
        metadata_size_max: `offset.metadata.max.bytes`, which Kafka counts in UTF-16 units.
        retention_ms: `offsets.retention.minutes` (or `.ms`), in milliseconds.
    """

    metadata_size_max: int = 4_096
    retention_ms: int = 7 * 24 * 60 * 60 * 1_000


@dataclass(frozen=True, slots=True)
class NewOffset:
    """An offset that a client commits.

    Attributes:
        leader_epoch: -1 where the client does not know (KIP-320).
        commit_timestamp_ms: -1: now.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str | None = None
    commit_timestamp_ms: int = NO_TIMESTAMP_MS
    topic_id: uuid.UUID = ZERO_UUID


@dataclass(frozen=True, slots=True)
class CommitDecision:
    """What becomes of each partition of a request, and the entries it takes; NONE rests on them."""

    errors: Mapping[TopicPartition, ErrorCode] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    """A committed offset, or why there is none; offset -1 without an error: never committed."""

    error: ErrorCode = ErrorCode.NONE
    offset: int = NO_OFFSET
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Expiry:
    """Tombstones of what expired; `is_group_unused`: no offsets are left, nor will any come."""

    entries: tuple[Entry, ...]
    is_group_unused: bool


@dataclass(frozen=True, slots=True)
class _Kept:
    """A value, and the offset of its record."""

    at: int
    value: OffsetCommitValue


_Table = dict[str, dict[TopicPartition, _Kept]]


class OffsetStore:
    """Offsets by group and partition, and those of open transactions by producer id."""

    def __init__(self, settings: OffsetSettings) -> None:
        self._settings = settings
        self._committed: _Table = {}
        self._pending: dict[int, _Table] = {}
        self._open: dict[str, set[int]] = {}

    # --- the log ------------------------------------------------------------------------------

    def apply(self, event: Write | Marker) -> None:
        """Take in what was appended, or is loaded, in the order of the log; other types pass."""
        match event:
            case Marker(producer_id, commit):
                self._end(producer_id, commit=commit)
            case Write(at, Entry(type, key, value), producer_id) if type == OFFSET_COMMIT:
                tp = TopicPartition(key.topic, key.partition)
                if value is None:
                    self._forget(key.group, tp)
                elif producer_id < 0:
                    self._committed.setdefault(key.group, {})[tp] = _Kept(at, value)
                else:
                    table = self._pending.setdefault(producer_id, {})
                    table.setdefault(key.group, {})[tp] = _Kept(at, value)
                    self._open.setdefault(key.group, set()).add(producer_id)
            case _:
                pass

    def _end(self, producer_id: int, *, commit: bool) -> None:
        for group_id, offsets in self._pending.pop(producer_id, {}).items():
            self._open[group_id].discard(producer_id)
            if not self._open[group_id]:
                del self._open[group_id]
            for tp, kept in offsets.items() if commit else ():
                committed = self._committed.setdefault(group_id, {})
                if tp not in committed or committed[tp].at < kept.at:
                    committed[tp] = kept

    def _forget(self, group_id: str, tp: TopicPartition) -> None:
        """A tombstone also takes what open transactions wrote before it."""
        for producer_id in self._open.get(group_id, ()):
            self._pending[producer_id][group_id].pop(tp, None)
        offsets = self._committed.get(group_id, {})
        offsets.pop(tp, None)
        if not offsets:
            self._committed.pop(group_id, None)

    # --- requests -----------------------------------------------------------------------------

    def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, NewOffset],
        now_ms: int,
        retention_ms: int = NO_RETENTION_MS,
    ) -> CommitDecision:
        """OffsetCommit; or TxnOffsetCommit, whose entries are to be appended in its transaction.

        `retention_ms`: of versions 2 to 4, an expiry of these offsets' own. Metadata that is too
        large is refused with OFFSET_METADATA_TOO_LARGE, the other partitions are committed.
        """
        errors, entries = {}, []
        expire_ms = (
            NO_TIMESTAMP_MS if retention_ms == NO_RETENTION_MS else after_ms(now_ms, retention_ms)
        )
        for tp, new in offsets.items():
            if _utf16_units(new.metadata or "") > self._settings.metadata_size_max:
                errors[tp] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            errors[tp] = ErrorCode.NONE
            has_time = new.commit_timestamp_ms != NO_TIMESTAMP_MS
            value = OffsetCommitValue(
                offset=new.offset,
                leader_epoch=max(new.leader_epoch, -1),
                metadata=new.metadata or "",
                commit_timestamp=new.commit_timestamp_ms if has_time else now_ms,
                expire_timestamp=expire_ms,
                topic_id=new.topic_id,
            )
            expires = expire_ms != NO_TIMESTAMP_MS
            version = _VERSION_WITH_EXPIRY if expires else OFFSET_COMMIT.written
            entries.append(Entry(OFFSET_COMMIT, _key(group_id, tp), value, version))
        return CommitDecision(errors, tuple(entries))

    def fetch(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
    ) -> Mapping[TopicPartition, FetchedOffset]:
        """OffsetFetch; without `partitions` all that are committed.

        `require_stable`: UNSTABLE_OFFSET_COMMIT for what an open transaction will change (KIP-447).
        """
        offsets = self._committed.get(group_id, {})
        found = {}
        for tp in offsets if partitions is None else partitions:
            kept = offsets.get(tp)
            if require_stable and self.is_pending(group_id, tp):
                found[tp] = FetchedOffset(ErrorCode.UNSTABLE_OFFSET_COMMIT)
            elif kept is None:
                found[tp] = FetchedOffset()
            else:
                value = kept.value
                found[tp] = FetchedOffset(
                    ErrorCode.NONE, value.offset, value.leader_epoch, value.metadata
                )
        return found

    def committed(self) -> list[tuple[str, TopicPartition, int]]:
        """Group, partition and offset of all that is committed; from any thread."""
        return [
            (group_id, tp, kept.value.offset)
            for group_id, offsets in list(self._committed.items())
            for tp, kept in list(offsets.items())
        ]

    def delete(
        self, group_id: str, partitions: Iterable[TopicPartition], subscribed: Iterable[str] = ()
    ) -> CommitDecision:
        """OffsetDelete (KIP-496): GROUP_SUBSCRIBED_TO_TOPIC for topics that members read.

        Without an offset there is nothing to delete, and no error.
        """
        read = frozenset(subscribed)
        errors = {
            tp: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if tp.topic in read else ErrorCode.NONE
            for tp in partitions
        }
        gone = (tp for tp, error in errors.items() if error is ErrorCode.NONE)
        entries = (_tombstone(group_id, tp) for tp in gone if self.has_any(group_id, tp))
        return CommitDecision(errors, tuple(entries))

    def delete_group(self, group_id: str) -> tuple[Entry, ...]:
        """Tombstones of all a group's offsets, for DeleteGroups."""
        return tuple(_tombstone(group_id, tp) for tp in self._topic_ids_of(group_id))

    def delete_topic(self, group_id: str, topic: str, topic_id: uuid.UUID) -> tuple[Entry, ...]:
        """Tombstones of a group's offsets of a topic that is no more.

        Not of one that has its name by now; where a record has no id, the name decides.
        """
        return tuple(
            _tombstone(group_id, tp)
            for tp, own_id in self._topic_ids_of(group_id).items()
            if tp.topic == topic and own_id in {ZERO_UUID, topic_id}
        )

    def delete_strangers(self, group_id: str, topics: Mapping[str, uuid.UUID]) -> tuple[Entry, ...]:
        """Tombstones of a group's offsets of topics that are not these.

        A topic that was deleted and made anew has another id; where a record has none (it is
        older than version 4), the name decides.
        """
        return tuple(
            _tombstone(group_id, tp)
            for tp, topic_id in self._topic_ids_of(group_id).items()
            if tp.topic not in topics or topic_id not in {ZERO_UUID, topics[tp.topic]}
        )

    def expire(self, group_id: str, rule: ExpiryRule | None, now_ms: int) -> Expiry:
        """What of a group is over its retention (KIP-211); pending offsets hold theirs.

        A group without members, of which nothing is left, can be removed in the same append.
        """
        offsets = self._committed.get(group_id, {})
        retention_ms = self._settings.retention_ms
        entries = tuple(
            _tombstone(group_id, tp)
            for tp, kept in offsets.items()
            if rule is not None
            and not self.is_pending(group_id, tp)
            and rule.is_expired(tp.topic, kept.value, retention_ms, now_ms)
        )
        is_unused = len(entries) == len(offsets) and group_id not in self._open
        return Expiry(entries, is_unused)

    # --- questions ----------------------------------------------------------------------------

    def groups(self) -> Iterator[str]:
        """Groups with offsets, committed or pending, in order of their ids."""
        return iter(sorted(self._committed.keys() | self._open.keys()))

    def is_pending(self, group_id: str, tp: TopicPartition) -> bool:
        """Whether an open transaction wrote an offset."""
        writers = self._open.get(group_id, ())
        return any(tp in self._pending[p][group_id] for p in writers)

    def has_any(self, group_id: str, tp: TopicPartition) -> bool:
        """Whether there is an offset, committed or pending."""
        return tp in self._committed.get(group_id, {}) or self.is_pending(group_id, tp)

    def _topic_ids_of(self, group_id: str) -> dict[TopicPartition, uuid.UUID]:
        """The partitions of a group's offsets; one that was written twice has the later id."""
        tables = [self._pending[p][group_id] for p in sorted(self._open.get(group_id, ()))]
        tables = [self._committed.get(group_id, {}), *tables]
        newest: dict[TopicPartition, _Kept] = {}
        for table in tables:
            for tp, kept in table.items():
                if tp not in newest or newest[tp].at < kept.at:
                    newest[tp] = kept
        return {tp: kept.value.topic_id for tp, kept in newest.items()}


def _key(group_id: str, tp: TopicPartition) -> OffsetCommitKey:
    return OffsetCommitKey(group=group_id, topic=tp.topic, partition=tp.partition)


def _tombstone(group_id: str, tp: TopicPartition) -> Entry:
    return Entry(OFFSET_COMMIT, _key(group_id, tp), None, NO_VERSION)


def _utf16_units(text: str) -> int:
    """Java's length of a string."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
