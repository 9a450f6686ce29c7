"""Requests to a KIP-848 group, its answers, and what it reads of the cluster's state; as data.

Members that speak the classic calls ask in the words of `classic.events`.

Null and -1 of Kafka's messages keep their meaning, "as before"; `epoch` 0 joins, -1 leaves, -2 is a
static member that will be back.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from lapse.coordination.classic.events import GroupSettings
from lapse.coordination.records.consumer_groups import ClassicMemberMetadata

JOINING = 0
AWAY = -2
"""Epochs that say what a member is about."""

AS_BEFORE_MS = -1

Partitions = Mapping[uuid.UUID, frozenset[int]]
"""Partitions by the id of their topic."""


class MigrationPolicy(StrEnum):
    """`group.consumer.migration.policy`: which groups with members may change their protocol."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def allows_upgrade(self) -> bool:
        """Whether a classic group may become one of KIP-848."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def allows_downgrade(self) -> bool:
        """Whether one of KIP-848 may become a classic group."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


@dataclass(frozen=True, slots=True)
class ConsumerGroupSettings:
    """A broker's settings of these groups, with Kafka's defaults.

    Attributes:
        session_timeout_ms: `group.consumer.session.timeout.ms`.
        heartbeat_interval_ms: `group.consumer.heartbeat.interval.ms`.
        size_max: `group.consumer.max.size`, members.
        assignors: `group.consumer.assignors`; the first is for members that name none.
        assignment_interval_ms: `group.consumer.assignment.interval.ms`, between two targets.
        regex_refresh_interval_ms: `group.consumer.regex.refresh.interval.ms`.
        classic: what holds for members that speak the classic calls, and for classic groups.
    """

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    size_max: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    assignment_interval_ms: int = 1_000
    regex_refresh_interval_ms: int = 600_000
    migration: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    classic: GroupSettings = field(default_factory=GroupSettings)


class TopicShape(Protocol):
    """What a group needs to know of a topic."""

    @property
    def name(self) -> str: ...

    @property
    def topic_id(self) -> uuid.UUID: ...

    @property
    def partitions(self) -> int: ...


class Cluster(Protocol):
    """All topics at one moment; another object after every change."""

    @property
    def topics(self) -> Mapping[str, TopicShape]: ...

    @property
    def ids(self) -> Mapping[uuid.UUID, TopicShape]: ...


@dataclass(frozen=True, slots=True)
class Beat:
    """ConsumerGroupHeartbeat; or what a JoinGroup comes to, if `classic` says with what it came.

    Attributes:
        topics: subscribed to, by name.
        pattern: subscribed to as well: RE2, whole names; "" is none.
        assignor: the one this member would like.
        owned: what it has; None where it has not changed.
        resolved: patterns of the group that were looked up for this heartbeat, and their topics.
    """

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = AS_BEFORE_MS
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    resolved: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    classic: ClassicMemberMetadata | None = None

    @property
    def is_full(self) -> bool:
        """Whether it says everything, as after an error; the answer then does too."""
        subscribes = self.topics is not None or self.pattern is not None
        return self.rebalance_timeout_ms != AS_BEFORE_MS and subscribes and self.owned is not None


@dataclass(frozen=True, slots=True)
class BeatTaken:
    """The answer; `assignment` is None where it has not changed."""

    member_id: str
    epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


@dataclass(frozen=True, slots=True)
class DescribedMember:
    """A member as ConsumerGroupDescribe shows it."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    pattern: str
    assigned: Partitions
    target: Partitions
    is_classic: bool


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group as ConsumerGroupDescribe shows it."""

    group_id: str
    state: str
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[DescribedMember, ...]
