"""Requests to a classic consumer group, its answers, and the records it has appended; as data.

Requests and answers are free of versions: a handler builds them from the wire's messages and turns
answers back. A request's `token` is its owner's name for the request that waits; each gets exactly
one `Reply`, maybe only after a later event.

Null and default values are those of Kafka's messages: -1 is no generation, an empty member id says
that the group has yet to give one.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from lapse.base.errors import ErrorCode
from lapse.coordination.records.entries import encode_entry
from lapse.coordination.records.offsets import GROUP_METADATA, GroupMetadataKey, GroupMetadataValue

NO_MEMBER_ID = ""
NO_LEADER = ""
NO_GENERATION = -1

Token = Hashable


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """A broker's settings of classic groups, with Kafka's defaults.

    Attributes:
        session_timeout_min_ms: `group.min.session.timeout.ms`.
        session_timeout_max_ms: `group.max.session.timeout.ms`.
        initial_rebalance_delay_ms: `group.initial.rebalance.delay.ms` (KIP-134).
        size_max: `group.max.size`, members (KIP-389).
        new_member_join_timeout_ms: how long a member that knows no id yet may wait for a join;
            fixed in Kafka.
    """

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    size_max: int = 2**31 - 1
    new_member_join_timeout_ms: int = 300_000


# --- requests ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Protocol:
    """A way of assigning that a member supports; the metadata is for the group's leader."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Join:
    """JoinGroup.

    Attributes:
        rebalance_timeout_ms: 0 or less: the session timeout (version 0 had no other).
        protocols: best first; a name given twice counts once.
        needs_member_id: from version 4, a member without an id is given one and sent back to join
            with it (KIP-394).
        may_skip_assignment: from version 9, a static leader can be kept from assigning (KIP-814).
        reason: for logs (KIP-800).
    """

    token: Token
    member_id: str
    session_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    rebalance_timeout_ms: int = -1
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    needs_member_id: bool = True
    may_skip_assignment: bool = True
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Sync:
    """SyncGroup; only the leader's `assignments`, by member id, count.

    Attributes:
        protocol_type: with `protocol`, what the member thinks was agreed on (KIP-559).
        needs_protocol: from version 5, both must be given.
    """

    token: Token
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)
    needs_protocol: bool = False


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Heartbeat."""

    token: Token
    member_id: str
    generation: int
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Leaving:
    """A member to go; an administrator names a static one by its instance id alone (KIP-345)."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """LeaveGroup; before version 3 of one member."""

    token: Token
    members: tuple[Leaving, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """Who commits offsets, of OffsetCommit and TxnOffsetCommit; -1 and "" from outside a group.

    Attributes:
        generation: or the member's epoch, in a group of KIP-848.
        knows_epochs: from version 9 of OffsetCommit on, which members of such a group must use.
    """

    member_id: str = NO_MEMBER_ID
    generation: int = NO_GENERATION
    instance_id: str | None = None
    transactional: bool = False
    knows_epochs: bool = True


# --- answers ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as JoinGroup's answer to the group's leader lists it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to Join.

    Attributes:
        protocol: None in a refusal; versions before 7 say "" for it.
        members: for the leader alone.
    """

    error: ErrorCode
    member_id: str = NO_MEMBER_ID
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = NO_LEADER
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class Synced:
    """The answer to Sync."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class HeartbeatTaken:
    """The answer to Heartbeat."""

    error: ErrorCode


@dataclass(frozen=True, slots=True)
class LeftMember:
    """What became of one member that was to go."""

    member_id: str
    instance_id: str | None
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class Left:
    """The answer to Leave; before version 3 the only member's error is the request's."""

    error: ErrorCode
    members: tuple[LeftMember, ...] = ()


Request = Join | Sync | Heartbeat | Leave
Answer = Joined | Synced | HeartbeatTaken | Left

# --- effects ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the request that waits under `token`; one whose client is gone may be dropped."""

    token: Token
    answer: Answer


@dataclass(frozen=True, slots=True)
class Store:
    """Append this record and call `stored(ticket, …)` when it is durable, or cannot be.

    Attributes:
        ticket: names this store; they are appended in the order of the group's requests.
        value: None removes the group.
    """

    ticket: int
    group_id: str
    value: GroupMetadataValue | None

    def record(self) -> tuple[bytes, bytes | None]:
        """Key and value bytes."""
        return encode_entry(GROUP_METADATA, GroupMetadataKey(group=self.group_id), self.value)


Effect = Reply | Store
Effects = tuple[Effect, ...]

# --- refusals that need no group -----------------------------------------------------------------


def refusal(request: Request, error: ErrorCode) -> Reply:
    """A request's answer when its group cannot handle it: moved, loading, an invalid group id."""
    answer: Answer
    match request:
        case Join():
            answer = Joined(error, request.member_id)
        case Sync():
            answer = Synced(error)
        case Heartbeat() if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # Kafka's kindness: sessions are counted anew once the group is there.
            answer = HeartbeatTaken(ErrorCode.NONE)
        case Heartbeat():
            answer = HeartbeatTaken(error)
        case Leave() if error is ErrorCode.UNKNOWN_MEMBER_ID:
            members = (LeftMember(m.member_id, m.instance_id, error) for m in request.members)
            answer = Left(ErrorCode.NONE, tuple(members))
        case Leave():
            answer = Left(error)
    return Reply(request.token, answer)


def creates_group(request: Request) -> bool:
    """Whether a request to a group that does not exist makes one: a join without a member id.

    All others get `refusal(request, UNKNOWN_MEMBER_ID)`.
    """
    return isinstance(request, Join) and request.member_id == NO_MEMBER_ID
