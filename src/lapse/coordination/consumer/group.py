"""One group of KIP-848: its public face; heartbeats and time in, steps out, no clock and no I/O.

What Kafka calls ConsumerGroup.

Its members may speak the classic calls as well (`classic_members`); it may come of a
classic group and end as one (`migration`).

A *step* is what an event comes to: entries, and the state with them. The owner appends the entries
and calls `appended`; until then the group is as it was, and a step whose append failed is simply
forgotten. So only one step may be under way at a time, and the log always says what memory says.
Sessions and rebalances have deadlines; the owner calls `tick` at `next_deadline_ms`.

    Empty → Assigning → Reconciling → Stable: of the group, derived from epochs and members alone
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lapse.base.errors import ErrorCode
from lapse.base.times import after_ms
from lapse.coordination.classic.events import (
    NO_MEMBER_ID,
    Answer,
    Heartbeat,
    HeartbeatTaken,
    Join,
    Joined,
    Leave,
    Request,
    Sync,
    Synced,
)
from lapse.coordination.classic.group import ClassicGroup
from lapse.coordination.consumer import classic_members, transitions
from lapse.coordination.consumer.checks import check_beat
from lapse.coordination.consumer.events import (
    AWAY,
    JOINING,
    Beat,
    BeatTaken,
    Cluster,
    ConsumerGroupSettings,
    DescribedGroup,
    DescribedMember,
)
from lapse.coordination.consumer.migration import downgraded, may_downgrade
from lapse.coordination.consumer.state import ConsumerState, Draft, Member, plain
from lapse.coordination.consumer.transitions import Now
from lapse.coordination.deadlines import Deadlines
from lapse.coordination.records.consumer_groups import CURRENT_MEMBER, MemberState
from lapse.coordination.records.entries import Entry

REGEX_REFRESH_MIN_MS = 10_000
"""Patterns are not looked up again sooner than this; fixed in Kafka."""
RETRY_MS = 1_000
_SESSION, _REBALANCE = "session", "rebalance"
_JOIN, _SYNC = "join", "sync"
"""Deadlines of members; the last two only of those that speak the classic calls."""


@dataclass(frozen=True, slots=True)
class Step:
    """What an event comes to, if its entries can be appended.

    Attributes:
        state: the group then.
        answer: None where no request caused the change.
        member_id: the member that sent the request, and so lives.
        successor: the classic group that this one ends as.
        seen: the topics it was judged by; None where they were not looked at.
        due: deadlines that led to it.
    """

    entries: tuple[Entry, ...]
    state: ConsumerState
    answer: BeatTaken | Answer | None = None
    member_id: str | None = None
    successor: ClassicGroup | None = None
    seen: Cluster | None = None
    due: tuple[tuple[str, str], ...] = ()


class ConsumerGroup:
    """A group.

    Attributes:
        state: what the log says of it.
    """

    def __init__(
        self,
        state: ConsumerState,
        settings: ConsumerGroupSettings,
        new_id: Callable[[], str],
        now_ms: int,
    ) -> None:
        """One that is new, or was loaded: sessions and rebalances begin anew then."""
        self.state = state
        self._settings, self._new_id = settings, new_id
        self._deadlines: Deadlines[tuple[str, str]] = Deadlines()
        self._seen: Cluster | None = None
        self._matched_in: Cluster | None = None
        for member_id in state.members:
            self._time(member_id, now_ms)

    # --- events -------------------------------------------------------------------------------

    def patterns_due(self, request: Beat, cluster: Cluster, now_ms: int) -> frozenset[str]:
        """Patterns to be looked up for a heartbeat; their topics belong into its `resolved`."""
        state = self.state
        member = state.members.get(request.member_id)
        kept = member.pattern if member is not None else ""
        own = kept if request.pattern is None else request.pattern
        patterns = {*state.patterns(), own} - {""}
        unknown = patterns - state.resolved.keys()
        last_ms = max((r.timestamp for r in state.resolved.values()), default=0)
        age_ms = now_ms - last_ms
        has_news = cluster is not self._matched_in and not 0 <= age_ms <= REGEX_REFRESH_MIN_MS
        is_old = not 0 <= age_ms <= self._settings.regex_refresh_interval_ms
        return frozenset(patterns if has_news or is_old else unknown)

    def heartbeat(
        self,
        request: Beat,
        cluster: Cluster,
        now_ms: int,
        *,
        makes_own_id: bool = True,
        onto: Draft | None = None,
    ) -> Step:
        """A member joins, lives or leaves; raises KafkaError where it is refused.

        `onto`: what is to be appended before that, of a new group that comes of a classic one.
        """
        check_beat(self.state.group_id, request, self._settings, makes_own_id=makes_own_id)
        draft = Draft(self.state) if onto is None else onto
        if request.epoch < JOINING:
            answer = transitions.leave(draft, request)
            successor = self._make_up(draft, cluster, now_ms)
            return Step(tuple(draft.entries), draft.state, answer, successor=successor)
        if request.member_id == NO_MEMBER_ID:
            request = replace(request, member_id=self._new_id())
        answer = transitions.beat(draft, request, self._now(cluster, now_ms))
        return Step(tuple(draft.entries), draft.state, answer, answer.member_id, seen=cluster)

    def handle(self, request: Request, cluster: Cluster, now_ms: int) -> Step:
        """One of the classic calls; raises KafkaError where it is refused."""
        draft = Draft(self.state)
        member_id: str | None = None
        successor: ClassicGroup | None = None
        seen: Cluster | None = None
        answer: Answer
        match request:
            case Join():
                now = self._now(cluster, now_ms)
                answer, successor = classic_members.join(draft, request, now, self._new_id)
                if answer.error is ErrorCode.NONE:  # it may only have been given an id
                    member_id, seen = answer.member_id, cluster
            case Sync(member_id=member_id):
                answer = classic_members.sync(self.state, request, cluster)
            case Heartbeat(member_id=member_id):
                answer = classic_members.heartbeat(self.state, request)
            case Leave():
                answer = classic_members.leave(draft, request)
                successor = self._make_up(draft, cluster, now_ms)
        return Step(tuple(draft.entries), draft.state, answer, member_id, successor, seen)

    def tick(self, cluster: Cluster, now_ms: int) -> Step | None:
        """Remove members that were silent too long, or would not give up what they were to."""
        due = tuple(self._deadlines.take_due(now_ms))
        gone = {member_id for _, member_id in due} & self.state.members.keys()
        if not gone:
            return None
        draft = Draft(self.state)
        transitions.remove(draft, sorted(gone))
        successor = self._make_up(draft, cluster, now_ms)
        return Step(tuple(draft.entries), draft.state, successor=successor, due=due)

    def delete(self) -> Step:
        """Remove everything; the owner has seen to it that it has no members."""
        draft = Draft(self.state)
        draft.remove_group()
        return Step(tuple(draft.entries), draft.state)

    def _now(self, cluster: Cluster, now_ms: int) -> Now:
        return Now(cluster, self._settings, now_ms, cluster is not self._seen)

    def _make_up(self, draft: Draft, cluster: Cluster, now_ms: int) -> ClassicGroup | None:
        """For members that went: a new epoch for the others, or a classic group of them."""
        if len(draft.state.members) == len(self.state.members):
            return None
        if may_downgrade(draft.state, self._settings):
            now = self._now(cluster, now_ms)
            return downgraded(draft, now, self._new_id, generation=self.state.epoch, quiet=False)
        transitions.bump(draft, cluster)
        return None

    # --- the owner's --------------------------------------------------------------------------

    def appended(self, step: Step, now_ms: int) -> None:
        """A step's entries are in the log, or it had none."""
        self.state = step.state
        moved = [e.key.member_id for e in step.entries if e.type == CURRENT_MEMBER]
        for member_id in dict.fromkeys(moved):
            self._time(member_id, now_ms)
        if step.seen is not None:
            self._seen = step.seen
        member = self.state.members.get(step.member_id or NO_MEMBER_ID)
        if member is not None:
            self._has_asked(member, step.answer, now_ms)

    def matched(self, cluster: Cluster) -> None:
        """All patterns that were due have been looked up among these topics."""
        self._matched_in = cluster

    def failed(self, step: Step, now_ms: int) -> None:
        """A step's entries could not be appended: what led to it is due again soon."""
        for key in step.due:
            self._deadlines.set(key, now_ms + RETRY_MS)

    def move_deadlines(self, by_ms: int) -> None:
        """The clock was set: what was to be waited for takes no longer, and no less, by it."""
        self._deadlines.move_all(by_ms)

    @property
    def next_deadline_ms(self) -> int | None:
        """When to call `tick`; may be early."""
        return self._deadlines.next_ms

    # --- what others ask ----------------------------------------------------------------------

    def describe(self, cluster: Cluster) -> DescribedGroup:
        """As ConsumerGroupDescribe answers; topics that are no more are left out."""
        state = self.state
        return DescribedGroup(
            state.group_id,
            state.phase,
            state.epoch,
            state.target_epoch,
            state.assignor(self._settings.assignors[0]),
            tuple(
                DescribedMember(
                    m.member_id,
                    m.instance_id,
                    m.rack_id,
                    m.epoch,
                    m.client_id,
                    m.client_host,
                    m.topics,
                    m.pattern,
                    {t: ns for t, ns in plain(m.assigned).items() if t in cluster.ids},
                    {t: ns for t, ns in state.targets.get(m.member_id, {}).items()
                     if t in cluster.ids},
                    m.classic is not None,
                )
                for m in state.members.values()
            ),
        )  # fmt: skip

    # --- deadlines ----------------------------------------------------------------------------

    def _time(self, member_id: str, now_ms: int) -> None:
        """A member is there, holds other things than before, or is gone."""
        member = self.state.members.get(member_id)
        if member is None:
            for what in (_SESSION, _REBALANCE, _JOIN, _SYNC):
                self._deadlines.clear((what, member_id))
            return
        if (_SESSION, member_id) not in self._deadlines:
            self._extend_session(member, now_ms)
        # From when it must give something up, whatever it sends meanwhile.
        # One that is away has let go of that, and has its session to come back in.
        if member.state is MemberState.UNREVOKED_PARTITIONS and member.epoch != AWAY:
            self._wait(_REBALANCE, member, now_ms)
        else:
            self._deadlines.clear((_REBALANCE, member_id))

    def _has_asked(self, member: Member, answer: BeatTaken | Answer | None, now_ms: int) -> None:
        """A member that lives, and what it is to do in time, if it speaks the classic calls."""
        member_id = member.member_id
        match answer:
            case BeatTaken():
                self._deadlines.clear((_JOIN, member_id))
                self._deadlines.clear((_SYNC, member_id))
            case Joined():
                self._deadlines.clear((_JOIN, member_id))
                self._wait(_SYNC, member, now_ms)
            case Synced(error=ErrorCode.NONE):
                self._deadlines.clear((_SYNC, member_id))
            case Synced() | HeartbeatTaken(error=ErrorCode.REBALANCE_IN_PROGRESS):
                if (_JOIN, member_id) not in self._deadlines:
                    self._wait(_JOIN, member, now_ms)
        self._extend_session(member, now_ms)

    def _extend_session(self, member: Member, now_ms: int) -> None:
        classic = member.classic
        timeout_ms = self._settings.session_timeout_ms
        if classic is not None:
            timeout_ms = classic.session_timeout_ms
        self._deadlines.set((_SESSION, member.member_id), after_ms(now_ms, timeout_ms))

    def _wait(self, what: str, member: Member, now_ms: int) -> None:
        self._deadlines.set((what, member.member_id), now_ms + max(member.rebalance_timeout_ms, 0))
