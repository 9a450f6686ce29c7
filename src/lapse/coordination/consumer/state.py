"""What a group of KIP-848 knows, made of nothing but its entries in `__consumer_offsets`.

`ConsumerState.apply` is the only way in which it changes, while it runs as when it is loaded; so
what is in memory and what is in the log cannot differ. `Draft` tries changes out: the entries it
gathered are appended, and only then its state is the group's.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from lapse.coordination.consumer.events import Partitions
from lapse.coordination.records import consumer_groups as records
from lapse.coordination.records.consumer_groups import GroupKey, MemberKey, MemberState
from lapse.coordination.records.entries import NO_VERSION, Entry, EntryType, Folded

Holding = Mapping[uuid.UUID, Mapping[int, int]]
"""Partitions by topic id, each with the epoch in which it was given."""

Owners = dict[tuple[uuid.UUID, int], str]


class GroupPhase(StrEnum):
    """How far a group is, in Kafka's words."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


@dataclass(frozen=True, slots=True)
class Member:
    """A member: what it subscribed to, and what it holds.

    Attributes:
        topics: sorted, each once.
        pattern: "" for none.
        epoch: 0 has yet to be given anything; -2 is away.
        assigned: what the coordinator sent as its assignment.
        revoking: what it is to give up, and has not said that it did.
        classic: what it joined with, of a member that speaks the classic calls.
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    pattern: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Holding = field(default_factory=dict)
    revoking: Holding = field(default_factory=dict)
    classic: records.ClassicMemberMetadata | None = None

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """Whether it has what the target of that epoch gives it."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def metadata(self) -> records.ConsumerGroupMemberMetadataValue:
        """The entry that says what it subscribed to."""
        return records.ConsumerGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=self.topics,
            subscribed_topic_regex=self.pattern,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.assignor,
            classic_member_metadata=self.classic,
        )

    def current(self) -> records.ConsumerGroupCurrentMemberAssignmentValue:
        """The entry that says what it holds."""
        return records.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=self.state,
            assigned_partitions=_written(self.assigned),
            partitions_pending_revocation=_written(self.revoking),
        )


def _written(holding: Holding) -> tuple[records.AssignedPartitions, ...]:
    return tuple(
        records.AssignedPartitions(
            topic_id=topic_id,
            partitions=tuple(sorted(epochs)),
            assignment_epochs=tuple(epochs[n] for n in sorted(epochs)),
        )
        for topic_id, epochs in sorted(holding.items())
        if epochs
    )


def _read(written: Iterable[records.AssignedPartitions], member_epoch: int) -> Holding:
    """Epochs are missing before Kafka 4.3; then it is the member's."""
    found = {}
    for item in written:
        epochs = item.assignment_epochs or (member_epoch,) * len(item.partitions)
        found[item.topic_id] = dict(zip(item.partitions, epochs, strict=False))
    return found


def pairs_of(holding: Holding) -> Iterator[tuple[uuid.UUID, int]]:
    """Topic id and partition, of each."""
    return ((topic_id, n) for topic_id, numbers in holding.items() for n in numbers)


def plain(holding: Holding) -> Partitions:
    """Without the epochs."""
    return {topic_id: frozenset(epochs) for topic_id, epochs in holding.items() if epochs}


