"""Groups, as the entries of their topic leave them."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from lapse.base.ids import TopicPartition, format_topic_id
from lapse.coordination.records import consumer_groups as kip848
from lapse.coordination.records.entries import (
    Entry,
    EntryType,
    Marker,
    Write,
    decode_entry,
    encode_entry,
    fold,
)
from lapse.coordination.records.groups import Group, Member, fold_groups, settling
from lapse.coordination.records.offsets import (
    GROUP_METADATA,
    OFFSET_COMMIT,
    TYPES,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from lapse.coordination.records.subscription import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
    read_versioned,
    write_versioned,
)
from lapse.wire.errors import MalformedMessage

TOPIC_ID = uuid.UUID(int=7)
SUBSCRIPTION = ConsumerProtocolSubscription(topics=("a", "b"), rack_id="r")
ASSIGNMENT = ConsumerProtocolAssignment(
    assigned_partitions=(TopicPartitions(topic="a", partitions=(0, 2)),)
)


def log(*entries: tuple[EntryType, Any, Any]) -> list[Write | Marker]:
    """Entries in a row, through their bytes."""
    return [
        Write(n, decode_entry(TYPES, *encode_entry(kind, key, value)))
        for n, (kind, key, value) in enumerate(entries)
    ]


def commit(group: str, partition: int, offset: int) -> tuple[EntryType, Any, Any]:
    key = OffsetCommitKey(group=group, topic="t", partition=partition)
    return OFFSET_COMMIT, key, OffsetCommitValue(offset=offset, metadata="", commit_timestamp=1)


def classic(subscription: bytes, protocol_type: str = "consumer") -> tuple[EntryType, Any, Any]:
    member = MemberMetadata(
        member_id="m",
        client_id="c",
        client_host="/h",
        session_timeout=9,
        subscription=subscription,
        assignment=write_versioned(ASSIGNMENT),
    )
    value = GroupMetadataValue(
        protocol_type=protocol_type, generation=4, protocol="range", leader="m", members=(member,)
    )
    return GROUP_METADATA, GroupMetadataKey(group="g"), value


def modern(
    epoch: int, target_epoch: int, member_epoch: int | None, state: int = 0
) -> list[tuple[EntryType, Any, Any]]:
    group, member = kip848.GroupKey(group_id="g"), kip848.MemberKey(group_id="g", member_id="m")
    said = kip848.ConsumerGroupMemberMetadataValue(
        instance_id="i",
        rack_id=None,
        client_id="c",
        client_host="/h",
        subscribed_topic_names=("a",),
        subscribed_topic_regex="",
        rebalance_timeout_ms=1,
        server_assignor="uniform",
        classic_member_metadata=None,
    )
    held = kip848.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member_epoch or 0,
        previous_member_epoch=0,
        state=state,
        assigned_partitions=(kip848.AssignedPartitions(topic_id=TOPIC_ID, partitions=(1,)),),
        partitions_pending_revocation=(),
    )
    target = kip848.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=target_epoch)
    return [
        (kip848.METADATA, group, kip848.ConsumerGroupMetadataValue(epoch=epoch)),
        (kip848.MEMBER_METADATA, member, said),
        (kip848.TARGET_METADATA, group, target),
        (kip848.CURRENT_MEMBER, member, held if member_epoch is not None else None),
    ]


def kinds_left(events: list[Write | Marker]) -> set[str]:
    folded = fold(events)
    return {kind.name for kind in TYPES.values() if folded.of(kind)}


def test_a_group_of_both_kinds_is_of_the_one_that_was_written_last() -> None:
    """And is written anew, so that another reader, a Kafka for one, has no other either."""
    old, new = classic(b""), modern(7, 7, 7)
    for later, expected, kinds in (
        ([*new, old], "classic", {"GROUP_METADATA"}),
        ([old, *new], "consumer", {kind.name for kind, _, _ in new}),
        # Not the group's own entry, but one of a member: it was there last.
        ([new[0], old, *new[1:]], "consumer", {kind.name for kind, _, _ in new}),
    ):
        events = log(*later, commit("g", 0, 5))
        found = fold_groups(events)["g"]
        assert (found.kind, len(found.members), len(found.offsets)) == (expected, 1, 1)
        [batch] = settling(events)
        first = batch[0]
        assert (first.type, first.value) == (GROUP_METADATA, None), "Kafka takes all away at it"
        settled = [*events, *(Write(99, entry) for entry in batch)]
        assert kinds_left(settled) == {*kinds, "OFFSET_COMMIT"}
        assert fold_groups(settled)["g"] == found
        assert settling(settled) == []


def test_a_group_that_was_converted_needs_nothing() -> None:
    old, new = classic(b""), modern(7, 7, 7)
    gone = [(kind, key, None) for kind, key, _ in new]
    upgrade = log(old, (*old[:2], None), *new)
    downgrade = log(*new, *gone, old)
    left_over = log(*new, *gone, old, new[3])  # what a member held, of no group
    assert [settling(events) for events in (upgrade, downgrade, left_over, log(*gone))] == [[]] * 4


def test_what_is_written_anew_keeps_its_version() -> None:
    key, value = GroupMetadataKey(group="g"), classic(b"")[2]
    record = Write(9, decode_entry(TYPES, *encode_entry(GROUP_METADATA, key, value, 4)))
    [batch] = settling([*log(*modern(7, 7, 7)), record])
    assert batch[-1] == record.entry


def test_a_group_that_only_commits_is_an_empty_classic_one() -> None:
    groups = fold_groups(log(commit("z", 1, 5), commit("z", 0, 4), commit("a", 0, 1)))
    assert list(groups) == ["a", "z"]
    assert (groups["z"].kind, groups["z"].state, groups["z"].epoch) == ("classic", "Empty", -1)
    offsets = {tp.partition: value.offset for tp, value in groups["z"].offsets.items()}
    assert list(offsets.items()) == [(0, 4), (1, 5)]


def test_offsets_of_an_open_transaction_are_pending() -> None:
    events = log(commit("g", 0, 5))
    assert isinstance(events[0], Write)
    open_one = Write(0, events[0].entry, producer_id=3)
    group = fold_groups([open_one])["g"]
    assert (list(group.offsets), list(group.pending)) == ([], [TopicPartition("t", 0)])
    group = fold_groups([open_one, Marker(3, commit=True)])["g"]
    assert (list(group.offsets), list(group.pending)) == ([TopicPartition("t", 0)], [])
    assert fold_groups([open_one, Marker(3, commit=False)]) == {}


def test_a_classic_group() -> None:
    group = fold_groups(log(classic(write_versioned(SUBSCRIPTION)), commit("g", 0, 5)))["g"]
    assert group == Group(
        "g", "classic", "Stable", 4, "consumer", "range", "m",
        (Member("m", None, "c", "/h", topics=("a", "b"), assigned={"a": (0, 2)}),),
        offsets=group.offsets,
    )  # fmt: skip
    assert len(group.offsets) == 1


@pytest.mark.parametrize(
    ("subscription", "protocol_type"),
    [(b"", "consumer"), (b"\0\0\0\0\0\5", "consumer"), (b"\0\3\0", "connect")],
)
def test_bytes_of_members_that_do_not_parse_are_left_alone(
    subscription: bytes, protocol_type: str
) -> None:
    [member] = fold_groups(log(classic(subscription, protocol_type)))["g"].members
    assert (member.topics, member.assigned) == ((), {})


def test_a_deleted_group_is_gone() -> None:
    gone = (GROUP_METADATA, GroupMetadataKey(group="g"), None)
    assert fold_groups(log(classic(write_versioned(SUBSCRIPTION)), gone)) == {}


@pytest.mark.parametrize(
    ("epochs", "state"),
    [
        ((3, 3, 3), "Stable"),
        ((4, 3, 3), "Assigning"),
        ((3, 3, 2), "Reconciling"),
        ((3, 3, None), "Reconciling"),
        ((3, 3, 3, kip848.MemberState.UNREVOKED_PARTITIONS), "Reconciling"),
    ],
)
def test_states_of_a_kip_848_group(epochs: tuple[Any, ...], state: str) -> None:
    group = fold_groups(log(*modern(*epochs)))["g"]
    assert (group.kind, group.state, group.epoch) == ("consumer", state, epochs[0])
    assert group.protocol == "uniform"
    [member] = group.members
    assert (member.instance_id, member.topics, member.topic_regex) == ("i", ("a",), None)
    known = epochs[2] is not None
    assert member.assigned == ({format_topic_id(TOPIC_ID): (1,)} if known else {})


def test_without_members_it_is_empty() -> None:
    entries = modern(3, 2, None)
    entries.append((kip848.MEMBER_METADATA, kip848.MemberKey(group_id="g", member_id="m"), None))
    assert fold_groups(log(*entries))["g"].state == "Empty"


def test_groups_of_other_kinds_are_named() -> None:
    share = TYPES[11]
    key = share.key(group_id="s")
    entry = Entry(share, key, b"\0\0", 0)
    group = fold_groups([Write(0, entry)])["s"]
    assert (group.kind, group.state) == ("share", "Unknown")
    # The key alone says the same of another type; they do not replace each other.
    assert fold_groups([Write(0, entry), Write(1, Entry(TYPES[15], key, None, -1))]).keys() == {"s"}


@pytest.mark.parametrize("marker", [2, 0x80])
def test_a_tagged_struct_is_there_or_null(marker: int) -> None:
    kind, key, said = modern(1, 1, 1)[1]
    key_bytes, data = encode_entry(kind, key, said)
    assert data is not None
    assert data.endswith(b"\1\0\1\0")  # one tagged field: the first, of one byte, null
    with pytest.raises(MalformedMessage):
        decode_entry(TYPES, key_bytes, data[:-1] + bytes([marker]))


def test_a_newer_version_of_the_consumer_protocol_is_read_as_the_newest_known() -> None:
    data = write_versioned(SUBSCRIPTION)
    assert read_versioned(ConsumerProtocolSubscription, data) == (SUBSCRIPTION, 3)
    assert read_versioned(ConsumerProtocolSubscription, b"\0\x09" + data[2:])[0] == SUBSCRIPTION
    with pytest.raises(MalformedMessage):
        read_versioned(ConsumerProtocolSubscription, b"\xff\xff" + data[2:])
