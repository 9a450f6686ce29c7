"""One group of KIP-848: its public face; heartbeats and time in, steps out, no clock and no I/O.

A *step* is what an event comes to: entries, and the state with them. The owner appends the entries
and calls `appended`; until then the group is as it was, and a step whose append failed is simply
forgotten. So only one step may be under way at a time, and the log always says what memory says.
Sessions and rebalances have deadlines; the owner calls `tick` at `next_deadline_ms`.

    Empty → Assigning → Reconciling → Stable: of the group, told from epochs and members alone
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lapse.coordination import consumer_transitions as transitions
from lapse.coordination.classic_events import NO_MEMBER_ID
from lapse.coordination.consumer_checks import check_beat
from lapse.coordination.consumer_events import (
    JOINING,
    Beat,
    BeatTaken,
    Cluster,
    ConsumerGroupSettings,
    DescribedGroup,
    DescribedMember,
)
from lapse.coordination.consumer_groups import CURRENT_MEMBER, MemberState
from lapse.coordination.consumer_state import ConsumerState, Draft, plain
from lapse.coordination.consumer_transitions import Now
from lapse.coordination.deadlines import Deadlines
from lapse.coordination.entries import Entry

REGEX_REFRESH_MIN_MS = 10_000
"""Patterns are not looked up again sooner than this; fixed in Kafka."""
RETRY_MS = 1_000
_SESSION, _REBALANCE = "session", "rebalance"


@dataclass(frozen=True, slots=True)
class Step:
    """What an event comes to, if its entries can be appended.

    Attributes:
        state: the group then.
        answer: None where nobody asked.
        seen: the topics it was judged by; None where they were not looked at.
        due: deadlines that led to it.
    """

    entries: tuple[Entry, ...]
    state: ConsumerState
    answer: BeatTaken | None = None
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
            self._extend_session(member_id, now_ms)
            self._time_rebalance(member_id, now_ms)

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
        self, request: Beat, cluster: Cluster, now_ms: int, *, makes_own_id: bool = True
    ) -> Step:
        """A member joins, lives or leaves; raises KafkaError where it is refused."""
        check_beat(self.state.group_id, request, self._settings, makes_own_id=makes_own_id)
        draft = Draft(self.state)
        if request.epoch < JOINING:
            answer = transitions.leave(draft, request, cluster)
        else:
            if request.member_id == NO_MEMBER_ID:
                request = replace(request, member_id=self._new_id())
            now = Now(cluster, self._settings, now_ms, cluster is not self._seen)
            answer = transitions.beat(draft, request, now)
        return Step(tuple(draft.entries), draft.state, answer, cluster)

    def tick(self, cluster: Cluster, now_ms: int) -> Step | None:
        """Remove members that were silent too long, or would not give up what they were to."""
        due = tuple(self._deadlines.take_due(now_ms))
        gone = {member_id for _, member_id in due} & self.state.members.keys()
        if not gone:
            return None
        draft = Draft(self.state)
        transitions.remove(draft, sorted(gone), cluster)
        return Step(tuple(draft.entries), draft.state, due=due)

    def delete(self) -> Step:
        """Remove everything; the owner has seen to it that nobody is in it."""
        draft = Draft(self.state)
        draft.remove_group()
        return Step(tuple(draft.entries), draft.state)

    # --- the owner's --------------------------------------------------------------------------

    def appended(self, step: Step, now_ms: int) -> None:
        """A step's entries are in the log, or it had none."""
        self.state = step.state
        moved = [e.key.member_id for e in step.entries if e.type == CURRENT_MEMBER]
        for member_id in dict.fromkeys(moved):
            self._time_rebalance(member_id, now_ms)
        if step.seen is not None:
            self._seen = step.seen
        answer = step.answer
        if answer is not None and answer.epoch > JOINING:
            self._extend_session(answer.member_id, now_ms)

    def matched(self, cluster: Cluster) -> None:
        """All patterns that were due have been looked up among these topics."""
        self._matched_in = cluster

    def failed(self, step: Step, now_ms: int) -> None:
        """A step's entries could not be appended: what led to it is due again soon."""
        for key in step.due:
            self._deadlines.set(key, now_ms + RETRY_MS)

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
                )
                for m in state.members.values()
            ),
        )  # fmt: skip

    # --- deadlines ----------------------------------------------------------------------------

    def _extend_session(self, member_id: str, now_ms: int) -> None:
        self._deadlines.set((_SESSION, member_id), now_ms + self._settings.session_timeout_ms)

    def _time_rebalance(self, member_id: str, now_ms: int) -> None:
        """From when it is told to give something up, whatever it says meanwhile."""
        member = self.state.members.get(member_id)
        if member is None:
            self._deadlines.clear((_SESSION, member_id))
        if member is not None and member.state is MemberState.UNREVOKED_PARTITIONS:
            timeout_ms = max(member.rebalance_timeout_ms, 0)
            self._deadlines.set((_REBALANCE, member_id), now_ms + timeout_ms)
        else:
            self._deadlines.clear((_REBALANCE, member_id))
