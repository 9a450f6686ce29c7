"""The partitions of this broker that have other replicas: which it leads, which it follows.

What Kafka calls ReplicaManager and AlterPartitionManager.

Each new image of the cluster is carried out in the order in which nothing is acknowledged twice:
first the logs refuse what is of an older epoch, then requests are judged by the new states, then
followers fetch and leaders count. All but the first lives in the event loop.

A leader moves the high watermark as its followers fetch, and asks the metadata store for other
in-sync replicas. While the store does not answer nobody leaves, and records wait to be committed:
a leader that is cut off commits nothing alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from lapse.base.clock import monotonic_ms
from lapse.base.errors import ErrorCode, KafkaError, LapseError
from lapse.base.ids import TopicPartition, format_topic_id
from lapse.broker.logs.purgatory import NEVER_SO_MANY_BYTES, Operation, Watch
from lapse.broker.replicas.cleaned import Cleaned, Copy, copy_of
from lapse.broker.replicas.deletions import Deletions
from lapse.broker.replicas.fetcher import Fetcher, Followed
from lapse.broker.replicas.following import Following
from lapse.broker.replicas.leading import NO_READ_YET, Leading, Surroundings
from lapse.broker.replicas.peers import Peers
from lapse.broker.replicas.returning import ReplicaStore, Returning
from lapse.coordination.records import transactions
from lapse.log.partition_log import PartitionLog
from lapse.metadata.election import left_with, resigned
from lapse.metadata.image import Image, Topic
from lapse.metadata.partition_states import (
    NO_LEADER,
    Life,
    LogEnd,
    PartitionState,
    StateChange,
    with_isr,
)
from lapse.replication import log_start
from lapse.replication.leader import LeaderReplicas

logger = logging.getLogger(__name__)

LOOKS_PER_LAG = 2  # at followers that may lag, as Kafka
LOOK_SECONDS_MAX = 5.0
AGAIN_SECONDS = 1.0


class AppendedTo(NamedTuple):
    """What was appended to a partition in an epoch of this broker's, and what comes after it."""

    partition: TopicPartition
    epoch: int
    end_offset: int


class Fetching(NamedTuple):
    """Who fetches: a broker, and the epoch of its registration."""

    broker: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class _Role:
    """What this broker is to be for a partition from now on."""

    partition: TopicPartition
    topic: Topic
    state: PartitionState
    log: PartitionLog

    def leads(self, node_id: int) -> bool:
        return self.state.leader == node_id