@dataclass(slots=True)
class ConsumerState:
    """A group.

    Attributes:
        epoch: of what it is to be like; 0 has no entry yet.
        metadata_hash: of the topics it reads, as they were when the epoch was made.
        targets: what each member is to have, made for `target_epoch` at `target_ms`.
        resolved: what the patterns of its members matched, and when that was looked up.
        owners: who holds each partition, those to be given up included.
        has_old_metadata: whether a Kafka before 4.1 left an entry that goes with the group.
    """

    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    target_epoch: int = 0
    target_ms: int = 0
    resolved: dict[str, records.ConsumerGroupRegularExpressionValue] = field(default_factory=dict)
    owners: Owners = field(default_factory=dict)
    has_old_metadata: bool = False

    def copy(self) -> ConsumerState:
        """Another one of the same content, to be changed apart from this."""
        return replace(
            self,
            members=dict(self.members),
            targets=dict(self.targets),
            resolved=dict(self.resolved),
            owners=dict(self.owners),
        )

    # --- questions ----------------------------------------------------------------------------

    @property
    def phase(self) -> GroupPhase:
        """How far it is."""
        if not self.members:
            return GroupPhase.EMPTY
        if self.epoch > self.target_epoch:
            return GroupPhase.ASSIGNING
        if all(m.is_reconciled_to(self.target_epoch) for m in self.members.values()):
            return GroupPhase.STABLE
        return GroupPhase.RECONCILING

    def static(self, instance_id: str) -> Member | None:
        """The member of an instance id."""
        return next((m for m in self.members.values() if m.instance_id == instance_id), None)

    def topics_of(self, member: Member) -> frozenset[str]:
        """What a member reads, by name and by pattern; a pattern not looked up matches nothing."""
        found = self.resolved.get(member.pattern) if member.pattern else None
        return frozenset(member.topics).union(found.topics if found is not None else ())

    def subscribed(self) -> frozenset[str]:
        """What any member reads."""
        return frozenset().union(*(self.topics_of(m) for m in self.members.values()))

    def patterns(self) -> Counter[str]:
        """The patterns of its members, and how many have each."""
        return Counter(m.pattern for m in self.members.values() if m.pattern)

    def classic_protocols(self) -> tuple[Counter[str], int]:
        """By protocol how many classic members support it, and how many of them there are."""
        classic = [m.classic for m in self.members.values() if m.classic is not None]
        return Counter(p.name for c in classic for p in c.supported_protocols), len(classic)

    def assignor(self, default: str) -> str:
        """What most members that have a wish want; of as many the first by name."""
        wishes = Counter(m.assignor for m in self.members.values() if m.assignor)
        return min(wishes, key=lambda name: (-wishes[name], name), default=default)

    # --- entries ------------------------------------------------------------------------------

    def apply(self, kind: EntryType, key: Any, value: Any) -> None:
        """One entry of this group, in the order of the log; None takes it away."""
        _APPLY[kind.id](self, key, value)

    def tombstones(self) -> Iterator[tuple[EntryType, Any]]:
        """What takes the group away."""
        group = GroupKey(group_id=self.group_id)
        members = [MemberKey(group_id=self.group_id, member_id=i) for i in self.members]
        for kind in (records.CURRENT_MEMBER, records.TARGET_MEMBER):
            yield from ((kind, key) for key in members)
        yield records.TARGET_METADATA, group
        yield from ((records.MEMBER_METADATA, key) for key in members)
        for pattern in self.resolved:
            yield records.REGULAR_EXPRESSION, pattern_key(self.group_id, pattern)
        if self.has_old_metadata:
            yield records.PARTITION_METADATA, group
        yield records.METADATA, group


def pattern_key(group_id: str, pattern: str) -> records.RegularExpressionKey:
    """The key of what a pattern matched."""
    return records.RegularExpressionKey(group_id=group_id, regular_expression=pattern)


def _metadata(state: ConsumerState, _key: GroupKey, value: Any) -> None:
    state.epoch = 0 if value is None else value.epoch
    state.metadata_hash = 0 if value is None else value.metadata_hash


def _partition_metadata(state: ConsumerState, _key: GroupKey, value: Any) -> None:
    state.has_old_metadata = value is not None


def _target_metadata(state: ConsumerState, _key: GroupKey, value: Any) -> None:
    state.target_epoch = 0 if value is None else value.assignment_epoch
    state.target_ms = 0 if value is None else value.assignment_timestamp


def _member(state: ConsumerState, key: MemberKey, value: Any) -> None:
    old = state.members.get(key.member_id, Member(key.member_id))
    if value is None:
        _disown(state, old)
        state.members.pop(key.member_id, None)
        return
    state.members[key.member_id] = replace(
        old,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=tuple(value.subscribed_topic_names),
        pattern=value.subscribed_topic_regex or "",
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        assignor=value.server_assignor,
        classic=_classic(value.classic_member_metadata),
    )


def _classic(
    value: records.ClassicMemberMetadata | None,
) -> records.ClassicMemberMetadata | None:
    """A record without the field reads as an empty struct; no member joins without a protocol."""
    return value if value is not None and value.supported_protocols else None


def _target_member(state: ConsumerState, key: MemberKey, value: Any) -> None:
    if value is None:
        state.targets.pop(key.member_id, None)
        return
    state.targets[key.member_id] = {
        item.topic_id: frozenset(item.partitions) for item in value.topic_partitions
    }


def _current_member(state: ConsumerState, key: MemberKey, value: Any) -> None:
    old = state.members.get(key.member_id)
    if old is None:
        return  # of a member whose own entry is gone: nothing is left of it
    _disown(state, old)
    if value is None:
        new = replace(old, epoch=-1, previous_epoch=-1, assigned={}, revoking={})
        state.members[key.member_id] = replace(new, state=MemberState.STABLE)
        return
    new = replace(
        old,
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=_member_state(value.state),
        assigned=_read(value.assigned_partitions, value.member_epoch),
        revoking=_read(value.partitions_pending_revocation, value.member_epoch),
    )
    state.members[key.member_id] = new
    for holding in (new.assigned, new.revoking):
        state.owners.update(dict.fromkeys(pairs_of(holding), key.member_id))


