"""Fetch (key 1): batches from given offsets on, with a long poll.

Needs READ topic; a follower CLUSTER_ACTION cluster instead.

Behaviour:
- waits up to `max_wait_ms` for `min_bytes` in all; an error in any partition ends the wait at once,
  and costs no other partition its records (`broker.logs.faults`);
- a partition gives whole batches up to its own limit and what is left of `max_bytes`, but the first
  that has anything gives at least one batch, however large; it may begin below the requested offset
  (Y-1); both `max_bytes` and `min_bytes` are no more than the client's quota lets through at once;
- nothing is shown beyond the high watermark, with isolation level 1 beyond the last stable offset;
  between that and the end of the log the answer is empty; outside of the log it is
  OFFSET_OUT_OF_RANGE (Y-2);
- with isolation level 1 the answer names the aborted transactions among what it holds: dropping
  their records is the client's work (Y-3);
- records are not touched: long slices go from file to socket in the kernel, short ones are read
  along with the look-up, which saves a round of system calls. What a client cannot read is
  converted for it (`broker.logs.fetch_records`): formats newer than its version, and tombstones
  that carry a value (KIP-87), for which null is sent unless it says that it knows them;
- a client that sends the epoch of its last record (v12; followers do) gets the end of that epoch,
  and no records, if its log must have diverged from the leader's (KIP-595);
- within a session (KIP-227) the partitions are the session's and the answer has only what is new:
  `in_session` goes around authorization, quotas and `handle`, which see every fetch as a full one.

v0-1 messages of format v0 · v2-3 of v1 · v0-2 never more than was requested, so that a large
message comes cut · v4 isolation level · v5 log start · v0-5 NOT_LEADER_OR_FOLLOWER for
KAFKA_STORAGE_ERROR, which came later (KIP-112) · v7 sessions, top-level error · v9 leader epoch ·
v10 zstd (an older client gets UNSUPPORTED_COMPRESSION_TYPE) · v11 rack; consumers also read from
followers that are in sync, and leaders may send them there (KIP-392) · v12 flexible;
our tag for KIP-87 · v13 topics by id: UNKNOWN_TOPIC_ID · v16, v17 nothing to say · v18
what a follower knows as committed (KIP-1166).
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from lapse.base.clock import monotonic_ms
from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.logs.faults import code_of
from lapse.broker.logs.fetch_records import (
    Client,
    Fetched,
    ReadRange,
    append_times_shown,
    client_of,
    committed_records_for,
    converts,
    epochs_shown,
    made_bytes_max,
    records_for,
    replica_of,
)
from lapse.broker.logs.leader_epochs import check_leader_epoch
from lapse.broker.logs.led import Led
from lapse.broker.logs.partitions import Partitions
from lapse.broker.replicas.replicas import Fetching
from lapse.broker.request.authorize import TOPIC_REFUSED, Caller, Handle
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.broker.request.leader_hints import LeaderHints
from lapse.broker.request.throttle import fetched_at_once, is_replica
from lapse.log.headers import Pread, pread_cached
from lapse.log.partition_log import PartitionLog
from lapse.log.plain_reader import SENDFILE_BYTES_MIN
from lapse.log.state import LogSlice
from lapse.metadata.image import Image
from lapse.security.acls import Operation
from lapse.wire.schema.fetch import (
    FETCH,
    NOT_SAID,
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from lapse.wire.versions import BY_ID_FROM

READ_COMMITTED = 1
NOTHING = LogSlice(None, 0, 0)
NO_EPOCH_END = EpochEndOffset()
STORAGE_ERROR_FROM = 6
FOLLOWERS_FROM = 11
HINTS_FROM = 16

# Some 15 us each: with more the event loop would serve no other request for too long.
AT_ONCE_PARTITIONS_MAX = 32


@dataclass(frozen=True, slots=True)
class WantedPartition:
    """One partition of the request; `partition` None where the topic id is unknown."""

    partition: TopicPartition | None
    request: FetchPartition


@dataclass(frozen=True, slots=True)
class Got:
    """What one partition has for the client."""

    data: PartitionData
    size: int = 0


@dataclass(frozen=True, slots=True)
class FetchWait:
    """How long a fetch waits, and for how many bytes."""

    seconds: float
    bytes_min: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What the whole request may return, and to whom.

    Attributes:
        replica: which broker follows; -1: it is a consumer's.
        held_back: of which that broker gets nothing just now (`limits.replication_quotas`).
        followers_too: a consumer reads from followers, too.
        readers: of which the consumer is to read from another broker.
    """

    bytes_max: int
    committed: bool
    client: Client
    replica: int = -1
    held_back: AbstractSet[TopicPartition] = frozenset()
    followers_too: bool = False
    readers: Mapping[TopicPartition, int] = field(default_factory=dict)


