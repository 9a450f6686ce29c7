"""What each heartbeat does to a group of KIP-848: entries and an answer out of a state and a time.

A heartbeat has three parts: the member as it subscribes now, which may ask for a new epoch of the
group; a new target where the group's epoch is ahead of the targets'; and the member's next step to
its target. Each changes a `Draft`; nothing is changed where a refusal is raised, since drafts are
thrown away then. As GroupMetadataManager of Kafka 4.3.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace

from lapse.coordination.consumer.assignors import Assignable, assign
from lapse.coordination.consumer.checks import (
    check_epoch,
    check_released,
    check_room,
    known_instance,
    known_member,
)
from lapse.coordination.consumer.events import (
    AS_BEFORE_MS,
    AWAY,
    JOINING,
    Beat,
    BeatTaken,
    Cluster,
    ConsumerGroupSettings,
)
from lapse.coordination.consumer.reconciliation import Aim, reconciled
from lapse.coordination.consumer.state import ConsumerState, Draft, Member, plain

FIRST_EPOCH = 2
"""Of a new group, in Kafka."""


@dataclass(frozen=True, slots=True)
class Now:
    """What a heartbeat is judged by.

    Attributes:
        is_news: whether the topics may be others than when the group last looked.
    """

    cluster: Cluster
    settings: ConsumerGroupSettings
    time_ms: int
    is_news: bool = True


# --- events -----------------------------------------------------------------------------------


def beat(draft: Draft, request: Beat, now: Now) -> BeatTaken:
    """A member joins or lives; raises KafkaError with the code it is refused with."""
    check_room(draft.state, request, now.settings.size_max)
    before = _member_before(draft, request)
    has_resubscribed = subscribe(draft, before, request, now)
    follow_target(draft, now)
    member = reconcile(draft, request, now, has_resubscribed=has_resubscribed)
    answers_all = request.epoch == JOINING or request.is_full
    if answers_all or plain(member.assigned) != plain(before.assigned):
        assignment = plain(member.assigned)
    else:
        assignment = None
    interval_ms = now.settings.heartbeat_interval_ms
    return BeatTaken(member.member_id, member.epoch, interval_ms, assignment)


def leave(draft: Draft, request: Beat) -> BeatTaken:
    """A member goes, for good or (-2) to come back; raises KafkaError where it is none.

    Who goes for good is still to be made up for: `bump`, or another kind of group.
    """
    state = draft.state
    if request.instance_id is None:
        member = known_member(state, request.member_id)
    else:
        member = known_instance(state, request.member_id, request.instance_id)
    if request.epoch == AWAY:
        # It keeps its partitions for the instance that comes back; what it was to give up is free.
        draft.write_current(replace(member, epoch=AWAY, revoking={}))
    else:
        remove(draft, [member.member_id])
    return BeatTaken(member.member_id, request.epoch)


def remove(draft: Draft, member_ids: Iterable[str]) -> None:
    """Members are gone, and patterns that only they had."""
    for member_id in member_ids:
        draft.remove_member(member_id)
    state = draft.state
    for pattern in state.resolved.keys() - state.patterns().keys():
        draft.remove_pattern(pattern)


def bump(draft: Draft, cluster: Cluster) -> None:
    """Members that stay find a new epoch."""
    draft.write_group(draft.state.epoch + 1, metadata_hash(draft.state, cluster))


def subscribe(draft: Draft, before: Member, request: Beat, now: Now) -> bool:
    """The member as it subscribes now, and the group's epoch; whether it reads other topics."""
    member = _subscribed(before, request)
    if member != before or member.member_id not in draft.state.members:
        draft.write_member(member)
    has_matches = _follow_patterns(draft, before.pattern, request, now)
    has_resubscribed = (member.topics, member.pattern) != (before.topics, before.pattern)
    _follow_epoch(draft, now, must=has_resubscribed or has_matches)
    return has_resubscribed


# --- the member -------------------------------------------------------------------------------


def _member_before(draft: Draft, request: Beat) -> Member:
    """The member as it was, a blank one if it is new."""
    state, member_id = draft.state, request.member_id
    if request.instance_id is None:
        if request.epoch == JOINING and member_id not in state.members:
            return Member(member_id)
        member = known_member(state, member_id)
    elif request.epoch == JOINING:
        found = state.static(request.instance_id)
        if found is None:
            return state.members.get(member_id, Member(member_id))
        if found.classic is None:
            check_released(found, member_id)
        return replaced(draft, found, member_id)
    else:
        member = known_instance(state, member_id, request.instance_id)
    check_epoch(member, request.epoch, request.owned)
    return member


