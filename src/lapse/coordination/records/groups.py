"""Groups as the entries of `__consumer_offsets` leave them: kind, state, members, offsets.

A view of `entries.Folded`, for listings and for a coordinator that takes over a partition. States
are those Kafka gives a group it has just loaded: a rebalance that was under way is not in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lapse.base.ids import TopicPartition, format_topic_id
from lapse.coordination.records import consumer_groups as kip848
from lapse.coordination.records.entries import (
    NO_VERSION,
    Entry,
    EntryType,
    Folded,
    Marker,
    Slot,
    Write,
    fold,
)
from lapse.coordination.records.offsets import (
    GROUP_METADATA,
    OFFSET_COMMIT,
    TYPES,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from lapse.coordination.records.subscription import (
    PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    read_versioned,
)
from lapse.wire.errors import MalformedMessage

CLASSIC, CONSUMER, SHARE, STREAMS = "classic", "consumer", "share", "streams"

Offsets = Mapping[TopicPartition, OffsetCommitValue]

# Types of entries that make a group, in the order in which one is written: members before what
# they hold.
_ORDER = {kind.id: n for n, kind in enumerate((GROUP_METADATA, *kip848.TYPES))}
_LAST = 2**63 - 1  # an offset


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group.

    Attributes:
        epoch: of KIP-848; -1 in a classic group.
        topics: subscribed to, by name; empty where the protocol is not a consumer's.
        assigned: partitions by topic: its name in a classic group, its id in one of KIP-848.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    epoch: int = -1
    topics: tuple[str, ...] = ()
    topic_regex: str | None = None
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """A group.

    Attributes:
        kind: classic, consumer (KIP-848), share or streams.
        state: Empty, Stable, Assigning or Reconciling; Unknown for share and streams groups.
        epoch: its generation, or its epoch; -1 for one that only commits offsets.
        protocol: what members agreed on, or the assignor they chose.
        pending: offsets of transactions that are still open.
    """

    group_id: str
    kind: str
    state: str
    epoch: int = -1
    protocol_type: str = ""
    protocol: str | None = None
    leader: str | None = None
    members: tuple[Member, ...] = ()
    offsets: Offsets = field(default_factory=dict)
    pending: Offsets = field(default_factory=dict)


def fold_groups(events: Iterable[Write | Marker]) -> Mapping[str, Group]:
    """All groups of one partition of the topic, by id, sorted."""
    known = list(events)
    for batch in settling(known):
        known += [Write(_LAST, entry) for entry in batch]
    return groups_of(fold(known))


def groups_of(folded: Folded) -> Mapping[str, Group]:
    """The same, of what is folded already."""
    offsets = _offsets(folded.latest)
    pending = _offsets(
        {slot: value for table in folded.pending.values() for slot, value in table.items()}
    )
    found = {group_id: _bare(group_id, CLASSIC) for group_id in (*pending, *offsets)}
    for type_id, key in folded.latest:
        kind = _carried_kind(TYPES[type_id].name)
        if kind is not None:
            found[key.group_id] = _bare(key.group_id, kind)
    for key, value in folded.of(GROUP_METADATA).items():
        found[key.group] = _classic(key.group, value)
    found |= _consumer_groups(folded)
    return {
        group_id: _with_offsets(found[group_id], offsets, pending) for group_id in sorted(found)
    }


def _offsets(table: Mapping[Slot, Any]) -> dict[str, dict[TopicPartition, OffsetCommitValue]]:
    found: dict[str, dict[TopicPartition, OffsetCommitValue]] = {}
    for (type_id, key), value in table.items():
        if type_id == OFFSET_COMMIT.id and value is not None:
            assert isinstance(key, OffsetCommitKey)
            found.setdefault(key.group, {})[TopicPartition(key.topic, key.partition)] = value
    return found


def _bare(group_id: str, kind: str) -> Group:
    """A group of which only offsets, or bytes we do not read, are known."""
    return Group(group_id, kind, "Empty" if kind == CLASSIC else "Unknown")


def _carried_kind(name: str) -> str | None:
    kind = name.partition("_GROUP_")[0].lower()
    return kind if kind in {SHARE, STREAMS} else None


def _with_offsets(
    group: Group, offsets: Mapping[str, Offsets], pending: Mapping[str, Offsets]
) -> Group:
    return replace(
        group,
        offsets=dict(sorted(offsets.get(group.group_id, {}).items())),
        pending=dict(sorted(pending.get(group.group_id, {}).items())),
    )


# --- groups of both kinds ---------------------------------------------------------------------


def settling(events: Sequence[Write | Marker]) -> list[Sequence[Entry]]:
    """Batches that make each group which these leave as both kinds one of that written last.

    A group that is converted is of the other kind once that is appended and enough replicas have
    it. Where they have it too late it is in the log, and the group goes on as it was.

    Such a group is written anew behind a tombstone of a classic one: a Kafka that reads it takes
    away all that it knows of the group, of either kind, and else refuses what is of the other one.
    """
    last: dict[str, dict[str, int]] = {CLASSIC: {}, CONSUMER: {}}
    alive: set[str] = set()
    for event in events:
        if not isinstance(event, Write) or event.entry.type.id not in _ORDER:
            continue
        kind, group_id = event.entry.type, _group_id(event.entry)
        exists = event.entry.value is not None
        if exists:
            last[CLASSIC if kind == GROUP_METADATA else CONSUMER][group_id] = event.offset
        elif kind == GROUP_METADATA:
            last[CLASSIC].pop(group_id, None)
        if kind == kip848.METADATA:
            (alive.add if exists else alive.discard)(group_id)
    both = sorted(alive & last[CLASSIC].keys())
    is_classic = {g: last[CLASSIC][g] > last[CONSUMER][g] for g in both}
    return [_anew(known, is_classic=is_classic[g]) for g, known in _entries(events, both).items()]


def _anew(known: Sequence[Entry], *, is_classic: bool) -> Sequence[Entry]:
    """Of what is known of a group of both kinds; the classic entry is the first."""
    classic, *others = known
    gone = [replace(entry, value=None, version=NO_VERSION) for entry in known]
    return [*gone, classic] if is_classic else [gone[0], *others]


def _entries(
    events: Iterable[Write | Marker], group_ids: Sequence[str]
) -> dict[str, Sequence[Entry]]:
    """What has a value of each of these groups, in the order in which a reader needs it."""
    if not group_ids:
        return {}
    latest: dict[str, dict[Slot, Entry]] = {group_id: {} for group_id in group_ids}
    for event in events:
        if isinstance(event, Write) and event.entry.type.id in _ORDER:
            entry = event.entry
            latest.get(_group_id(entry), {})[entry.type.id, entry.key] = entry
    return {
        group_id: sorted(
            (entry for entry in entries.values() if entry.value is not None),
            key=lambda entry: _ORDER[entry.type.id],
        )
        for group_id, entries in latest.items()
    }


def _group_id(entry: Entry) -> str:
    return str(entry.key.group if entry.type == GROUP_METADATA else entry.key.group_id)


# --- classic groups ---------------------------------------------------------------------------


def _classic(group_id: str, value: GroupMetadataValue) -> Group:
    consumers = value.protocol_type == PROTOCOL_TYPE
    members = (_classic_member(member, consumers=consumers) for member in value.members)
    return Group(
        group_id,
        CLASSIC,
        "Stable" if value.members else "Empty",
        value.generation,
        value.protocol_type,
        value.protocol,
        value.leader,
        tuple(members),
    )


def _classic_member(value: MemberMetadata, *, consumers: bool) -> Member:
    topics: tuple[str, ...] = ()
    assigned: dict[str, tuple[int, ...]] = {}
    if consumers:
        # Members may put there what they like: what does not parse is not shown.
        try:
            topics = read_versioned(ConsumerProtocolSubscription, value.subscription)[0].topics
            given = read_versioned(ConsumerProtocolAssignment, value.assignment)[0]
            assigned = {item.topic: item.partitions for item in given.assigned_partitions}
        except MalformedMessage:
            pass
    return Member(
        value.member_id,
        value.group_instance_id,
        value.client_id,
        value.client_host,
        topics=topics,
        assigned=assigned,
    )


# --- groups of KIP-848 ------------------------------------------------------------------------


def _consumer_groups(folded: Folded) -> dict[str, Group]:
    targets = folded.of(kip848.TARGET_METADATA)
    metadata = _by_group(folded, kip848.MEMBER_METADATA)
    current = _by_group(folded, kip848.CURRENT_MEMBER)
    found = {}
    for key, value in folded.of(kip848.METADATA).items():
        group_id = key.group_id
        target_epoch = targets[key].assignment_epoch if key in targets else 0
        found[group_id] = _consumer(
            group_id, value.epoch, target_epoch, metadata.get(group_id, {}),
            current.get(group_id, {}),
        )  # fmt: skip
    return found


def _by_group(folded: Folded, kind: EntryType) -> dict[str, dict[str, Any]]:
    """Group id -> member id -> value, of one type."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in folded.of(kind).items():
        found.setdefault(key.group_id, {})[key.member_id] = value
    return found