async def in_session(
    services: Services,
    session: Session,
    version: int,
    request: FetchRequest,
    handle_whole: Callable[[FetchRequest], Awaitable[FetchResponse]],
) -> FetchResponse:
    """Expand a session's request into a full fetch, and the response into what the client gets."""
    clock = services.clock
    owner = session.principal
    context = services.fetch_sessions.begin(owner, version, request, monotonic_ms(clock))
    whole = await handle_whole(context.request)
    return context.answer(whole, monotonic_ms(clock))


async def handle(
    services: Services, session: Session, version: int, request: FetchRequest
) -> FetchResponse:
    """Read, and wait until there is enough or time is up."""
    wanted = _wanted(services.topics.image, version, request.topics)
    client = client_of(version, request)
    by_quota = fetched_at_once(services, session, session.client_id, is_replica=client.is_replica)
    limits = Limits(
        min(request.max_bytes, services.config.fetch_max_bytes, by_quota),
        request.isolation_level == READ_COMMITTED,
        client,
        replica_of(version, request),
        followers_too=version >= FOLLOWERS_FROM,
        readers=_readers(services, request.rack_id, wanted),
    )
    bytes_min = min(request.min_bytes, limits.bytes_max)
    got = seen = _read_at_once(services, wanted, limits)
    if got is None and limits.client.is_replica:
        got = await _read(services, wanted, limits)
    if got is not None and limits.client.is_replica:
        who = Fetching(replica_of(version, request), request.replica_state.replica_epoch)
        _note_follower(services, who, wanted, got)
    if got is None or _waits(wanted, got, limits, bytes_min):
        wait = FetchWait(request.max_wait_ms / 1000, bytes_min)
        got = await _read_until(services, session, wanted, limits, wait, seen)
    for want, g in zip(wanted, got, strict=True):
        if want.partition is not None and g.size:
            services.counters.topics[want.partition.topic].bytes_out += g.size
        if want.partition is not None and limits.client.is_replica:
            services.replicas.gave(want.partition, g.size)
    if version < STORAGE_ERROR_FROM:
        got = [_without_storage_error(g) for g in got]
    hints = LeaderHints(services, session)
    if version >= HINTS_FROM and not limits.client.is_replica:
        got = [_with_leader(want, g, hints) for want, g in zip(wanted, got, strict=True)]
    return FetchResponse(
        responses=_by_topic(request.topics, got),
        node_endpoints=tuple(
            NodeEndpoint(node_id=broker, host=address.host, port=address.port, rack=rack)
            for broker, address, rack in hints.addresses()
        ),
    )


def _with_leader(want: WantedPartition, got: Got, hints: LeaderHints) -> Got:
    if not got.data.error_code or want.partition is None:
        return got
    known = hints.of(want.partition, got.data.error_code)
    if known is None:
        return got
    leader = LeaderIdAndEpoch(leader_id=known[0], leader_epoch=known[1])
    return Got(replace(got.data, current_leader=leader), got.size)


def _note_follower(
    services: Services, who: Fetching, wanted: Sequence[WantedPartition], got: Sequence[Got]
) -> None:
    """A follower has what lies below its fetch offsets, where its log is as the leader's."""
    for want, found in zip(wanted, got, strict=True):
        is_as_ours = not found.data.error_code and found.data.diverging_epoch is NO_EPOCH_END
        if want.partition is not None and is_as_ours:
            request = want.request
            services.replicas.fetched(
                want.partition, request.current_leader_epoch, who,
                request.fetch_offset, request.log_start_offset,
            )  # fmt: skip


