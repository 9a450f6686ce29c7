"""A group of KIP-848 to be driven by tests: a cluster, a clock, and a log of what was appended."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count

from lapse.coordination.consumer.events import (
    Beat,
    BeatTaken,
    Cluster,
    ConsumerGroupSettings,
    Partitions,
)
from lapse.coordination.consumer.group import ConsumerGroup, Step
from lapse.coordination.consumer.state import ConsumerState, load_states
from lapse.coordination.records.entries import Write, decode_entry, encode_entry, fold
from lapse.coordination.records.offsets import GROUP_METADATA, TYPES

G = "g"
EAGER = ConsumerGroupSettings(assignment_interval_ms=0)
TIMEOUT_MS = 60_000


@dataclass(frozen=True)
class OneTopic:
    name: str
    topic_id: uuid.UUID
    partitions: int


@dataclass(frozen=True)
class Topics:
    topics: Mapping[str, OneTopic]
    ids: Mapping[uuid.UUID, OneTopic]


def topic_id(name: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_DNS, name)


def cluster(**partitions: int) -> Cluster:
    topics = [OneTopic(name, topic_id(name), n) for name, n in partitions.items()]
    return Topics({t.name: t for t in topics}, {t.topic_id: t for t in topics})


def partitions(**numbers: set[int]) -> Partitions:
    """By topic name."""
    return {topic_id(name): frozenset(ns) for name, ns in numbers.items() if ns}


@dataclass
class Driver:
    """Asks the group and appends what it wants.

    Attributes:
        log: every entry, as bytes.
        followed: a state made of the same bytes as they come.
    """

    cluster: Cluster
    settings: ConsumerGroupSettings = EAGER
    now_ms: int = 1_000_000
    log: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    group: ConsumerGroup = field(init=False)
    followed: ConsumerState = field(default_factory=lambda: ConsumerState(G))

    def __post_init__(self) -> None:
        self._ids = (f"id-{n}" for n in count())
        self.group = self.of(ConsumerState(G))

    def of(self, state: ConsumerState) -> ConsumerGroup:
        return ConsumerGroup(state, self.settings, lambda: next(self._ids), self.now_ms)

    @property
    def state(self) -> ConsumerState:
        return self.group.state

    def ask(self, beat: Beat, *, makes_own_id: bool = True) -> BeatTaken:
        step = self.group.heartbeat(beat, self.cluster, self.now_ms, makes_own_id=makes_own_id)
        self.append(step)
        assert isinstance(step.answer, BeatTaken)
        return step.answer

    def tick(self) -> bool:
        step = self.group.tick(self.cluster, self.now_ms)
        if step is not None:
            self.append(step)
        return step is not None

    def append(self, step: Step) -> None:
        records = [encode_entry(e.type, e.key, e.value, e.version) for e in step.entries]
        self.log += records
        for entry in (decode_entry(TYPES, *record) for record in records):
            if entry.type is not GROUP_METADATA:
                self.followed.apply(entry.type, entry.key, entry.value)
        self.group.appended(step, self.now_ms)

    def replayed(self) -> ConsumerState:
        """What another coordinator would load."""
        events = [Write(n, decode_entry(TYPES, *record)) for n, record in enumerate(self.log)]
        return load_states(fold(events)).get(G, ConsumerState(G))

    # --- short ways ---------------------------------------------------------------------------

    def join(
        self, member_id: str, *topics: str, instance_id: str | None = None, **more: object
    ) -> BeatTaken:
        names = topics or ("t",)
        return self.ask(joining(member_id, *names, instance_id=instance_id, **more))

    def beat(self, member_id: str, owned: Partitions | None = None, **more: object) -> BeatTaken:
        """At the member's present epoch."""
        epoch = self.state.members[member_id].epoch
        return self.ask(Beat(member_id, epoch, owned=owned, **more))  # type: ignore[arg-type]

    def leave(self, member_id: str, epoch: int = -1, instance_id: str | None = None) -> BeatTaken:
        return self.ask(Beat(member_id, epoch, instance_id=instance_id))


def joining(member_id: str, *topics: str, instance_id: str | None = None, **more: object) -> Beat:
    given = {"rebalance_timeout_ms": TIMEOUT_MS, "owned": {}, "topics": topics, **more}
    return Beat(member_id, 0, instance_id=instance_id, **given)  # type: ignore[arg-type]
