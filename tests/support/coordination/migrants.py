"""A group that may be of either protocol, and clients of the classic one, to be driven by tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from lapse.base.errors import ErrorCode, KafkaError
from lapse.coordination.classic.events import (
    Answer,
    Effects,
    Heartbeat,
    HeartbeatTaken,
    Join,
    Joined,
    Leave,
    Leaving,
    Protocol,
    Reply,
    Request,
    Sync,
    Synced,
    creates_group,
    refusal,
)
from lapse.coordination.classic.group import ClassicGroup
from lapse.coordination.classic.state import State
from lapse.coordination.consumer.events import Beat, BeatTaken, Partitions
from lapse.coordination.consumer.group import Step
from lapse.coordination.consumer.migration import assignment_bytes, partitions_by_id, upgraded
from lapse.coordination.consumer.state import ConsumerState, Draft, load_states
from lapse.coordination.records.entries import (
    NO_VERSION,
    Folded,
    Write,
    decode_entry,
    encode_entry,
    fold,
)
from lapse.coordination.records.offsets import GROUP_METADATA, TYPES, GroupMetadataKey
from lapse.coordination.records.subscription import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
    read_versioned,
    write_versioned,
)
from tests.support.coordination.consumers import EAGER, TIMEOUT_MS, Driver, G

SESSION_MS = EAGER.session_timeout_ms
KEY = GroupMetadataKey(group=G)
_tokens = count()


@dataclass
class Both(Driver):
    """Plays the shard: a group is in `classic`, or it is one of KIP-848.

    Attributes:
        answers: by token, of classic calls.
    """

    classic: ClassicGroup | None = None
    answers: dict[object, Answer] = field(default_factory=dict)

    @property
    def is_classic(self) -> bool:
        """Whether there is a classic group with members."""
        return self.classic is not None and bool(len(self.classic.members))

    @property
    def member_ids(self) -> set[str]:
        if self.classic is not None:
            return {m.member_id for m in self.classic.members}
        return set(self.state.members)

    # --- asking -------------------------------------------------------------------------------

    def ask(self, beat: Beat, *, makes_own_id: bool = True) -> BeatTaken:
        if self.classic is None:
            return super().ask(beat, makes_own_id=makes_own_id)
        if beat.epoch != 0:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, G)
        onto = Draft(ConsumerState(G))
        if self.classic.state is not State.EMPTY:
            onto = upgraded(self.classic, self.settings, self.cluster)
        fresh = self.of(ConsumerState(G))
        step = fresh.heartbeat(beat, self.cluster, self.now_ms, onto=onto)
        self.log.append(encode_entry(GROUP_METADATA, KEY, None, NO_VERSION))
        old, self.classic, self.group = self.classic, None, fresh
        self._carry_out(old, old.hand_over(self.now_ms))
        self.append(step)
        assert isinstance(step.answer, BeatTaken)
        return step.answer

    def call(self, request: Request) -> Answer | None:
        """The answer; None if that is yet to come."""
        if self.classic is None and self.state.members:
            try:
                step = self.group.handle(request, self.cluster, self.now_ms)
            except KafkaError as e:
                return refusal(request, e.code).answer
            self.append(step)
            assert not isinstance(step.answer, BeatTaken)
            return step.answer
        if self.classic is None and not creates_group(request):
            return refusal(request, ErrorCode.UNKNOWN_MEMBER_ID).answer
        if self.classic is None:
            self.append(self.group.delete())
            self.classic = ClassicGroup(
                G, self.settings.classic, lambda: next(self._ids), self.now_ms
            )
        group = self.classic
        methods: Mapping[type, Any] = {
            Join: group.join, Sync: group.sync, Heartbeat: group.heartbeat, Leave: group.leave,
        }  # fmt: skip
        self._carry_out(group, methods[type(request)](request, self.now_ms))
        return self.answers.pop(request.token, None)

    def _carry_out(self, group: ClassicGroup, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                self.answers[effect.token] = effect.answer
            else:
                self.log.append(effect.record())
                stored = group.stored(effect.ticket, ErrorCode.NONE, self.now_ms)
                self._carry_out(group, stored)

    def tick(self) -> bool:
        if self.classic is None:
            return super().tick()
        effects = self.classic.tick(self.now_ms)
        self._carry_out(self.classic, effects)
        return bool(effects)

    def append(self, step: Step) -> None:
        super().append(step)
        if step.successor is not None:
            self.classic = step.successor
            self.group = self.of(ConsumerState(G))

    # --- the log ------------------------------------------------------------------------------

    def folded(self) -> Folded:
        return fold(Write(n, decode_entry(TYPES, *record)) for n, record in enumerate(self.log))

    def reload(self) -> None:
        """As another coordinator that loads the log; who waits is forgotten."""
        folded = self.folded()
        value = folded.of(GROUP_METADATA).get(KEY)
        states = load_states(folded)
        assert value is None or not states, "the log has two groups of one name"
        self.classic = None
        self.group = self.of(states.get(G, ConsumerState(G)))
        if value is not None:
            settings, ids = self.settings.classic, self._ids
            group = ClassicGroup.load(G, value, settings, lambda: next(ids), self.now_ms)
            self.classic = group


# --- clients of the classic protocol ------------------------------------------------------------


def subscription(
    *topics: str, owned: Mapping[str, Iterable[int]] | None = None, version: int | None = None
) -> bytes:
    said = ConsumerProtocolSubscription(
        topics=topics,
        owned_partitions=tuple(
            TopicPartitions(topic=name, partitions=tuple(sorted(ns)))
            for name, ns in (owned or {}).items()
        ),
    )
    return write_versioned(said, version)


def join_request(
    member_id: str = "",
    *topics: str,
    instance_id: str | None = None,
    owned: Mapping[str, Iterable[int]] | None = None,
    protocols: tuple[str, ...] = ("range",),
    **more: Any,
) -> Join:
    said = subscription(*(topics or ("t",)), owned=owned)
    given: dict[str, Any] = {
        "rebalance_timeout_ms": TIMEOUT_MS, "needs_member_id": False, "client_id": "c",
        "client_host": "/h", **more,
    }  # fmt: skip
    names = tuple(Protocol(name, said) for name in protocols)
    session_ms = given.pop("session_timeout_ms", SESSION_MS)
    kind = given.pop("protocol_type", "consumer")
    return Join(next(_tokens), member_id, session_ms, kind, names, instance_id=instance_id, **given)


def sync_request(member_id: str, generation: int, **more: Any) -> Sync:
    return Sync(next(_tokens), member_id, generation, **more)


def heartbeat_request(member_id: str, generation: int, **more: Any) -> Heartbeat:
    return Heartbeat(next(_tokens), member_id, generation, **more)


def leave_request(*members: Leaving) -> Leave:
    return Leave(next(_tokens), members)


class ClassicClient:
    """A consumer of the classic protocol; one call at a time.

    Attributes:
        cooperative: gives up only what it must, instead of everything before each join.
        owned: what it reads from.
    """

    def __init__(
        self, d: Both, instance_id: str | None, topics: tuple[str, ...], *, cooperative: bool
    ) -> None:
        self.d, self.instance_id, self.topics, self.cooperative = (
            d,
            instance_id,
            topics,
            cooperative,
        )
        self.member_id, self.generation = "", -1
        self.owned: Partitions = {}
        self.step = "join"
        self.waits: Request | None = None
        self.assignments: Mapping[str, bytes] = {}
        self.leads = False

    def live(self) -> None:
        """Take an answer that came, or make the next call."""
        if self.waits is not None:
            answer = self.d.answers.pop(self.waits.token, None)
            if answer is not None:
                self._take(answer)
            return
        request = self._next()
        answer = self.d.call(request)
        if answer is None:
            self.waits = request
        else:
            self._take(answer)

    def forget_waiting(self) -> None:
        """The broker went away; what it was asked is asked again."""
        if self.waits is not None:
            self.waits, self.step = None, "join"

    def leave(self) -> None:
        leaving = Leaving(self.member_id, self.instance_id)
        self.d.call(leave_request(leaving))

    def _next(self) -> Request:
        i = self.instance_id
        if self.step == "sync":
            assignments = self.assignments if self.leads else {}
            return sync_request(
                self.member_id, self.generation, instance_id=i, assignments=assignments
            )
        if self.step == "heartbeat":
            return heartbeat_request(self.member_id, self.generation, instance_id=i)
        if not self.cooperative:
            self.owned = {}
        owned = {self.d.cluster.ids[t].name: ns for t, ns in self.owned.items()
                 if t in self.d.cluster.ids}  # fmt: skip
        names = ("cooperative-sticky",) if self.cooperative else ("range",)
        return join_request(
            self.member_id, *self.topics, instance_id=i, owned=owned, protocols=names
        )

    def _take(self, answer: Answer) -> None:
        self.waits = None
        error = answer.error
        if error is ErrorCode.NONE:
            self._go_on(answer)
        elif error is ErrorCode.REBALANCE_IN_PROGRESS:
            self.step = "join"
        elif error in (
            ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.FENCED_INSTANCE_ID, ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ):  # fmt: skip
            self.owned, self.generation, self.step = {}, -1, "join"
            if error is not ErrorCode.ILLEGAL_GENERATION:
                self.member_id = ""
        else:
            raise AssertionError(answer)

    def _go_on(self, answer: Answer) -> None:
        match answer:
            case Joined():
                self.member_id, self.generation = answer.member_id, answer.generation
                self.step, self.leads = "sync", answer.leader == answer.member_id
                if self.leads and not answer.skip_assignment:
                    self.assignments = self._assign(answer)
            case Synced():
                given, _ = read_versioned(ConsumerProtocolAssignment, answer.assignment)
                told = partitions_by_id(given.assigned_partitions, self.d.cluster)
                loses = any(ns - told.get(t, frozenset()) for t, ns in self.owned.items())
                self.owned = told
                self.step = "join" if loses and self.cooperative else "heartbeat"
            case HeartbeatTaken():
                pass
            case _:
                raise AssertionError(answer)

    def _assign(self, joined: Joined) -> Mapping[str, bytes]:
        """Partitions in turn; those that another one reads yet are given next time (KIP-429)."""
        said = {
            m.member_id: read_versioned(ConsumerProtocolSubscription, m.metadata)[0]
            for m in joined.members
        }
        reads = {
            (tp.topic, n): member_id
            for member_id, s in said.items()
            for tp in s.owned_partitions
            for n in tp.partitions
        }
        given: dict[str, dict[uuid.UUID, set[int]]] = {member_id: {} for member_id in said}
        for topic in self.d.cluster.topics.values():
            readers = sorted(i for i, s in said.items() if topic.name in s.topics)
            for n in range(topic.partitions if readers else 0):
                to = readers[n % len(readers)]
                if reads.get((topic.name, n), to) == to:
                    given[to].setdefault(topic.topic_id, set()).add(n)
        metadata = joined.members[0].metadata
        return {
            i: assignment_bytes({t: frozenset(ns) for t, ns in p.items()}, metadata, self.d.cluster)
            for i, p in given.items()
        }