async def _read_until(
    services: Services,
    session: Session,
    wanted: Sequence[WantedPartition],
    limits: Limits,
    wait: FetchWait,
    seen: list[Got] | None,
) -> list[Got]:
    """Look, and look again whenever enough has come, until there is enough or time is up.

    `seen`: what was there just now; nothing was awaited since.
    """
    deadline = services.clock.monotonic() + wait.seconds
    partitions = [w.partition for w in wanted if w.partition is not None]
    # A follower need not be told at once what is committed, unless it says what it knows.
    for_commits = any(w.request.high_watermark != NOT_SAID for w in wanted)
    for_commits |= not limits.client.is_replica
    got = None if for_commits else seen
    with services.purgatory.watch(partitions, for_commits=for_commits) as watch:
        session.watch = watch
        while True:
            if got is None:
                watch.reset()
                got = _read_at_once(services, wanted, limits)
                if got is None:
                    got = await _read(services, wanted, limits)
            seconds = deadline - services.clock.monotonic()
            waits = _waits(wanted, got, limits, wait.bytes_min)
            if not waits or seconds <= 0 or session.lost:
                break
            missing = wait.bytes_min - sum(g.size for g in got)
            # Where a transaction holds the last stable offset back, any batch may be its marker,
            # and that lets far more be seen than its own few bytes.
            got = None  # it is read again, and may be much
            await watch.wait(1 if _is_held_back(services, wanted, limits) else missing, seconds)
        session.watch = None
    return got


def _waits(
    wanted: Sequence[WantedPartition],
    got: Sequence[Got],
    limits: Limits,
    bytes_min: int,
) -> bool:
    """Whether more is waited for; what the client has to act on is told at once.

    So is a follower whose consumers wait for a high watermark that it does not know (KIP-1166).
    """
    return (
        bool(got)
        and sum([g.size for g in got]) < bytes_min
        and not limits.readers
        and not any(g.data.error_code or g.data.diverging_epoch.epoch >= 0 for g in got)
        and not any(
            want.request.high_watermark < g.data.high_watermark
            for want, g in zip(wanted, got, strict=True)
        )
    )


def _readers(
    services: Services, rack: str, wanted: Sequence[WantedPartition]
) -> Mapping[TopicPartition, int]:
    """From which brokers a consumer in a rack is to read instead (KIP-392)."""
    if not rack:
        return {}
    asked = ((w.partition, w.request.fetch_offset) for w in wanted if w.partition is not None)
    return services.replicas.readers_near(rack, asked)


def _wanted(image: Image, version: int, topics: Sequence[FetchTopic]) -> list[WantedPartition]:
    wanted = []
    for topic in topics:
        name: str | None = topic.topic
        if version >= BY_ID_FROM:
            known = image.ids.get(topic.topic_id)
            name = None if known is None else known.name
        wanted += [
            WantedPartition(None if name is None else TopicPartition(name, one.partition), one)
            for one in topic.partitions
        ]
    return wanted


def _by_topic(
    topics: Sequence[FetchTopic], got: Sequence[Got]
) -> tuple[FetchableTopicResponse, ...]:
    answers = iter([g.data for g in got])
    return tuple(
        [
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=tuple(islice(answers, len(topic.partitions))),
            )
            for topic in topics
        ]
    )


def _read_at_once(
    services: Services, wanted: Sequence[WantedPartition], limits: Limits
) -> list[Got] | None:
    """What needs no disk: most clients read what was just written. None if a file has to be read.

    Active segments are open, and what was just written is in memory; all else is for a worker.
    """
    partitions, limits = services.partitions, _as_quotas_allow(services, wanted, limits)
    if len(wanted) > AT_ONCE_PARTITIONS_MAX or not services.answer_bytes.has_room:
        return None
    if not all(_is_at_hand(partitions, want, limits) for want in wanted):
        return None
    try:
        return read_all(partitions, wanted, limits, pread_cached)
    except BlockingIOError:
        return None


async def _read(services: Services, wanted: Sequence[WantedPartition], limits: Limits) -> list[Got]:
    """One look at every partition; only those with something to read go to a worker thread."""
    partitions, limits = services.partitions, _as_quotas_allow(services, wanted, limits)
    most = sum([_most_bytes(partitions, want, limits) for want in wanted])
    if not most:
        return read_all(partitions, wanted, limits)
    await services.answer_bytes.reserve(most)
    try:
        return await services.disk.run(read_all, partitions, wanted, limits)
    finally:
        services.answer_bytes.made(most)


