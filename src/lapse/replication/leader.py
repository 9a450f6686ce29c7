"""What a leader knows of its partition's replicas: how far each is, and what is committed.

What Kafka calls Partition and Replica; no I/O and no clock.

A record is committed once every in-sync replica has it; the high watermark says up to where. Who
joins the in-sync replicas counts from when that is asked of the metadata store, who leaves until
it is stored (KIP-497): whichever of the two is in force there, nothing is committed too early.

What a follower said to an earlier leader, or in an earlier epoch, counts nothing: until it has
fetched, the high watermark stays where it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

UNKNOWN = -1


@dataclass(slots=True)
class Follower:
    """One other replica.

    Attributes:
        end_offset: where its log ends, as its last fetch said.
        log_start_offset: where its log starts.
        caught_up_ms: when it last had all that the leader had at the time of a fetch; monotonic.
    """

    caught_up_ms: int
    end_offset: int = UNKNOWN
    log_start_offset: int = UNKNOWN
    fetched_ms: int = UNKNOWN
    leader_end_then: int = UNKNOWN

    def fetched(self, offset: int, log_start: int, leader_end: int, now_ms: int) -> None:
        """It asks for what follows `offset`. As Kafka's Replica.updateFetchStateOrThrow."""
        if offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif self.leader_end_then != UNKNOWN and offset >= self.leader_end_then:
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.end_offset, self.log_start_offset = offset, log_start
        self.fetched_ms, self.leader_end_then = now_ms, leader_end

    def lags(self, leader_end: int, now_ms: int, lag_max_ms: int) -> bool:
        """Whether it has not been caught up for so long."""
        return self.end_offset != leader_end and now_ms - self.caught_up_ms > lag_max_ms


@dataclass(frozen=True, slots=True)
class LogStarts:
    """Where replicas' logs start, of those that a low watermark is the least of; and the others."""

    counted: Mapping[int, int]
    away: AbstractSet[int]


class LeaderReplicas:
    """The replicas of one partition, while this broker leads it in one epoch.

    Attributes:
        isr: the in-sync replicas as stored, this broker among them.
        uncounted: who has left the count (L3), and is not in sync until it has begun anew.
        epoch_start: where the log ended when the epoch began.
        high_watermark: below it everything is committed; it never goes back.
        asked: what the in-sync replicas shall be; None while nothing is asked of the store.
    """

    def __init__(
        self,
        me: int,
        replicas: Collection[int],
        isr: Collection[int],
        *,
        epoch_start: int,
        high_watermark: int,
        now_ms: int,
    ) -> None:
        self._me, self.epoch_start = me, epoch_start
        self.followers: dict[int, Follower] = {}
        self.set_replicas(replicas, now_ms)
        self.isr: AbstractSet[int] = frozenset(isr)
        self.uncounted: AbstractSet[int] = frozenset()
        self.asked: AbstractSet[int] | None = None
        self.high_watermark = high_watermark

    def set_replicas(self, replicas: Collection[int], now_ms: int) -> None:
        """Some come or go while this broker leads on (KIP-455)."""
        known = self.followers
        self.followers = {b: known.get(b) or Follower(now_ms) for b in replicas if b != self._me}

    @property
    def counted(self) -> AbstractSet[int]:
        """Those that must have a record before it is committed."""
        return self.isr if self.asked is None else self.isr | self.asked

    def fetched(
        self, broker: int, offset: int, log_start: int, leader_end: int, now_ms: int
    ) -> bool:
        """A follower fetches; True if its log start has moved. Strangers change nothing."""
        follower = self.followers.get(broker)
        if follower is None:
            return False
        before = follower.log_start_offset
        follower.fetched(offset, log_start, leader_end, now_ms)
        return before != log_start

    def advance(self, leader_end: int) -> bool:
        """Move the high watermark to where every counted replica is; True if it moved."""
        others = [self.followers[b].end_offset for b in self.counted if b in self.followers]
        reached = min([leader_end, *others])
        if reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        return True

    def log_starts(self, own_start: int, alive: AbstractSet[int]) -> LogStarts:
        """Of all replicas that are alive, or in sync, dead ones too (KIP-107).

        Who has not yet fetched in this epoch has -1: nobody knows what it holds.
        """
        counted = {
            broker: follower.log_start_offset
            for broker, follower in self.followers.items()
            if broker in alive or broker in self.counted
        }
        return LogStarts({self._me: own_start, **counted}, self.followers.keys() - counted.keys())

    def is_start_unknown_to_some(self, own_start: int, alive: AbstractSet[int]) -> bool:
        """Whether a replica that is away may lack that the log starts there."""
        away = self.log_starts(own_start, alive).away
        return any(self.followers[b].log_start_offset < own_start for b in away) and own_start > 0

    def furthest_with(self, offset: int, among: Collection[int]) -> int | None:
        """Which in-sync follower of these has an offset; the one that has most (KIP-392)."""
        able = [
            (follower.end_offset, follower.caught_up_ms, broker)
            for broker, follower in self.followers.items()
            if broker in among
            and broker in self.isr
            and 0 <= follower.log_start_offset <= offset <= follower.end_offset
        ]
        return max(able)[-1] if able else None

    def wanted_isr(
        self,
        leader_end: int,
        now_ms: int,
        lag_max_ms: int,
        joining: int | None = None,
        *,
        log_start: int,
    ) -> AbstractSet[int]:
        """The in-sync replicas as they should be; `joining`: who fetches just now, and may join.

        Who joins has all that is committed, and all that the leader had when its epoch began: else
        it could be elected without what an earlier leader had acknowledged. Only its fetch of this
        moment counts: since an earlier one it may have started again, and have lost something. Nor
        has it anything below `log_start`, where the leader's log starts: what it has there may be
        of a leader whose records were lost by an unclean election, and nobody can compare it.
        """
        wanted = {self._me}
        for broker, follower in self.followers.items():
            if broker in self.isr:
                keeps = not follower.lags(leader_end, now_ms, lag_max_ms)
            else:
                reached = max(self.high_watermark, self.epoch_start)
                may_join = broker == joining and broker not in self.uncounted
                starts_there = follower.log_start_offset >= log_start
                keeps = may_join and starts_there and follower.end_offset >= reached
            if keeps:
                wanted.add(broker)
        return frozenset(wanted)