def _consumer(
    group_id: str,
    epoch: int,
    target_epoch: int,
    metadata: Mapping[str, Any],
    current: Mapping[str, Any],
) -> Group:
    assignors = sorted({m.server_assignor for m in metadata.values() if m.server_assignor})
    return Group(
        group_id,
        CONSUMER,
        _state(epoch, target_epoch, metadata, current),
        epoch,
        PROTOCOL_TYPE,
        assignors[0] if assignors else None,
        members=tuple(_member(i, metadata[i], current.get(i)) for i in sorted(metadata)),
    )


def _state(
    epoch: int, target_epoch: int, metadata: Mapping[str, Any], current: Mapping[str, Any]
) -> str:
    if not metadata:
        return "Empty"
    if epoch > target_epoch:
        return "Assigning"
    for member_id in metadata:
        now = current.get(member_id)
        if (
            now is None
            or now.member_epoch != target_epoch
            or now.state != kip848.MemberState.STABLE
        ):
            return "Reconciling"
    return "Stable"


def _member(
    member_id: str,
    value: kip848.ConsumerGroupMemberMetadataValue,
    current: kip848.ConsumerGroupCurrentMemberAssignmentValue | None,
) -> Member:
    assigned = () if current is None else current.assigned_partitions
    return Member(
        member_id,
        value.instance_id,
        value.client_id,
        value.client_host,
        0 if current is None else current.member_epoch,
        value.subscribed_topic_names,
        value.subscribed_topic_regex or None,
        {format_topic_id(item.topic_id): item.partitions for item in assigned},
    )