def _as_quotas_allow(
    services: Services, wanted: Sequence[WantedPartition], limits: Limits
) -> Limits:
    """The limits of this moment: a follower that is not in sync may be held back (KIP-73)."""
    if not limits.client.is_replica:
        return limits
    partitions = [want.partition for want in wanted if want.partition is not None]
    held_back = services.replicas.held_back(partitions, limits.replica)
    return replace(limits, held_back=held_back) if held_back else limits


def _most_bytes(partitions: Partitions, want: WantedPartition, limits: Limits) -> int:
    """What answering may take in memory; 0 where it takes no look into a file."""
    try:
        log = _log(partitions, want, limits).log
        if limits.client.is_replica:
            end = log.log_end_offset
        else:
            end = log.last_stable_offset if limits.committed else log.high_watermark
        if not log.log_start_offset <= want.request.fetch_offset < end:
            return 0
        return max(made_bytes_max(log, limits.client), SENDFILE_BYTES_MIN)
    except Exception:  # noqa: BLE001  (reading it says what)
        return 0


def _is_at_hand(partitions: Partitions, want: WantedPartition, limits: Limits) -> bool:
    try:
        log = _log(partitions, want, limits).log
        if not log.state.is_recent(want.request.fetch_offset) or converts(log, limits.client):
            return False
        return not (limits.committed and log.segments[-1].may_have_aborts)
    except Exception:  # noqa: BLE001  (reading it says what)
        return True


def _is_held_back(services: Services, wanted: Sequence[WantedPartition], limits: Limits) -> bool:
    if not limits.committed:
        return False
    logs = [
        services.partitions.get(want.partition)
        for want in wanted
        if want.partition is not None and services.partitions.is_online(want.partition)
    ]
    return any(log.last_stable_offset < log.high_watermark for log in logs)


def read_all(
    partitions: Partitions,
    wanted: Sequence[WantedPartition],
    limits: Limits,
    pread: Pread = os.pread,
) -> list[Got]:
    """Read each partition within the limits, in the order of the request; files by `pread`."""
    left = limits.bytes_max
    got: list[Got] = []
    one_at_least = True
    for want in wanted:
        answer = _read_one(partitions, want, left, limits, pread, one_at_least=one_at_least)
        left -= answer.size
        one_at_least = one_at_least and not answer.size
        got.append(answer)
    return got


def _read_one(
    partitions: Partitions, want: WantedPartition, left: int, limits: Limits, pread: Pread,
    *, one_at_least: bool,
) -> Got:  # fmt: skip
    request = want.request
    try:
        led = _log(partitions, want, limits)
        log = led.log
        check_leader_epoch(request.current_leader_epoch, led)
        if limits.client.is_replica:
            _check_replica(partitions, log.partition, limits.replica)
        stable, high_watermark = log.last_stable_offset, log.high_watermark  # in this order
        if limits.client.is_replica:
            end = log.log_end_offset
        else:
            end = stable if limits.committed else high_watermark
        diverging = NO_EPOCH_END
        if request.last_fetched_epoch >= 0:
            diverging = _diverging(log, request)
        got = Fetched(NOTHING, NOTHING)
        aborted: tuple[AbortedTransaction, ...] = ()
        # At the visible end there is nothing to read, and beyond the log's end `read` refuses.
        # Nor is there where the logs have parted.
        nothing = end <= request.fetch_offset <= log.log_end_offset
        nothing = nothing or log.partition in limits.held_back
        nothing = nothing or log.partition in limits.readers
        if diverging is NO_EPOCH_END and not nothing:
            bytes_max = max(min(request.partition_max_bytes, left), 0)
            wanted = ReadRange(request.fetch_offset, bytes_max, end, one_at_least, pread)
            if limits.committed:
                got, aborted = committed_records_for(log, limits.client, wanted)
            else:
                got = records_for(log, limits.client, wanted)
        data = PartitionData(
            partition_index=request.partition,
            error_code=ErrorCode.NONE,
            high_watermark=high_watermark,
            last_stable_offset=stable,
            log_start_offset=log.log_start_offset,
            diverging_epoch=diverging,
            aborted_transactions=aborted if limits.committed else None,
            preferred_read_replica=limits.readers.get(log.partition, -1),
            records=_in_memory_if_short(got.records, pread),
            create_times_kept=limits.client.is_ours and got.source.create_times_kept,
            append_times=append_times_shown(got.source) if limits.client.is_ours else (),
            epochs=epochs_shown(log, got.source) if limits.client.is_replica else (),
        )
    except BlockingIOError:  # it is for a worker thread
        raise
    except Exception as e:  # noqa: BLE001  (`code_of` logs it)
        return Got(_error(request.partition, code_of(partitions, want.partition, "Fetch", e)))
    return Got(data, got.size)


