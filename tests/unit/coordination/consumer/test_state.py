"""A group made of its entries, in whatever order compaction left them."""

from __future__ import annotations

import random
from dataclasses import replace

from lapse.coordination.consumer.state import ConsumerState, Draft, Member, load_states
from lapse.coordination.records import consumer_groups as records
from lapse.coordination.records.consumer_groups import (
    ClassicMemberMetadata,
    ClassicProtocol,
    GroupKey,
    MemberKey,
    MemberState,
)
from lapse.coordination.records.entries import Write, decode_entry, encode_entry, fold
from lapse.coordination.records.offsets import TYPES
from tests.support.coordination.consumers import Driver, cluster, joining, partitions, topic_id

T = topic_id("t")
GROUP = GroupKey(group_id="g")
CLASSIC = ClassicMemberMetadata(
    session_timeout_ms=9_000,
    supported_protocols=(
        ClassicProtocol(name="range", metadata=b"r"), ClassicProtocol(name="sticky", metadata=b""),
    ),
)  # fmt: skip


def test_a_member_of_every_field_comes_back_from_the_log() -> None:
    member = Member(
        "m", "i", "r", "c", "/h", ("a", "t"), "t.*", 7, "range", 5, 4,
        MemberState.UNREVOKED_PARTITIONS, {T: {0: 3, 2: 5}}, {T: {1: 2}}, CLASSIC,
    )  # fmt: skip
    draft = Draft(ConsumerState("g"))
    draft.write_group(5, -9)
    draft.write_member(member)
    draft.write_current(member)
    draft.write_target("m", partitions(t={0, 2}))
    draft.write_target_epoch(5, 123)
    draft.write_pattern("t.*", ("t", "a"), 99)
    assert draft.state.members["m"] == member
    records_ = [encode_entry(e.type, e.key, e.value, e.version) for e in draft.entries]
    for seed in range(6):
        random.Random(seed).shuffle(records_)
        entries = [Write(n, decode_entry(TYPES, *r)) for n, r in enumerate(records_)]
        assert load_states(fold(entries)) == {"g": draft.state}
    assert (draft.state.target_epoch, draft.state.target_ms) == (5, 123)
    assert draft.state.resolved["t.*"].topics == ("a", "t")
    assert draft.state.owners == {(T, 0): "m", (T, 1): "m", (T, 2): "m"}


def test_a_record_from_before_classic_members_is_of_none() -> None:
    """Without the field it reads as an empty struct, which is Kafka's default of it."""
    value = replace(Member("m").metadata(), classic_member_metadata=ClassicMemberMetadata())
    _, bare = encode_entry(records.MEMBER_METADATA, MemberKey(group_id="g", member_id="m"), value)
    _, null = encode_entry(
        records.MEMBER_METADATA, MemberKey(group_id="g", member_id="m"), Member("m").metadata()
    )
    assert len(bare or b"") < len(null or b"")
    state = ConsumerState("g")
    state.apply(records.MEMBER_METADATA, MemberKey(group_id="g", member_id="m"), value)
    assert state.members == {"m": Member("m")}


def test_a_draft_leaves_its_state_alone() -> None:
    state = ConsumerState("g")
    draft = Draft(state)
    assert draft.state is state
    draft.write_member(Member("m"))
    assert state == ConsumerState("g")
    assert draft.state.members == {"m": Member("m")}


def test_what_belongs_to_nobody_is_passed_over() -> None:
    draft = Draft(ConsumerState("g"))
    draft.write_target("gone", partitions(t={0}))
    draft.write_current(Member("gone", assigned={T: {0: 1}}))
    assert not draft.state.owners
    entries = [Write(n, e) for n, e in enumerate(draft.entries)]
    assert load_states(fold(entries)) == {}, "without an epoch there is no group"
    draft.write_group(1, 0)
    entries = [Write(n, e) for n, e in enumerate(draft.entries)]
    assert load_states(fold(entries)) == {"g": ConsumerState("g", epoch=1)}


def test_entries_of_kafka_before_4_3_have_no_epochs_of_partitions() -> None:
    state = ConsumerState("g", members={"m": Member("m")})
    value = records.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=4,
        previous_member_epoch=3,
        state=9,
        assigned_partitions=(records.AssignedPartitions(topic_id=T, partitions=(0, 1)),),
        partitions_pending_revocation=(),
    )
    state.apply(records.CURRENT_MEMBER, MemberKey(group_id="g", member_id="m"), value)
    assert state.members["m"].assigned == {T: {0: 4, 1: 4}}
    assert state.members["m"].state is MemberState.UNKNOWN


def test_a_groups_tombstones_take_everything_an_old_kafka_left_too() -> None:
    d = Driver(cluster(t=1))
    d.ask(replace(joining("a", "t"), pattern="t.*", resolved={"t.*": ("t",)}))
    old = records.ConsumerGroupPartitionMetadataValue(topics=())
    d.state.apply(records.PARTITION_METADATA, GROUP, old)
    kinds = [kind.id for kind, _ in d.state.tombstones()]
    assert kinds == [8, 7, 6, 5, 16, 4, 3]
    draft = Draft(d.state)
    draft.remove_group()
    left = replace(draft.state)
    assert left == ConsumerState("g")


def test_owners_follow_who_holds_what() -> None:
    draft = Draft(ConsumerState("g"))
    for name in "ab":
        draft.write_member(Member(name))
    draft.write_current(Member("a", assigned={T: {0: 1, 1: 1}}))
    draft.write_current(Member("a", assigned={T: {0: 1}}))
    draft.write_current(Member("b", assigned={T: {1: 2}}))
    assert draft.state.owners == {(T, 0): "a", (T, 1): "b"}
    draft.remove_member("a")
    assert draft.state.owners == {(T, 1): "b"}