class Replicas:
    """All of them; does nothing on a broker that is alone.

    Attributes:
        reread: have what is stored read again.
        when_led: called with partitions that this broker leads from now on, or no longer does.
    """

    def __init__(self, around: Surroundings, store: ReplicaStore | None) -> None:
        """Without a `store` the broker is alone."""
        self._around, self._store = around, store
        self._cleaned = Cleaned(around.partitions, around.disk, around.asking, store)
        self._returning = Returning(around.partitions, self._cleaned, store)
        self._me = around.config.node_id
        self._image: Image | None = None
        self._new_image = asyncio.Event()
        self._applied: dict[TopicPartition, tuple[PartitionState, PartitionLog]] = {}
        self._leading: dict[TopicPartition, Leading] = {}
        self._fetchers: dict[int, Following] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        deletions = Deletions(around, self._leading, self._consider_start)
        self.deleted = deletions.done
        self.reread: Callable[[], None] = lambda: None
        self.when_led: list[Callable[[], None]] = []

    @property
    def peers(self) -> Peers:
        """The other brokers."""
        return self._around.peers

    # --- asking ---------------------------------------------------------------------------------

    def outcome(self, partition: TopicPartition, epoch: int, end_offset: int) -> ErrorCode | None:
        """What became of records that were appended below `end_offset`; None: not known yet.

        NONE once they are committed; NOT_ENOUGH_REPLICAS_AFTER_APPEND where too few have them;
        NOT_LEADER_OR_FOLLOWER where another broker was elected meanwhile.
        """
        if self._around.members.is_alone:
            return ErrorCode.NONE
        state = self._around.partitions.state_of(partition)
        if state is None or (state.leader, state.leader_epoch) != (self._me, epoch):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if len(state.replicas) == 1:
            return ErrorCode.NONE
        leading = self._leading.get(partition)
        if leading is None or leading.state.leader_epoch != epoch:
            return None
        if not self._around.partitions.hosts(leading.log):
            return None  # of a topic that was deleted: the one made anew is in the same epoch
        if leading.replicas.high_watermark < end_offset:
            return None
        enough = len(leading.replicas.isr) >= leading.log.config.min_insync_replicas
        return ErrorCode.NONE if enough else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    async def committed(
        self,
        appended: Sequence[AppendedTo],
        seconds: float,
        watching: Callable[[Watch | None], None] = lambda _: None,
    ) -> list[ErrorCode]:
        """What became of what was appended, each as `outcome`, in order; waits until it is known.

        REQUEST_TIMED_OUT where it is not after that time. `watching` gets what is waited with, so
        that somebody can end it: then all that is not known is REQUEST_TIMED_OUT, too.
        """
        codes: list[ErrorCode | None] = [None] * len(appended)
        deadline = self._around.clock.monotonic() + seconds
        watched = [one.partition for one in appended]
        with self._around.purgatory.watch(watched, Operation.PRODUCE) as watch:
            watching(watch)
            while True:
                watch.reset()
                for n, one in enumerate(appended):
                    if codes[n] is None:
                        codes[n] = self.outcome(one.partition, one.epoch, one.end_offset)
                left_s = deadline - self._around.clock.monotonic()
                if None not in codes or left_s <= 0:
                    break
                await watch.wait(NEVER_SO_MANY_BYTES, left_s)
                if watch.is_given_up:
                    break
            watching(None)
        return [ErrorCode.REQUEST_TIMED_OUT if code is None else code for code in codes]

    def in_sync(self, partition: TopicPartition) -> int:
        """How many replicas are in sync, this one among them."""
        state = self._around.partitions.state_of(partition)
        return 1 if state is None else len(state.isr)

    def led(self) -> Mapping[TopicPartition, LeaderReplicas]:
        """Partitions with several replicas that this broker leads."""
        return {partition: one.replicas for partition, one in self._leading.items()}

    def readers_near(
        self, rack: str, offsets: Iterable[tuple[TopicPartition, int]]
    ) -> dict[TopicPartition, int]:
        """In-sync followers in a consumer's rack that have these offsets (KIP-392).

        What is not among them it reads from the leader.
        """
        members = self._around.members
        racks = members.racks
        if not self._around.config.replica_selector_class or racks.get(self._me) == rack:
            return {}
        there = {b for b in members.alive.staying if racks.get(b) == rack}
        led = [(tp, self._leading[tp], at) for tp, at in offsets if tp in self._leading]
        found = ((tp, one.replicas.furthest_with(at, there)) for tp, one, at in led)
        return {tp: broker for tp, broker in found if broker is not None}

    def held_back(
        self, partitions: Iterable[TopicPartition], follower: int
    ) -> AbstractSet[TopicPartition]:
        """Those of which a follower gets nothing just now, so that others have the network."""
        quota, led = self._around.quotas.leader, self._leading
        if not quota.is_used_up(monotonic_ms(self._around.clock)):
            return frozenset()
        return {
            tp
            for tp in partitions
            if tp in led
            and follower not in led[tp].replicas.isr
            and quota.concerns(tp.partition, led[tp].log.config)
        }

    def gave(self, partition: TopicPartition, size: int) -> None:
        """A follower gets so many bytes of a partition."""
        quota, leading = self._around.quotas.leader, self._leading.get(partition)
        if size and leading and quota.concerns(partition.partition, leading.log.config):
            quota.record(size, monotonic_ms(self._around.clock))

    # --- what followers and producers do --------------------------------------------------------

    def fetched(
        self, partition: TopicPartition, epoch: int, who: Fetching, offset: int, log_start: int
    ) -> None:
        """A follower of that epoch has everything below `offset`."""
        leading, follower = self._leading.get(partition), who.broker
        if leading is None or leading.state.leader_epoch != epoch:
            return
        if not self._around.partitions.hosts(leading.log):
            return
        registered = self._around.members.brokers.get(follower)
        if registered is None or registered.epoch != who.broker_epoch:
            return  # it has started again since, and may have lost something (KIP-903)
        now_ms = monotonic_ms(self._around.clock)
        end = leading.log.log_end_offset
        if leading.replicas.fetched(follower, offset, log_start, end, now_ms):
            self._around.purgatory.changed(partition)  # somebody may wait for deletions
        self._advance(leading)
        if follower not in leading.replicas.isr and not registered.leaving:
            self._consider_isr(leading, Life(follower, who.broker_epoch))

    def appended(self, partition: TopicPartition) -> None:
        """The leader's own log has grown."""
        leading = self._leading.get(partition)
        if leading is not None and len(leading.replicas.counted) == 1:
            self._advance(leading)

    def _advance(self, leading: Leading) -> None:
        if leading.replicas.advance(leading.log.log_end_offset):
            leading.log.high_watermark = leading.replicas.high_watermark
            self._around.purgatory.committed(leading.log.partition)

    def _consider_isr(self, leading: Leading, joining: Life | None = None) -> None:
        replicas = leading.replicas
        if leading.is_asking:
            return
        now_ms, lag_ms = (
            monotonic_ms(self._around.clock),
            self._around.config.replica_lag_time_max_ms,
        )
        end, start = leading.log.log_end_offset, leading.log.log_start_offset
        broker = None if joining is None else joining.broker
        wanted = replicas.wanted_isr(end, now_ms, lag_ms, broker, log_start=start)
        if wanted == replicas.isr:
            return
        isr = tuple(b for b in leading.state.replicas if b in wanted)
        joins = joining if broker in wanted else None
        self._ask(leading, with_isr(leading.state, isr), joins)

    def _consider_start(self, leading: Leading, start: int) -> None:
        """Keep where the log starts: a replica is away that may know of no deletion."""
        if start > leading.state.log_start and not leading.is_asking:
            self._ask(leading, replace(leading.state, log_start=start))

    def _ask(self, leading: Leading, state: PartitionState, joins: Life | None = None) -> None:
        """Store another state; its in-sync replicas count until it is known what is stored."""
        leading.replicas.asked = frozenset(state.isr)
        partition = leading.log.partition
        change = StateChange(leading.topic.topic_id, partition.partition, state, joins)
        self._begin(self._ask_store(leading, change))

    async def _ask_store(self, leading: Leading, change: StateChange) -> None:
        partition, state = leading.log.partition, change.state
        if not await self._is_stored(change, partition):
            leading.unsure_at = self._around.members.reads
            self.reread()
            return
        logger.info(
            "%s: in-sync replicas are %s; the log starts at %d at least",
            partition, state.isr, state.log_start,
        )  # fmt: skip
        if self._leading.get(partition) is leading and leading.state.version == state.version:
            self._take_state(leading, replace(state, version=state.version + 1))
            self._around.partitions.set_state(partition, leading.state)

    async def _is_stored(self, change: StateChange, partition: TopicPartition) -> bool:
        """Whether that is known; why not is logged."""
        try:
            await self._around.asking.run(self._store_state, change)
        except LapseError as e:
            logger.info("%s: its state is not stored just now: %s", partition, e)
        except Exception:  # or it would be waited for, for ever
            logger.exception("%s: its state is not stored", partition)
        else:
            return True
        return False

    def _store_state(self, change: StateChange) -> None:
        """In a worker thread."""
        assert self._store is not None, change
        self._store.set_own_state(change)

    def _take_state(self, leading: Leading, state: PartitionState) -> None:
        leading.state, leading.unsure_at = state, None
        leading.replicas.set_replicas(state.replicas, monotonic_ms(self._around.clock))
        leading.replicas.isr, leading.replicas.asked = frozenset(state.isr), None
        leading.replicas.uncounted = state.uncounted
        self._advance(leading)
        self._around.purgatory.changed(leading.log.partition)

    # --- following the image --------------------------------------------------------------------

    def apply(self, image: Image) -> None:
        """Go by this image, soon."""
        self._image = image
        self._new_image.set()

    def start(self) -> None:
        """Carry images out from now on, and look for followers that lag."""
        self._cleaned.start()
        self._begin(self._apply_for_ever())
        self._begin(self._look_for_ever())

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _apply_for_ever(self) -> None:
        while True:
            await self._new_image.wait()
            self._new_image.clear()
            assert self._image is not None
            try:
                await self.carry_out(self._image)
            except Exception:  # or this broker would never lead or follow anything else
                logger.exception("an image of the cluster could not be carried out")
                await asyncio.sleep(AGAIN_SECONDS)
                self._new_image.set()

    async def carry_out(self, image: Image) -> None:
        """Lead and follow as the image says."""
        states = {
            TopicPartition(topic.name, number): self._newest(topic, number, state)
            for topic in image.topics.values()
            for number, state in enumerate(topic.states)
        }
        roles = [
            _Role(tp, image.topics[tp.topic], state, self._around.partitions.get(tp))
            for tp, state in states.items()
            if self._me in state.replicas and self._around.partitions.is_online(tp)
        ]
        new = [r for r in roles if self._applied.get(r.partition) != (r.state, r.log)]
        copies = {r.partition: copy_of(r.topic, r.state, r.log, self._me) for r in roles}
        await self._around.disk.run(self._cleaned.set_copies, copies)
        ids = {name: format_topic_id(topic.topic_id) for name, topic in image.topics.items()}
        begun = await self._around.disk.run(self._switch, new, states, ids)
        waiting = {role.partition for role in new} - begun.keys()
        for role in new:
            if role.partition in waiting:
                continue
            end, epoch = begun[role.partition]
            self._take_up(role, end)
            if role.leads(self._me) and epoch > role.state.leader_epoch:
                self._raise_epoch(role, epoch)
        self._applied = {
            role.partition: (role.state, role.log)
            for role in roles
            if role.partition not in waiting
        }
        if waiting:
            asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._new_image.set)
        for partition in self._leading.keys() - self._applied.keys():
            del self._leading[partition]
        self._follow(roles, copies)
        self._give_up_offline(image, states)
        for leading in self._leading.values():
            is_stored = leading.state == states.get(leading.log.partition)
            if is_stored and leading.is_settled_by(image):
                self._take_state(leading, leading.state)
        for role in new:
            self._around.purgatory.changed(role.partition)
        if new:
            for callback in self.when_led:
                callback()

    def _give_up_offline(
        self, image: Image, states: Mapping[TopicPartition, PartitionState]
    ) -> None:
        """Have another broker lead what this one leads and cannot serve: its log is offline.

        Where nobody else is in sync nobody leads what was on a disk that has failed: people may
        have another one lead (`unclean`), or bring the disk back, and start this broker again.
        """
        partitions = self._around.partitions
        offline = frozenset(partitions.offline)  # before: more may come meanwhile
        on_failed_disk = offline.difference(partitions.not_open)
        for tp, state in states.items():
            if state.leader == self._me and tp in offline:
                topic = image.topics[tp.topic]
                if not self._give_up(tp, topic, state, "is offline") and tp in on_failed_disk:
                    self._give_up_lost(tp, topic, state)

    def _give_up_refusing(self) -> None:
        """The same where its log takes no writes, as on a full disk, and that of another would."""
        for tp, leading in self._leading.items():
            refusal = leading.log.refusal
            if refusal is not None and not leading.is_asking:
                why = f"takes no writes ({refusal.why})"
                if self._give_up(tp, leading.topic, leading.state, why):
                    leading.unsure_at = NO_READ_YET

    def _give_up(self, tp: TopicPartition, topic: Topic, state: PartitionState, why: str) -> bool:
        """Whether another broker can lead it; it leaves the in-sync replicas then."""
        after = resigned(state, self._me, lost_nothing=False)
        if after is None or after.isr == state.isr:
            return False
        leading = self._leading.get(tp)
        if leading is not None:  # the others may have less, and be dead already
            end = LogEnd(leading.log.latest_epoch, leading.log.log_end_offset)
            after = left_with(after, self._me, end)
        logger.warning("%s %s: another broker is to lead it", tp, why)
        change = StateChange(topic.topic_id, tp.partition, after)
        self._begin(self._store_soon(change, tp, leading))
        return True

    def _give_up_lost(self, tp: TopicPartition, topic: Topic, state: PartitionState) -> None:
        after = resigned(state, self._me, lost_nothing=False, has_log=False)
        if after is None:
            return
        logger.error(
            "%s is offline, and no other replica has all of it: nobody leads it until the disk is "
            "back, and this broker starts again, or another replica is to lead it "
            "(kafka-leader-election, unclean)", tp,
        )  # fmt: skip
        change = StateChange(topic.topic_id, tp.partition, after)
        self._begin(self._store_soon(change, tp))

    def _newest(self, topic: Topic, number: int, state: PartitionState) -> PartitionState:
        """A state, or what this broker has stored as its leader since the image was read."""
        leading = self._leading.get(TopicPartition(topic.name, number))
        if leading is None or leading.topic.topic_id != topic.topic_id:
            return state
        return max(leading.state, state, key=lambda one: one.version)

    def _switch(
        self,
        roles: Iterable[_Role],
        states: Mapping[TopicPartition, PartitionState],
        topic_ids: Mapping[str, str],
    ) -> dict[TopicPartition, tuple[int, int]]:
        """In a worker thread: where the logs end, at which their epochs begin, and what these are.

        A log may know a later epoch than is stored: it is of a broker that was alone. One that
        cannot lead yet is left out: what was deleted is in it, and cannot be just now.
        """
        begun, states = {}, dict(states)
        begin_at = {tp: one.replicas.epoch_start for tp, one in self._leading.items()}
        for role in roles:
            known = self._leading.get(role.partition)
            change = role.log.lead if role.leads(self._me) else role.log.follow
            change(role.state.leader_epoch)
            role.log.set_replicated(replicated=len(role.state.replicas) > 1)
            if role.leads(self._me) and not self._holds_start(role):
                states[role.partition] = replace(role.state, leader=NO_LEADER)
                continue
            epoch = role.log.leader_epoch
            if role.partition.topic == transactions.TOPIC and len(role.state.replicas) == 1:
                epoch = max(epoch, self._markers_epoch())
            begun[role.partition] = (role.log.log_end_offset, epoch)
            is_new = (
                known is None
                or known.log is not role.log
                or known.state.leader_epoch != role.state.leader_epoch
            )
            if is_new and len(role.state.replicas) > 1:
                begin_at[role.partition] = role.log.log_end_offset
        self._around.partitions.set_states(states, begin_at, topic_ids)
        return begun

    def _holds_start(self, role: _Role) -> bool:
        """Whether a log that is to lead starts where it must."""
        try:
            directory = self._around.partitions.directory_of(role.partition)
            log_start.hold(role.log, directory, role.state.log_start)
        except KafkaError as e:
            self._around.partitions.report(role.partition, e)
            logger.error("%s does not lead yet: %s", role.partition, e)  # noqa: TRY400  (for people)
            return False
        return True

    def _markers_epoch(self) -> int:
        """Above all coordinator epochs of markers here, which a coordinator's must never be below.

        Those of a broker that was alone were no leader epochs.
        """
        logs = self._around.partitions.all()
        return max((log.latest_coordinator_epoch() for log in logs), default=-1)

    def _raise_epoch(self, role: _Role, epoch: int) -> None:
        """Store the epoch that a log is at; until then nothing can be appended there."""
        logger.info("%s: goes on in epoch %d, which its log knows", role.partition, epoch)
        change = StateChange(
            role.topic.topic_id, role.partition.partition, replace(role.state, leader_epoch=epoch)
        )
        self._begin(self._store_soon(change, role.partition))

    async def _store_soon(
        self, change: StateChange, partition: TopicPartition, leading: Leading | None = None
    ) -> None:
        if not await self._is_stored(change, partition):
            self._applied.clear()  # tried again with the next image
        if leading is not None and leading.unsure:
            leading.unsure_at = self._around.members.reads
        self.reread()

    def _take_up(self, role: _Role, end: int) -> None:
        leading = self._leading.get(role.partition)
        if not role.leads(self._me) or len(role.state.replicas) == 1:
            self._leading.pop(role.partition, None)
            return
        epoch = role.state.leader_epoch
        if leading is not None and leading.log is role.log and leading.state.leader_epoch == epoch:
            if role.state.version > leading.state.version:  # else another may be asked for by now
                self._take_state(leading, role.state)
            return
        logger.info("%s: leads in epoch %d from offset %d on", role.partition, epoch, end)
        replicas = LeaderReplicas(
            self._me, role.state.replicas, role.state.isr, epoch_start=end,
            high_watermark=role.log.high_watermark, now_ms=monotonic_ms(self._around.clock),
        )  # fmt: skip
        replicas.uncounted = role.state.uncounted
        leading = Leading(role.topic, role.state, role.log, replicas)
        self._leading[role.partition] = leading
        self._advance(leading)

    def _follow(self, roles: Iterable[_Role], copies: Mapping[TopicPartition, Copy]) -> None:
        """Fetch what others lead."""
        by_leader: dict[int, dict[TopicPartition, Followed]] = {}
        for role in roles:
            leader = role.state.leader
            if leader >= 0 and leader != self._me:
                of_leader = by_leader.setdefault(leader, {})
                followed = Followed(role.state.leader_epoch, copies[role.partition])
                of_leader[role.partition] = followed
        for leader in by_leader.keys() - self._fetchers.keys():
            following = Following(
                partial(
                    Fetcher, leader, self._around.peers, self._around.partitions,
                    self._around.disk, self._around.asking, self._around.config,
                    self._returning.prepare, self._around.quotas.follower,
                    self._around.purgatory.changed,
                ),
                self._me,
                self._around.config.replica_fetch_max_bytes // 2,
            )  # fmt: skip
            self._fetchers[leader] = following
            for lane in following.lanes:
                self._begin(lane.run())
        for leader, following in self._fetchers.items():
            following.follow(by_leader.get(leader, {}))

    # --- time and the end -----------------------------------------------------------------------

    async def _look_for_ever(self) -> None:
        """Who lags leaves the in-sync replicas, and who can write no more does not lead."""
        lag_s = self._around.config.replica_lag_time_max_ms / 1000
        while True:
            await asyncio.sleep(min(lag_s / LOOKS_PER_LAG, LOOK_SECONDS_MAX))
            try:
                alive = self._around.members.alive.alive
                for leading in list(self._leading.values()):
                    self._consider_isr(leading)
                    start = leading.log.log_start_offset
                    if leading.replicas.is_start_unknown_to_some(start, alive):
                        self._consider_start(leading, start)
                self._give_up_refusing()
            except Exception:
                logger.exception("followers that lag could not be looked for")

    async def close(self) -> None:
        """Stop following and leading."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._cleaned.close()
        with contextlib.suppress(LapseError):
            await self._around.peers.close()