def _member_state(number: int) -> MemberState:
    try:
        return MemberState(number)
    except ValueError:
        return MemberState.UNKNOWN


def _pattern(state: ConsumerState, key: records.RegularExpressionKey, value: Any) -> None:
    if value is None:
        state.resolved.pop(key.regular_expression, None)
    else:
        state.resolved[key.regular_expression] = value


def _disown(state: ConsumerState, member: Member) -> None:
    for holding in (member.assigned, member.revoking):
        for pair in pairs_of(holding):
            if state.owners.get(pair) == member.member_id:
                del state.owners[pair]


# In the order in which a group that is loaded needs them: members before what they hold.
_APPLY: Mapping[int, Callable[[ConsumerState, Any, Any], None]] = {
    records.METADATA.id: _metadata,
    records.PARTITION_METADATA.id: _partition_metadata,
    records.MEMBER_METADATA.id: _member,
    records.TARGET_METADATA.id: _target_metadata,
    records.TARGET_MEMBER.id: _target_member,
    records.CURRENT_MEMBER.id: _current_member,
    records.REGULAR_EXPRESSION.id: _pattern,
}
_TYPES = {kind.id: kind for kind in records.TYPES}


def load_states(folded: Folded) -> dict[str, ConsumerState]:
    """All groups that entries amount to, by id.

    Compaction may have taken any entry that a later one replaced, so that their order says nothing;
    what belongs to no group is passed over.
    """
    groups = {key.group_id: ConsumerState(key.group_id) for key in folded.of(records.METADATA)}
    for type_id in _APPLY:
        for key, value in folded.of(_TYPES[type_id]).items():
            if key.group_id in groups:
                groups[key.group_id].apply(_TYPES[type_id], key, value)
    for state in groups.values():
        state.targets = {i: t for i, t in state.targets.items() if i in state.members}
    return groups


class Draft:
    """Changes of a group that are yet to be appended.

    Attributes:
        state: the group with the changes; the very one it began from while there are none.
        entries: what is to be appended for them, in order.
    """

    def __init__(self, state: ConsumerState) -> None:
        self.state = state
        self.entries: list[Entry] = []

    def write(self, kind: EntryType, key: Any, value: Any) -> None:
        """Add an entry; None takes it away."""
        if not self.entries:
            self.state = self.state.copy()
        version = NO_VERSION if value is None else kind.written
        self.entries.append(Entry(kind, key, value, version))
        self.state.apply(kind, key, value)

    def write_group(self, epoch: int, metadata_hash: int) -> None:
        """The group's epoch."""
        value = records.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
        self.write(records.METADATA, GroupKey(group_id=self.state.group_id), value)

    def write_member(self, member: Member) -> None:
        """What a member subscribed to."""
        self.write(records.MEMBER_METADATA, self._key(member.member_id), member.metadata())

    def write_current(self, member: Member) -> None:
        """What a member holds."""
        self.write(records.CURRENT_MEMBER, self._key(member.member_id), member.current())

    def write_target(self, member_id: str, target: Partitions) -> None:
        """What a member is to have."""
        topics = tuple(
            records.TargetPartitions(topic_id=topic_id, partitions=tuple(sorted(target[topic_id])))
            for topic_id in sorted(target)
            if target[topic_id]
        )
        value = records.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics)
        self.write(records.TARGET_MEMBER, self._key(member_id), value)

    def write_target_epoch(self, epoch: int, now_ms: int) -> None:
        """The epoch of the targets."""
        value = records.ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=epoch, assignment_timestamp=now_ms
        )
        self.write(records.TARGET_METADATA, GroupKey(group_id=self.state.group_id), value)

    def write_pattern(self, pattern: str, topics: tuple[str, ...], now_ms: int) -> None:
        """What a pattern matched. We have no numbers for versions of the metadata."""
        value = records.ConsumerGroupRegularExpressionValue(
            topics=tuple(sorted(topics)), version=0, timestamp=now_ms
        )
        self.write(records.REGULAR_EXPRESSION, pattern_key(self.state.group_id, pattern), value)

    def remove_pattern(self, pattern: str) -> None:
        """Remove a pattern that no member has any more."""
        self.write(records.REGULAR_EXPRESSION, pattern_key(self.state.group_id, pattern), None)

    def remove_member(self, member_id: str) -> None:
        """All that is known of a member, what it holds first."""
        for kind in (records.CURRENT_MEMBER, records.TARGET_MEMBER, records.MEMBER_METADATA):
            self.write(kind, self._key(member_id), None)

    def remove_group(self) -> None:
        """Everything."""
        for kind, key in tuple(self.state.tombstones()):
            self.write(kind, key, None)

    def _key(self, member_id: str) -> MemberKey:
        return MemberKey(group_id=self.state.group_id, member_id=member_id)
