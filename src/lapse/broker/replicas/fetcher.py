"""Following one leader: fetching all partitions that it leads and this broker has, for ever.

What Kafka calls ReplicaFetcherThread.

One connection, one request after the other; the leader holds a fetch for which it has nothing.
Answers are carried out in a worker thread (`replication.follower`). A partition with an error is
left out for a while, so that it holds no other one up. Before one is fetched it begins: then it
says nothing of itself that is not true (L3), which may wait for the metadata store. It begins again
after each cut, and where anything of it has changed; the others are fetched meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lapse.base.config import BrokerConfig
from lapse.base.errors import CorruptData, ErrorCode, KafkaError, LapseError
from lapse.base.ids import TopicPartition
from lapse.base.times import after_ms
from lapse.broker.limits.replication_quotas import ReplicationQuota
from lapse.broker.logs.disk import DiskThreads
from lapse.broker.logs.partitions import Partitions
from lapse.broker.replicas.cleaned import Copy
from lapse.broker.replicas.follower_session import FollowerSession
from lapse.broker.replicas.peers import NotLetIn, Peers
from lapse.client.connection import BrokerConnection
from lapse.client.fetched import append_times_of
from lapse.log.lookup import LastBatch
from lapse.log.partition_log import PartitionLog
from lapse.log.state import LogState
from lapse.replication import follower
from lapse.replication.follower import Then
from lapse.wire.schema.fetch import (
    NOT_SAID,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
    ReplicaState,
)
from lapse.wire.schema.list_offsets import (
    EARLIEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from lapse.wire.schema.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

logger = logging.getLogger(__name__)

WhenTaken = Callable[[Collection[TopicPartition], Mapping[TopicPartition, int]], None]

AT_ONCE_BYTES_MAX = 256 << 10  # appended in the event loop: checked and copied, no more
AGAIN_SECONDS = 0.5  # after an error; as replica.fetch.backoff.ms, but sooner
BEGIN_SECONDS = 0.1  # others wait so long for those that begin, to be fetched with them
REFUSED_SECONDS = 10.0  # or it would use up the attempts of all that log in as it does
_SESSION_IS_OVER = frozenset({
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Followed:
    """One partition, and the epoch in which it is led."""

    epoch: int
    copy: Copy

    @property
    def log(self) -> PartitionLog:
        return self.copy.log

    @property
    def topic_id(self) -> uuid.UUID:
        return self.copy.topic.topic_id


class _Asked(NamedTuple):
    """What was asked for last, and the state of the log that it was made of."""

    followed: Followed
    state: LogState
    partition: FetchPartition


class Fetcher:
    """Follows one leader."""

    def __init__(
        self,
        leader: int,
        peers: Peers,
        partitions: Partitions,
        disk: DiskThreads,
        asking: DiskThreads,
        config: BrokerConfig,
        prepare: Callable[[Copy], None],
        quota: ReplicationQuota,
        changed: Callable[[TopicPartition], None],
        when_taken: WhenTaken = lambda _fetched, _sizes: None,
    ) -> None:
        """`prepare` is called before a replica fetches, in `asking`, and may fail: `returning`.

        `changed` is called after one has more records, or a higher high watermark; `when_taken`
        between two requests, with what was fetched, and how many bytes came of it (`following`).
        """
        self._when_taken = when_taken
        self._prepare, self._quota, self._replica_changed = prepare, quota, changed
        self._leader, self._peers, self._disk, self._asking = leader, peers, disk, asking
        self._partitions, self._config = partitions, config
        self._followed: dict[TopicPartition, Followed] = {}
        self._begun: dict[TopicPartition, Followed] = {}
        self._beginning: dict[TopicPartition, Followed] = {}
        self._begin_task: asyncio.Task[None] | None = None
        self._cut: set[TopicPartition] = set()  # or perhaps: these begin again
        self._asked: dict[TopicPartition, _Asked] = {}
        self._not_before: dict[TopicPartition, float] = {}
        self._unproven: dict[TopicPartition, LastBatch] = {}
        self._unsaid: set[TopicPartition] = set()  # of those: the last answer told nothing
        self._leader_starts: dict[TopicPartition, int] = {}  # of those: where the leader's begins
        self._session = FollowerSession()
        # Or a follower for which there is nothing would seem to lag.
        self._wait_ms = min(config.replica_fetch_wait_max_ms, config.replica_lag_time_max_ms // 2)
        self._patience_seconds = after_ms(self._wait_ms, config.replica_socket_timeout_ms) / 1000
        self._said: dict[TopicPartition, str] = {}
        self._trouble = ""
        self._changed = asyncio.Event()
        self._connection: BrokerConnection | None = None

    def follow(self, followed: Mapping[TopicPartition, Followed]) -> None:
        """Follow these from now on, and no others."""
        if followed != self._followed:
            self._begun = _unchanged(self._begun, followed)
            self._beginning = _unchanged(self._beginning, followed)
            self._followed = dict(followed)
            self._not_before.clear()
            self._changed.set()

    async def run(self) -> None:
        """Fetch until cancelled."""
        try:
            while True:
                self._changed.clear()
                due = self._due()
                if not due:
                    await self._wait()
                    continue
                try:
                    await self._fetch(due)
                    self._trouble = ""
                except LapseError as e:
                    if str(e) != self._trouble:
                        logger.info("broker %d cannot be followed just now: %s", self._leader, e)
                    self._trouble = str(e)
                    self._hang_up()
                    is_refused = isinstance(e, NotLetIn)
                    await asyncio.sleep(REFUSED_SECONDS if is_refused else AGAIN_SECONDS)
                except Exception:  # or its partitions would be followed no more
                    logger.exception("broker %d could not be followed", self._leader)
                    self._hang_up()
                    await asyncio.sleep(AGAIN_SECONDS)
        finally:
            self._hang_up()
            if self._begin_task is not None:
                self._begin_task.cancel()
                await asyncio.gather(self._begin_task, return_exceptions=True)

    def _hang_up(self) -> None:
        self._session.begin_anew()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _due(self) -> dict[TopicPartition, Followed]:
        now = asyncio.get_running_loop().time()
        self._not_before = {tp: at for tp, at in self._not_before.items() if at > now}
        if self._quota.is_used_up(int(now * 1000)):
            held_back = (tp for tp, one in self._followed.items() if self._is_held_back(tp, one))
            self._not_before |= dict.fromkeys(held_back, now + AGAIN_SECONDS)
        return {tp: one for tp, one in self._followed.items() if tp not in self._not_before}

    def _is_held_back(self, tp: TopicPartition, one: Followed) -> bool:
        """Whether it goes by the quota: only until it is in sync (KIP-73)."""
        is_in_sync = self._config.node_id in one.copy.state.isr
        return not is_in_sync and self._quota.concerns(tp.partition, one.log.config)

    async def _wait(self) -> None:
        """Until other partitions are followed, or one that had an error may be tried again."""
        seconds = AGAIN_SECONDS if self._not_before else None
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _fetch(self, due: Mapping[TopicPartition, Followed]) -> None:
        begun = await self._those_that_have_begun(due)
        if not begun:
            return
        if self._connection is None or self._connection.is_lost:
            self._connection = await self._peers.connect(self._leader)
        answer = await self._connection.request(
            self._request(begun), FetchResponse, timeout_seconds=self._patience_seconds
        )
        if answer.error_code in _SESSION_IS_OVER:
            self._session.begin_anew()
            return
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code), f"Fetch from broker {self._leader}")
        self._session.answered(answer.session_id)
        ids = {one.topic_id: tp.topic for tp, one in begun.items()}
        got = [
            (TopicPartition(ids[topic.topic_id], data.partition_index), data)
            for topic in answer.responses
            for data in topic.partitions
        ]
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        for tp, data in got:
            if self._quota.concerns(tp.partition, begun[tp].log.config):
                self._quota.record(len(_octets(data)), now_ms)
        troubles: Mapping[TopicPartition, ErrorCode] = {}
        left = list(got)
        if sum([len(_octets(data)) for _, data in got]) <= AT_ONCE_BYTES_MAX:
            self._disk.try_now(self._take_quick, begun, left)
        if left:
            troubles = await self._disk.run(self._take_all, begun, left)
        for tp, _ in got:
            self._replica_changed(tp)
        await self._settle(begun, troubles)
        self._when_taken(
            begun.keys(), {tp: len(_octets(data)) for tp, data in got if tp not in troubles}
        )

    async def _those_that_have_begun(
        self, due: Mapping[TopicPartition, Followed]
    ) -> Mapping[TopicPartition, Followed]:
        """What can be fetched now; the others begin meanwhile, and are waited for a moment."""
        for tp in self._cut:
            self._begun.pop(tp, None)
        self._cut.clear()
        if self._begin_task is not None and self._begin_task.done():
            await self._end_begin(self._begin_task)
        waiting = {tp: one for tp, one in due.items() if self._begun.get(tp) is not one}
        if not waiting:
            return due
        can_fetch, is_new = len(waiting) < len(due), self._begin_task is None
        if self._begin_task is None:
            self._beginning = waiting
            self._begin_task = asyncio.get_running_loop().create_task(self._begin(waiting))
        if is_new or not can_fetch:
            seconds = BEGIN_SECONDS if can_fetch else AGAIN_SECONDS
            await asyncio.wait([self._begin_task], timeout=seconds)
        return {tp: one for tp, one in due.items() if self._begun.get(tp) is one}

    async def _end_begin(self, task: asyncio.Task[None]) -> None:
        """Raises what it has raised."""
        self._begin_task, self._beginning = None, {}
        await task

    async def _begin(self, waiting: Mapping[TopicPartition, Followed]) -> None:
        """Those that are to be followed otherwise by then begin again (`follow`)."""
        last = await self._asking.run(self._begin_all, waiting)
        for tp in self._beginning.keys() & last.keys():
            self._compare_first(tp, last[tp])
            self._begun[tp] = self._beginning[tp]
        self._leave_out(self._beginning.keys() - last.keys())

    def _compare_first(self, tp: TopicPartition, last: LastBatch | None) -> None:
        """Have a log that was not closed in order compared with its leader's before it grows."""
        if last is None:
            self._unproven.pop(tp, None)
        else:
            self._unproven[tp] = last

    def _request(self, begun: Mapping[TopicPartition, Followed]) -> FetchRequest:
        self._asked = {tp: self._ask(tp, one) for tp, one in begun.items()}
        wanted = {
            (one.topic_id, tp.partition): asked.partition
            for (tp, one), asked in zip(begun.items(), self._asked.values(), strict=True)
        }
        return FetchRequest(
            replica_state=ReplicaState(
                replica_id=self._config.node_id, replica_epoch=self._peers.own_epoch
            ),
            max_wait_ms=self._wait_ms,
            min_bytes=1,
            max_bytes=self._config.replica_fetch_response_max_bytes,
            tombstone_values=True,  # as our own clients: the times of appends come, too
            **self._session.ask(wanted)._asdict(),
        )

    def _ask(self, tp: TopicPartition, one: Followed) -> _Asked:
        """What to ask for next; as before where nothing has changed: most have nothing new."""
        before, state = self._asked.get(tp), one.log.state
        last = self._unproven.get(tp)
        offset = state.log_end_offset
        if last is not None:
            offset = max(follower.compared_from(one.log, last), self._leader_starts.get(tp, 0))
        if (
            before is not None and before.state is state and before.followed is one
            and before.partition.fetch_offset == offset
        ):  # fmt: skip
            return before
        is_read = bool(self._config.replica_selector_class)  # by consumers, who wait for it
        partition = FetchPartition(
            partition=tp.partition,
            current_leader_epoch=one.epoch,
            fetch_offset=offset,
            last_fetched_epoch=one.log.latest_epoch,
            log_start_offset=state.log_start_offset,
            partition_max_bytes=self._config.replica_fetch_max_bytes,
            high_watermark=state.high_watermark if is_read else NOT_SAID,
        )
        return _Asked(one, state, partition)

    def _take_quick(
        self,
        begun: Mapping[TopicPartition, Followed],
        left: list[tuple[TopicPartition, PartitionData]],
    ) -> bool:
        """Carry out the first answers, as far as the event loop may; the others are left."""
        while left:
            tp, data = left[0]
            one = begun[tp]
            if data.error_code or tp in self._unproven or not self._partitions.is_online(tp):
                break
            try:
                if not follower.take_at_once(one.log, _fetched(data), one.epoch):
                    break
            except (LapseError, OSError):
                break  # it is said in the thread, where it comes again
            self._said.pop(tp, None)
            del left[0]
        return True

    # --- in a worker thread ---------------------------------------------------------------------

    def _begin_all(
        self, waiting: Mapping[TopicPartition, Followed]
    ) -> dict[TopicPartition, LastBatch | None]:
        """Those that can be followed, and say nothing of themselves that is not true (L3).

        Each with its last batch, where that is to be compared first.
        """
        begun = {}
        for tp, one in waiting.items():
            try:
                follower.begin(one.log, self._partitions.directory_of(tp), one.epoch)
                self._prepare(one.copy)
                begun[tp] = one.log.unproven()
            except (LapseError, OSError) as e:
                self._report(tp, e)
        return begun

    def _take(self, tp: TopicPartition, one: Followed, fetched: follower.Fetched) -> Then:
        directory, last = self._partitions.directory_of(tp), self._unproven.get(tp)
        if last is None:
            return follower.take(one.log, directory, fetched, one.epoch)
        then = follower.compare(one.log, directory, last, fetched, one.epoch)
        if then is Then.UNSAID:
            self._unsaid.add(tp)
        else:
            self._unproven.pop(tp, None)
            self._leader_starts.pop(tp, None)
        return then

    def _take_all(
        self,
        begun: Mapping[TopicPartition, Followed],
        got: Sequence[tuple[TopicPartition, PartitionData]],
    ) -> dict[TopicPartition, ErrorCode]:
        """Carry answers out; returns what could not be."""
        troubles = {}
        for tp, data in got:
            one = begun[tp]
            if data.error_code:
                troubles[tp] = ErrorCode(data.error_code)
                continue
            try:
                then = self._take(tp, one, _fetched(data))
                self._said.pop(tp, None)
                if then is Then.TRUNCATED:
                    self._cut.add(tp)
            except (LapseError, OSError) as e:  # perhaps in the middle of a cut
                self._cut.add(tp)
                self._report(tp, e)
                code = e.code if isinstance(e, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
                troubles[tp] = code
        return troubles

    def _report(self, tp: TopicPartition, error: Exception) -> None:
        """Say it once, for as long as it is the same."""
        if isinstance(error, CorruptData) or not self._partitions.report(tp, error):
            words = str(error)
            if self._said.get(tp) != words:
                logger.warning("%s cannot follow broker %d: %s", tp, self._leader, words)
            self._said[tp] = words

    # --- errors ---------------------------------------------------------------------------------

    def _leave_out(self, partitions: Iterable[TopicPartition]) -> None:
        later = asyncio.get_running_loop().time() + AGAIN_SECONDS
        self._not_before |= dict.fromkeys(partitions, later)

    async def _settle(
        self, begun: Mapping[TopicPartition, Followed], troubles: Mapping[TopicPartition, ErrorCode]
    ) -> None:
        """Leave partitions with an error out for a while; begin anew what the leader has not."""
        self._leave_out(troubles)
        for tp, code in troubles.items():
            if code is ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._start_over(tp, begun[tp])
        for tp in self._unsaid & begun.keys():
            await self._look_for_parting(tp, begun[tp])
        self._unsaid.clear()

    async def _look_for_parting(self, tp: TopicPartition, one: Followed) -> None:
        """The leader told nothing of the last batch: it may end before that.

        It says so itself only to who asks for what is behind it.
        """
        assert self._connection is not None
        epoch = one.log.latest_epoch
        asked = OffsetForLeaderPartition(
            partition=tp.partition, current_leader_epoch=one.epoch, leader_epoch=epoch
        )
        request = OffsetForLeaderEpochRequest(
            replica_id=self._config.node_id,
            topics=(OffsetForLeaderTopic(topic=tp.topic, partitions=(asked,)),),
        )
        answer = await self._connection.request(
            request, OffsetForLeaderEpochResponse, timeout_seconds=self._patience_seconds
        )
        [topic] = answer.topics
        [found] = topic.partitions
        end = found.leader_epoch, found.end_offset
        if found.error_code or found.leader_epoch < 0 or end >= (epoch, one.log.log_end_offset):
            return
        parted = follower.Fetched(b"", -1, -1, diverging=end)
        directory = self._partitions.directory_of(tp)
        self._cut.add(tp)
        await self._disk.run(follower.take, one.log, directory, parted, one.epoch)

    async def _start_over(self, tp: TopicPartition, one: Followed) -> None:
        """The leader does not have what follows here: its log starts above, or ends below."""
        assert self._connection is not None
        asked = ListOffsetsPartition(
            partition_index=tp.partition,
            current_leader_epoch=one.epoch,
            timestamp=EARLIEST_TIMESTAMP,
        )
        request = ListOffsetsRequest(
            replica_id=self._config.node_id,
            topics=(ListOffsetsTopic(name=tp.topic, partitions=(asked,)),),
        )
        answer = await self._connection.request(
            request, ListOffsetsResponse, timeout_seconds=self._patience_seconds
        )
        [topic] = answer.topics
        [found] = topic.partitions
        if found.error_code:
            return
        end, is_unproven = one.log.log_end_offset, tp in self._unproven
        if end < found.offset or (end == found.offset and is_unproven):
            directory = self._partitions.directory_of(tp)
            self._cut.add(tp)
            await self._disk.run(follower.start_over, one.log, directory, found.offset, one.epoch)
        elif self._asked[tp].partition.fetch_offset < found.offset:
            self._leader_starts[tp] = found.offset  # within the last batch, which is compared there
        elif is_unproven:
            await self._look_for_parting(tp, one)


def _unchanged(
    known: Mapping[TopicPartition, Followed], followed: Mapping[TopicPartition, Followed]
) -> dict[TopicPartition, Followed]:
    """Those of which nothing is followed otherwise: the same objects as there, soon compared."""
    return {tp: followed[tp] for tp, one in known.items() if followed.get(tp) == one}


def _fetched(data: PartitionData) -> follower.Fetched:
    at = data.diverging_epoch
    return follower.Fetched(
        _octets(data),
        data.high_watermark,
        data.log_start_offset,
        None if at.epoch < 0 else (at.epoch, at.end_offset),
        append_times_of(data),
        data.create_times_kept,
        tuple([(e.epoch, e.offset) for e in data.epochs]),
    )


def _octets(data: PartitionData) -> bytes | memoryview:
    records = data.records
    return records if isinstance(records, bytes | memoryview) else b""
