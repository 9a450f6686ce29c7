"""Who is in a classic group: members, their leader, their instance ids and their votes.

The group's states are `group`'s; here is only what holds of the members in any of
them. Order is that of joining, so the same events give the same leader and the same answers.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from lapse.base.errors import ErrorCode
from lapse.coordination.classic.events import JoinedMember, Protocol, Token
from lapse.coordination.records.offsets import MemberMetadata
from lapse.coordination.records.subscription import ConsumerProtocolSubscription
from lapse.wire import codec
from lapse.wire.errors import MalformedMessage

NO_ONE = ""
_VERSION = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class Member:
    """A member; replaced, not changed.

    Attributes:
        protocols: best first.
        assignment: empty until its leader gave one.
        is_new: it has not been through a rebalance yet, so it cannot send heartbeats.
        joining: the join that waits for the rebalance to begin.
        syncing: the sync that waits for the leader's.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    is_new: bool = False
    joining: Token | None = None
    syncing: Token | None = None

    @property
    def rejoin_timeout_ms(self) -> int:
        """How long a rebalance waits for it; records and joins of version 0 do not say."""
        if self.rebalance_timeout_ms > 0:
            return self.rebalance_timeout_ms
        return self.session_timeout_ms

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for us, and so need not send heartbeats."""
        return not self.is_new and (self.joining is not None or self.syncing is not None)

    def metadata_for(self, protocol: str) -> bytes:
        """What it said with a protocol; empty for one it does not support."""
        return next((p.metadata for p in self.protocols if p.name == protocol), b"")

    def record(self, protocol: str, assignment: bytes) -> MemberMetadata:
        """As it is stored."""
        return MemberMetadata(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout=self.rebalance_timeout_ms,
            session_timeout=self.session_timeout_ms,
            subscription=self.metadata_for(protocol),
            assignment=assignment,
        )

    @staticmethod
    def load(value: MemberMetadata, protocol: str) -> Member:
        """From its record, which only knows the protocol that was chosen."""
        return Member(
            value.member_id,
            value.group_instance_id,
            value.client_id,
            value.client_host,
            value.session_timeout,
            value.rebalance_timeout,
            (Protocol(protocol, value.subscription),),
            value.assignment,
        )


class Members:
    """The members of one group.

    Attributes:
        leader: None exactly while there are no members.
        pending: ids that were given out and have not joined yet (KIP-394).
        joining_count: members whose join waits.
        unsynced: those who have not synced since the rebalance (KAFKA-12890).
    """

    def __init__(self) -> None:
        self.leader: str | None = None
        self.pending: dict[str, None] = {}
        self.unsynced: dict[str, None] = {}
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}
        self._supporters: Counter[str] = Counter()
        self.joining_count = 0

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._members

    def __iter__(self) -> Iterator[Member]:
        return iter(tuple(self._members.values()))

    def __getitem__(self, member_id: str) -> Member:
        return self._members[member_id]

    def get(self, member_id: str) -> Member | None:
        """A member, if it is one."""
        return self._members.get(member_id)

    def static_id(self, instance_id: str | None) -> str | None:
        """The member id under which an instance is in the group (KIP-345)."""
        return None if instance_id is None else self._static.get(instance_id)

    def check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """NONE for a member; an instance under another id is fenced."""
        if instance_id is not None:
            holder = self._static.get(instance_id)
            if holder is not None and holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member_id in self._members else ErrorCode.UNKNOWN_MEMBER_ID

    # --- change ---------------------------------------------------------------------------------

    def put(self, member: Member) -> None:
        """Add a member, or set one anew; the first leads."""
        self._count(self._members.get(member.member_id), -1)
        self._count(member, 1)
        self._members[member.member_id] = member
        self.pending.pop(member.member_id, None)
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> Member | None:
        """Forget a member or a pending id; the one longest here leads after its leader."""
        self.pending.pop(member_id, None)
        self.unsynced.pop(member_id, None)
        member = self._members.pop(member_id, None)
        self._count(member, -1)
        if member is not None and self.static_id(member.instance_id) == member_id:
            self._static.pop(member.instance_id or NO_ONE)
        if self.leader == member_id:
            self.leader = next(iter(self._members), None)
        return member

    def rekey(self, old_id: str, new_id: str) -> Member:
        """Give an instance another member id, in the same place and role (KIP-345)."""
        was_unsynced = old_id in self.unsynced
        member = replace(self._members[old_id], member_id=new_id, joining=None, syncing=None)
        self._count(self._members[old_id], -1)
        self._count(member, 1)
        renamed = ((new_id, member) if k == old_id else (k, m) for k, m in self._members.items())
        self._members = dict(renamed)
        assert member.instance_id is not None
        self._static[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        self.unsynced.pop(old_id, None)
        if was_unsynced:
            self.unsynced[new_id] = None
        return member

    def elect_joined_leader(self) -> bool:
        """Let a member lead that has rejoined; False if none has."""
        leader = self._members.get(self.leader or NO_ONE)
        if leader is None or leader.joining is None:
            joined = (m.member_id for m in self._members.values() if m.joining is not None)
            found = next(joined, None)
            if found is None:
                return False
            self.leader = found
        return True

    def _count(self, member: Member | None, by: int) -> None:
        if member is None:
            return
        self.joining_count += by if member.joining is not None else 0
        for protocol in member.protocols:
            self._supporters[protocol.name] += by
            if not self._supporters[protocol.name]:
                del self._supporters[protocol.name]

    # --- questions ------------------------------------------------------------------------------

    @property
    def all_joined(self) -> bool:
        """Whether the group waits for no member and no pending id to join."""
        return self.joining_count == len(self._members) and not self.pending

    @property
    def rejoin_timeout_ms(self) -> int:
        """The longest rebalance timeout that any member requested."""
        return max((m.rejoin_timeout_ms for m in self._members.values()), default=0)

    def support_any(self, protocols: Iterable[Protocol]) -> bool:
        """Whether all members support one of these."""
        return any(self._supporters[p.name] == len(self) for p in protocols)

    def choose_protocol(self) -> str:
        """What most members like best of what all support; the leader decides between equals.

        `support_any` was checked for every member, so there is one. Where there is none all the
        same (a damaged record), the leader's first choice.
        """
        assert self.leader is not None
        votes: Counter[str] = Counter()
        for member in self._members.values():
            votes.update(self._common(member)[:1])
        leader = self._members[self.leader]
        choice = [*self._common(leader), *(p.name for p in leader.protocols)]
        return max(choice, key=votes.__getitem__)  # the first of equals

    def _common(self, member: Member) -> list[str]:
        return [p.name for p in member.protocols if self._supporters[p.name] == len(self)]

    def subscribed_topics(self, protocol: str) -> frozenset[str] | None:
        """Topics of all members, if what they said with `protocol` is a consumer's; else None."""
        found: set[str] = set()
        try:
            for member in self._members.values():
                found.update(_topics(member.metadata_for(protocol)))
        except MalformedMessage:
            return None
        return frozenset(found)

    def told_to_leader(self, protocol: str) -> tuple[JoinedMember, ...]:
        """The members as their leader gets them."""
        return tuple(
            JoinedMember(m.member_id, m.instance_id, m.metadata_for(protocol))
            for m in self._members.values()
        )


def _topics(metadata: bytes) -> tuple[str, ...]:
    """Read as version 0, which all versions begin with: what follows need not be known."""
    if len(metadata) < _VERSION.size or _VERSION.unpack_from(metadata)[0] < 0:
        raise MalformedMessage("ConsumerProtocolSubscription", 0, "no version")
    cls = ConsumerProtocolSubscription
    return codec.decode(cls, 0, memoryview(metadata), _VERSION.size)[0].topics