def replaced(draft: Draft, old: Member, member_id: str) -> Member:
    """An instance comes back under another id, to what it had."""
    target = draft.state.targets.get(old.member_id, {})
    draft.remove_member(old.member_id)
    new = replace(old, member_id=member_id, epoch=0, previous_epoch=0)
    draft.write_member(new)
    draft.write_target(member_id, target)
    draft.write_current(new)
    return new


def _subscribed(before: Member, request: Beat) -> Member:
    """The member with what the heartbeat says of it; null leaves things as they were."""
    timeout_ms = request.rebalance_timeout_ms
    topics = before.topics if request.topics is None else tuple(sorted(set(request.topics)))
    return replace(
        before,
        instance_id=request.instance_id or before.instance_id,
        rack_id=request.rack_id or before.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        topics=topics,
        pattern=before.pattern if request.pattern is None else request.pattern,
        rebalance_timeout_ms=(
            before.rebalance_timeout_ms if timeout_ms == AS_BEFORE_MS else timeout_ms
        ),
        assignor=request.assignor or before.assignor,
        classic=request.classic,
    )


# --- the group --------------------------------------------------------------------------------


def _follow_patterns(draft: Draft, old_pattern: str, request: Beat, now: Now) -> bool:
    """Patterns that were looked up for this heartbeat, and one that no member has any more.

    Returns whether one of them matches other topics than before.
    """
    patterns = draft.state.patterns()
    if old_pattern in draft.state.resolved and old_pattern not in patterns:
        draft.remove_pattern(old_pattern)
    has_changed = False
    for pattern, topics in request.resolved.items():
        if pattern in patterns:
            old = draft.state.resolved.get(pattern)
            has_changed = has_changed or set(old.topics if old else ()) != set(topics)
            draft.write_pattern(pattern, topics, now.time_ms)
    return has_changed


def _follow_epoch(draft: Draft, now: Now, *, must: bool) -> None:
    """A new epoch where a member reads other topics, or a topic that is read is another."""
    state = draft.state
    must = must or state.epoch == 0
    if not must and not now.is_news:
        return
    found = metadata_hash(state, now.cluster)
    if must or found != state.metadata_hash:
        draft.write_group(state.epoch + 1 if state.epoch else FIRST_EPOCH, found)


def follow_target(draft: Draft, now: Now) -> None:
    """New targets where the epoch is ahead of them; not sooner than the interval allows."""
    state = draft.state
    since_ms = now.time_ms - state.target_ms
    is_early = state.target_epoch > 0 and 0 <= since_ms < now.settings.assignment_interval_ms
    if state.epoch <= state.target_epoch or is_early:
        return
    ids = {member_id: _topic_ids(state, member, now.cluster)
           for member_id, member in state.members.items()}  # fmt: skip
    members = {
        member_id: Assignable(member.instance_id, ids[member_id], state.targets.get(member_id, {}))
        for member_id, member in state.members.items()
    }
    counts = {t: now.cluster.ids[t].partitions for t in frozenset().union(*ids.values())}
    assignor = state.assignor(now.settings.assignors[0])
    targets = assign(assignor, members, counts)
    for member_id in sorted(members):
        if state.targets.get(member_id) != targets[member_id]:
            draft.write_target(member_id, targets[member_id])
    draft.write_target_epoch(state.epoch, now.time_ms)


def _topic_ids(state: ConsumerState, member: Member, cluster: Cluster) -> frozenset[uuid.UUID]:
    """The topics a member reads, as far as they exist."""
    topics = cluster.topics
    return frozenset(topics[n].topic_id for n in state.topics_of(member) if n in topics)


def reconcile(draft: Draft, request: Beat, now: Now, *, has_resubscribed: bool) -> Member:
    """The member's next step to its target."""
    state, member_id = draft.state, request.member_id
    member = state.members[member_id]
    if not has_resubscribed and member.is_reconciled_to(state.target_epoch):
        return member
    aim = Aim(
        state.target_epoch,
        state.targets.get(member_id, {}),
        _topic_ids(state, member, now.cluster),
        has_resubscribed,
        request.owned,
        state.owners,
    )
    new = reconciled(member, aim)
    if new != member:
        draft.write_current(new)
    return new


def metadata_hash(state: ConsumerState, cluster: Cluster) -> int:
    """A number that changes when a topic that is read comes, goes or grows; 0 without topics.

    Kept with the epoch (KIP-1101). It is ours: a coordinator compares it with its own alone, and
    makes a new epoch where they differ.
    """
    known = (cluster.topics[name] for name in sorted(state.subscribed() & cluster.topics.keys()))
    lines = [f"{topic.name}\0{topic.topic_id}\0{topic.partitions}\n" for topic in known]
    if not lines:
        return 0
    digest = hashlib.blake2b("".join(lines).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
