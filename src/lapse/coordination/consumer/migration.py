"""A group with members in it that changes its protocol: from classic to KIP-848 and back.

`upgraded`: a member that speaks the new calls joins a classic group of consumers. The others stay
in it as classic members (`classic_members`), each with what it holds. `downgraded`: only
classic members are left of a group of KIP-848; they are a classic group again, and rebalance.

Both are functions of a group to the entries that make the other one of it, and change neither: the
entries go into one batch with the tombstones of the group that was, first where it was classic,
since Kafka takes the whole group away where it reads that one. As GroupMetadataManager of Kafka
4.3, but for these, where it could give a partition to two members, or to none:

- a group whose leader has yet to assign has taken back what members had, and those that give up
  only what they must (KIP-429) read on: what they hold is then what they said when they joined;
- a member of a classic group that comes of a downgrade is noted with what it held, not with what
  it was to get: another member may still be reading that;
- the record of such a group names no leader while it is to rebalance. A broker that starts before
  that is over begins it again; Kafka takes the first member for the leader.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace

from lapse.base.errors import ErrorCode, KafkaError
from lapse.coordination.classic.events import Protocol
from lapse.coordination.classic.group import ClassicGroup
from lapse.coordination.classic.members import Member as ClassicMember
from lapse.coordination.classic.state import State
from lapse.coordination.classic.transitions import rebalance
from lapse.coordination.consumer.events import Cluster, ConsumerGroupSettings, Partitions
from lapse.coordination.consumer.state import ConsumerState, Draft, Holding, Member, plain
from lapse.coordination.consumer.transitions import Now, metadata_hash
from lapse.coordination.records.consumer_groups import ClassicMemberMetadata, ClassicProtocol
from lapse.coordination.records.entries import Entry
from lapse.coordination.records.offsets import GROUP_METADATA, GroupMetadataKey
from lapse.coordination.records.subscription import (
    PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
    read_versioned,
    write_versioned,
)
from lapse.wire.declaration import message_spec
from lapse.wire.errors import MalformedMessage

_INT16 = struct.Struct(">h")
_WHY_NOT = "Cannot upgrade classic group {} to consumer group because {}."

# --- classic to KIP-848 -----------------------------------------------------------------------


def check_upgrade(group: ClassicGroup, settings: ConsumerGroupSettings) -> None:
    """Raise GROUP_ID_NOT_FOUND for a classic group that may not become one of KIP-848."""
    reasons = (
        (not settings.migration.allows_upgrade, "online upgrade is disabled"),
        (
            group.protocol_type != PROTOCOL_TYPE,
            "the group does not use the consumer embedded protocol",
        ),
        (
            len(group.members) > settings.size_max,
            "the group size exceeds the consumer group maximum size",
        ),
    )
    for applies, words in reasons:
        if applies:
            raise _not_upgraded(group, words)


def upgraded(group: ClassicGroup, settings: ConsumerGroupSettings, cluster: Cluster) -> Draft:
    """A group of KIP-848 of a classic group's members, in the epoch of its generation.

    Nothing of it may be on its way to the log. Raises GROUP_ID_NOT_FOUND where it cannot be.
    """
    check_upgrade(group, settings)
    taken: set[tuple[uuid.UUID, int]] = set()
    try:
        members = [_upgraded_member(m, group, cluster, taken) for m in group.members]
    except MalformedMessage as e:
        words = "the embedded consumer protocol is malformed"
        raise _not_upgraded(group, words) from e
    draft = Draft(ConsumerState(group.group_id))
    for member in members:
        draft.write_member(member)
    # Members of a group that was not stable may not have everything between them. They need a new
    # epoch whichever member joins: no hash is one that is not the topics'.
    is_stable = group.state is State.STABLE
    known_hash = metadata_hash(draft.state, cluster) if is_stable else 0
    draft.write_group(group.generation, known_hash)
    for member in members:
        draft.write_target(member.member_id, plain(member.assigned))
    draft.write_target_epoch(group.generation, 0)  # long ago: the next target need not wait
    for member in members:
        draft.write_current(member)
    return draft


def _upgraded_member(
    member: ClassicMember, group: ClassicGroup, cluster: Cluster, taken: set[tuple[uuid.UUID, int]]
) -> Member:
    said, _ = read_versioned(
        ConsumerProtocolSubscription,
        member.metadata_for(group.protocol or "") or member.protocols[0].metadata,
    )
    if member.assignment:
        given, _ = read_versioned(ConsumerProtocolAssignment, member.assignment)
        if given.user_data:
            words = (
                "an unsupported custom assignor is in use. Please refer to the documentation or "
                "switch to a default assignor before re-attempting the upgrade"
            )
            raise _not_upgraded(group, words)
        held = partitions_by_id(given.assigned_partitions, cluster)
    else:
        held = partitions_by_id(said.owned_partitions, cluster)
    return Member(
        member.member_id,
        member.instance_id,
        said.rack_id or None,
        member.client_id,
        member.client_host,
        topics=tuple(sorted(set(said.topics))),
        rebalance_timeout_ms=member.rejoin_timeout_ms,
        epoch=group.generation,
        previous_epoch=group.generation,
        assigned=_not_taken(held, taken, group.generation),
        classic=ClassicMemberMetadata(
            session_timeout_ms=member.session_timeout_ms,
            supported_protocols=tuple(
                ClassicProtocol(name=p.name, metadata=p.metadata) for p in member.protocols
            ),
        ),
    )


def _not_taken(held: Partitions, taken: set[tuple[uuid.UUID, int]], epoch: int) -> Holding:
    """Of what two members say they hold, the first has it: a leader may assign what it likes."""
    found: dict[uuid.UUID, dict[int, int]] = {}
    for topic_id, numbers in held.items():
        for n in sorted(numbers):
            if (topic_id, n) not in taken:
                taken.add((topic_id, n))
                found.setdefault(topic_id, {})[n] = epoch
    return found


def _not_upgraded(group: ClassicGroup, words: str) -> KafkaError:
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, _WHY_NOT.format(group.group_id, words))


# --- KIP-848 to classic -----------------------------------------------------------------------


def may_downgrade(
    state: ConsumerState, settings: ConsumerGroupSettings, *, without: str | None = None
) -> bool:
    """Whether these members are to be a classic group: all of them speak the classic calls.

    `without`: a member whose place one that does is about to take.
    """
    others = [m for m in state.members.values() if m.member_id != without]
    return (
        bool(state.members)
        and all(m.classic is not None for m in others)
        and settings.migration.allows_downgrade
        and len(state.members) <= settings.classic.size_max
    )


def downgraded(
    draft: Draft, now: Now, new_id: Callable[[], str], *, generation: int, quiet: bool
) -> ClassicGroup:
    """The classic group of a group's members; what makes it is added to the draft.

    `quiet`: it need not rebalance, since all have what they are to have.
    """
    state, settings, cluster = draft.state, now.settings.classic, now.cluster
    members = [_downgraded_member(m, cluster) for m in state.members.values()]
    group_id = state.group_id
    group = ClassicGroup.of_members(group_id, generation, members, settings, new_id, now.time_ms)
    record = group.record()
    draft.remove_group()
    key = GroupMetadataKey(group=group_id)
    value = record if quiet else replace(record, leader=None)
    draft.entries.append(Entry(GROUP_METADATA, key, value, GROUP_METADATA.written))
    if not quiet:
        rebalance(group)  # no request waits in it yet, so none is answered
    return group


def _downgraded_member(member: Member, cluster: Cluster) -> ClassicMember:
    classic = member.classic
    assert classic is not None
    held = {
        topic_id: frozenset({**member.assigned.get(topic_id, {}),
                             **member.revoking.get(topic_id, {})})
        for topic_id in {*member.assigned, *member.revoking}
    }  # fmt: skip
    return ClassicMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        classic.session_timeout_ms,
        member.rebalance_timeout_ms,
        tuple(Protocol(p.name, p.metadata) for p in classic.supported_protocols),
        assignment_bytes(held, classic.supported_protocols[0].metadata, cluster),
    )


# --- what classic consumers send and receive ----------------------------------------------------


def partitions_by_id(said: Iterable[TopicPartitions], cluster: Cluster) -> Partitions:
    """Partitions of topics that exist."""
    found: dict[uuid.UUID, frozenset[int]] = {}
    for item in said:
        topic = cluster.topics.get(item.topic)
        if topic is not None and item.partitions:
            numbers = found.get(topic.topic_id, frozenset())
            found[topic.topic_id] = numbers.union(item.partitions)
    return found


def assignment_bytes(partitions: Partitions, metadata: bytes, cluster: Cluster) -> bytes:
    """An assignment in the version of the subscription it answers; topics that exist, sorted."""
    known = {cluster.ids[t].name: sorted(ns) for t, ns in partitions.items() if t in cluster.ids}
    message = ConsumerProtocolAssignment(
        assigned_partitions=tuple(
            TopicPartitions(topic=name, partitions=tuple(known[name])) for name in sorted(known)
        )
    )
    high = message_spec(ConsumerProtocolAssignment).versions.high
    assert high is not None
    version = min(int(_INT16.unpack_from(metadata)[0]), high)
    return write_versioned(message, version)