def _check_replica(partitions: Partitions, partition: TopicPartition, replica: int) -> None:
    """Who follows is one that tombstones wait for here (L3). Its image may be newer than ours.

    Raises UNKNOWN_LEADER_EPOCH, as Kafka, which has the follower ask again.
    """
    state = partitions.state_of(partition)
    if state is not None and (replica not in state.replicas or replica in state.uncounted):
        raise KafkaError(
            ErrorCode.UNKNOWN_LEADER_EPOCH, f"{partition}: broker {replica} has no replica yet"
        )


def _diverging(log: PartitionLog, request: FetchPartition) -> EpochEndOffset:
    """KIP-595: where the log of the client, which sent its last record's epoch, left the leader's.

    Raises KafkaError OFFSET_OUT_OF_RANGE where that is unknown, or below the log start.
    """
    offset, epoch = request.fetch_offset, request.last_fetched_epoch
    end = log.end_of_epoch(epoch)
    if end is None or offset < log.log_start_offset:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"{log.partition}: offset {offset} after epoch {epoch}"
        )
    if end.epoch < epoch or end.end_offset < offset:
        return EpochEndOffset(epoch=end.epoch, end_offset=end.end_offset)
    return NO_EPOCH_END


def _log(partitions: Partitions, want: WantedPartition, limits: Limits) -> Led:
    if want.partition is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has that id")
    if limits.client.is_replica or not limits.followers_too:
        return partitions.led(want.partition)
    found = partitions.readable(want.partition)
    if not found.leads and want.request.fetch_offset > found.log.log_end_offset:
        raise KafkaError(  # OFFSET_OUT_OF_RANGE would have the consumer begin anew
            ErrorCode.OFFSET_NOT_AVAILABLE, f"{want.partition}: this follower is not there yet"
        )
    return found


def _in_memory_if_short(records: LogSlice | bytes, pread: Pread) -> bytes | LogSlice:
    if isinstance(records, bytes):
        return records
    if not records.size:
        return b""
    if records.size >= SENDFILE_BYTES_MIN:
        return records
    return records.read(pread)


def _without_storage_error(got: Got) -> Got:
    if got.data.error_code != ErrorCode.KAFKA_STORAGE_ERROR:
        return got
    return Got(replace(got.data, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))


def _error(partition: int, code: ErrorCode) -> PartitionData:
    return PartitionData(
        partition_index=partition,
        error_code=code,
        high_watermark=-1,
        last_stable_offset=-1,
        log_start_offset=-1,
        aborted_transactions=None,
        records=b"",
    )


# --- authorization --------------------------------------------------------------------------------


async def _authorize(caller: Caller, version: int, request: FetchRequest, handle: Handle) -> Any:
    ids = caller.services.topics.image.ids

    def may(topic: FetchTopic) -> bool:
        if version < BY_ID_FROM:
            return caller.may_topic(Operation.READ, topic.topic)
        known = ids.get(topic.topic_id)
        return known is None or caller.may_topic(Operation.READ, known.name)

    if is_replica(request):  # who may follow may follow all
        may_follow = caller.may_cluster(Operation.CLUSTER_ACTION)
        fine, others = caller.split_by_permission(request.topics, lambda _: may_follow)
    else:
        fine, others = caller.split_by_permission(request.topics, may)
    answer = await handle(request if not others else replace(request, topics=fine))
    if not others:
        return answer
    return replace(answer, responses=(*answer.responses, *map(_unread, others)))


def _unread(topic: FetchTopic) -> FetchableTopicResponse:
    return FetchableTopicResponse(
        topic=topic.topic,
        topic_id=topic.topic_id,
        partitions=tuple(_error(one.partition, TOPIC_REFUSED) for one in topic.partitions),
    )


API = Endpoint(FETCH, FetchRequest, FetchResponse, handle, _authorize)
