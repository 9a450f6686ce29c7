"""`format("lapse")` from a broker, over Lapse's client: for readers without access to its files.

The driver requests the ends of the partitions and cuts them into ranges of offsets; each task reads
its own. Works with any broker that speaks Kafka's protocol. `kafka.*` options are those of Kafka's
clients, without their prefix (`client.login` has what they mean); they travel to the tasks, secrets
included, as those of Spark's own Kafka source do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from queue import SimpleQueue
from typing import TypeVar

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.client.cluster import Cluster
from lapse.client.consumer import Consumer, ConsumerConfig
from lapse.client.fetched import Fetched
from lapse.client.range_reader import DEFAULTS, FetchLimits, OffsetRange, read_range
from lapse.spark.scan.bounds import Bounds, require_order_found
from lapse.spark.scan.byte_looks import Look
from lapse.spark.scan.connections import connections
from lapse.spark.scan.files import DataLost
from lapse.spark.scan.options import SourceOptions
from lapse.spark.scan.plan import BrokerSlice, Extent, Pruning, Split, named, offset_in
from lapse.spark.scan.shares import at_least, handed_out

T = TypeVar("T")
Ranges = Mapping[TopicPartition, tuple[int, int]]  # from an offset until another one
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_MAX_MS = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_AHEAD = 2  # answers that wait to be looked at
_LOOK_BYTES = 64 << 10
_LOOKS_AT_ONCE = 16
PACKED_OFFSETS_MAX = 10_000  # read in less time than a task takes, if records are not huge
_GONE = {
    ErrorCode.OFFSET_OUT_OF_RANGE: "offset {} is gone",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "not there any more",
    ErrorCode.UNKNOWN_TOPIC_ID: "not there any more",
}


# --- in the driver --------------------------------------------------------------------------------


def plan(options: SourceOptions, pruning: Pruning, whole: Ranges | None = None) -> list[Split]:
    """What to read: small partitions share a task, and `minPartitions` is kept if offsets allow.

    `whole`: tasks share that, and read what is left of their part, which may be nothing. Raises
    ConfigError where something named is not there, DataLost where offsets are not, KafkaError and
    ConnectionLost.
    """

    async def ask(consumer: Consumer) -> list[Split]:
        extents = {
            p: e for p, e in (await _extents(consumer, options)).items() if pruning.admits(p)
        }
        begin = await _resolved(consumer, extents, options.starting, options)
        until = await _resolved(consumer, extents, options.ending, options)
        for p in extents:
            bounds = options.starting, options.ending
            require_order_found(p, bounds, begin[p], until[p])
        if whole is None:  # a stream's batch does not leave out what is not committed yet
            until = {p: min(at, extents[p].end_offset) for p, at in until.items()}
        if pruning.timestamp_from is not None:
            old = await _older_until(consumer, extents, pruning.timestamp_from)
            begin = {p: max(at, old.get(p, at)) for p, at in begin.items()}
        ranges = {
            p: (max(begin[p], pruning.offset_from), min(until[p], pruning.offset_until))
            for p in sorted(extents)
        }
        shared = ranges if whole is None else dict(sorted(whole.items()))
        packed = _packed(_cut(options, shared), _packed_max(options, shared))
        tasks = at_least(list(packed), options.partitions_min, _part)
        return [_within(task, ranges, extents) for task in tasks]

    return _with_consumer(options, ask)


def starts(options: SourceOptions) -> dict[TopicPartition, int]:
    """Where a stream begins in each selected partition; raises as `plan`."""

    async def ask(consumer: Consumer) -> dict[TopicPartition, int]:
        extents = await _extents(consumer, options)
        return await _resolved(consumer, extents, options.starting, options)

    return _with_consumer(options, ask)


def extents(options: SourceOptions, *, lenient: bool = False) -> dict[TopicPartition, Extent]:
    """Each selected partition as it is now; `lenient` leaves out what is named and not there."""
    ask = partial(_extents, options=options, lenient=lenient)
    return _with_consumer(options, ask)


def looks(options: SourceOptions, at: Mapping[TopicPartition, int]) -> dict[TopicPartition, Look]:
    """What lies at an offset of each partition, by a small Fetch; raises as `extents`."""
    limits = replace(
        DEFAULTS, partition_bytes_max=_LOOK_BYTES, api_timeout_ms=options.api_timeout_ms
    )
    config = ConsumerConfig(default_api_timeout_ms=options.api_timeout_ms)

    async def look_all(cluster: Cluster) -> dict[TopicPartition, Look]:
        room = asyncio.Semaphore(_LOOKS_AT_ONCE)

        async def look(partition: TopicPartition, offset: int) -> Look | None:
            async with room:
                try:
                    return await _look(cluster, partition, offset, limits)
                except KafkaError as e:
                    if e.code not in _GONE:
                        raise
                    if e.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                        return None  # who reads it says that it is gone, or passes it over
                async with Consumer(cluster, config) as consumer:
                    first = (await consumer.beginning_offsets([partition]))[partition]
                    end = (await consumer.end_offsets([partition]))[partition]
                # Where all is deleted no answer comes: a Fetch at the end is one too early.
                return None if first >= end else await _look(cluster, partition, first, limits)

        found = await asyncio.gather(*(look(p, offset) for p, offset in at.items()))
        return {p: one for p, one in zip(at, found, strict=True) if one is not None}

    return _in_connections(options, look_all)


async def _look(
    cluster: Cluster, partition: TopicPartition, offset: int, limits: FetchLimits
) -> Look | None:
    wanted = OffsetRange(partition, offset, offset + 1)
    async with contextlib.aclosing(
        read_range(cluster, wanted, committed=False, limits=limits)
    ) as reading:
        async for one in reading:
            rows = one.rows
            first = min(offset, int(rows["base_offset"][0]))
            first_end = int(rows["last_offset"][0]) + 1
            return Look(offset, first_end, int(rows["size"].sum()), one.next_offset - first)
    return None


def _with_consumer(options: SourceOptions, ask: Callable[[Consumer], Awaitable[T]]) -> T:
    config = ConsumerConfig(default_api_timeout_ms=options.api_timeout_ms)

    async def use(cluster: Cluster) -> T:
        async with Consumer(cluster, config) as consumer:
            return await ask(consumer)

    return _in_connections(options, use)


def _in_connections(options: SourceOptions, use: Callable[[Cluster], Awaitable[T]]) -> T:
    """With a cluster of this process's, in the thread that has its connections."""
    asking = connections().use(options.bootstrap, options.client, use)
    try:
        return asking.result()
    finally:
        asking.cancel()  # where somebody broke it off: it would go on in the loop's thread


def _packed_max(options: SourceOptions, ranges: Ranges) -> int:
    """Offsets of small slices that share a task: no more than leave `minPartitions` tasks."""
    total = sum(max(until - begin, 0) for begin, until in ranges.values())
    wanted = options.partitions_min
    share = total // wanted if wanted > 1 else PACKED_OFFSETS_MAX
    return min(PACKED_OFFSETS_MAX, share, options.records_max or PACKED_OFFSETS_MAX)


def _packed(slices: Iterable[BrokerSlice], offsets_max: int) -> Iterator[list[BrokerSlice]]:
    """Neighbours together while they are small: a task costs more than so few records."""
    held: list[BrokerSlice] = []
    offsets = 0
    for one in slices:
        more = one.offset_until - one.offset_from
        if held and offsets + more > offsets_max:
            yield held
            held, offsets = [], 0
        held.append(one)
        offsets += more
    if held:
        yield held


def _part(whole: BrokerSlice, begin: int, until: int) -> BrokerSlice:
    return replace(whole, offset_from=begin, offset_until=until)


def _within(
    task: Sequence[BrokerSlice], ranges: Ranges, extents: Mapping[TopicPartition, Extent]
) -> Split:
    """What lies in the ranges of what a task has, and of which topics that is."""
    kept = []
    for one in task:
        first, end = ranges.get(one.partition, (0, 0))
        begin, until = max(one.offset_from, first), min(one.offset_until, end)
        if begin < until:
            topic_id = extents[one.partition].topic_id
            kept.append(replace(one, offset_from=begin, offset_until=until, topic_id=topic_id))
    return Split(kept)


def _cut(options: SourceOptions, ranges: Ranges) -> Iterator[BrokerSlice]:
    """As Spark's Kafka source does it: a partition's share of tasks is its share of offsets."""
    sizes = {p: until - begin for p, (begin, until) in ranges.items() if until > begin}
    total = sum(sizes.values())
    least = [
        min(size, max(-(-size // (options.records_max or size)),
                      round(options.partitions_min * size / total)))
        for size in sizes.values()
    ]  # fmt: skip
    pieces = handed_out([*sizes.values()], least, options.partitions_min)
    for (partition, size), count in zip(sizes.items(), pieces, strict=True):
        begin = ranges[partition][0]
        bounds = [begin + size * n // count for n in range(count + 1)]
        for first, last in pairwise(bounds):
            yield BrokerSlice(options.bootstrap, options.client, partition, first, last)


async def _extents(
    consumer: Consumer, options: SourceOptions, *, lenient: bool = False
) -> dict[TopicPartition, Extent]:
    topics = await consumer.topics()  # ids before ends: a topic made anew meanwhile has another
    there = [TopicPartition(name, n) for name, topic in topics.items() for n in topic.leaders]
    chosen = sorted(named(options, there, f"at {options.bootstrap}", lenient=lenient))
    first = await consumer.beginning_offsets(chosen)
    stable = await consumer.last_stable_offsets(chosen) if options.committed else None
    last = await consumer.end_offsets(chosen)  # after those, which are never beyond it
    ends = last if stable is None else stable
    ids = {name: topic.topic_id for name, topic in topics.items() if topic.topic_id.int}
    return {
        p: Extent(
            first[p],
            max(first[p], ends[p]),
            ids.get(p.topic),
            max(first[p], ends[p], last[p]),
        )
        for p in chosen
    }


async def _resolved(
    consumer: Consumer,
    extents: Mapping[TopicPartition, Extent],
    bounds: Bounds,
    options: SourceOptions,
) -> dict[TopicPartition, int]:
    """Offsets between the start and the end of each log; only the latest is where readers end."""
    timed = {p: at for p in extents if (at := bounds.time_of(p)) is not None}
    found = await _at_times(consumer, timed)
    return {
        p: min(bounds.or_end(found[p], p, extent.end_offset), extent.known_end)
        if p in timed
        else offset_in(
            p, replace(extent, end_offset=extent.known_end), bounds, options, extent.end_offset
        )
        for p, extent in extents.items()
    }


async def _at_times(
    consumer: Consumer, times_ms: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, int | None]:
    if not times_ms:
        return {}
    return await consumer.offsets_for_times({p: _moment(at) for p, at in times_ms.items()})


async def _older_until(
    consumer: Consumer, partitions: Iterable[TopicPartition], time_ms: int
) -> dict[TopicPartition, int]:
    """Offsets below which all is older than a time; only of partitions where that is certain.

    That no record is as young Kafka also says where some are (`client.age`); ours knows.
    """
    if time_ms <= 0:
        return {}  # brokers have other meanings for such times, and who is older has none
    times = dict.fromkeys(partitions, _moment(time_ms))
    found = await consumer.offsets_for_times(times)
    unsure = {p: times[p] for p, at in found.items() if at is None}
    found |= await consumer.offsets_by_age(unsure)
    return {p: at for p, at in found.items() if at is not None}


def _moment(time_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=min(time_ms, _TIME_MAX_MS))


# --- in a task ------------------------------------------------------------------------------------


def read_slice(
    part: BrokerSlice, *, committed: bool, limits: FetchLimits = DEFAULTS
) -> Iterator[Fetched]:
    """What there is of a slice, batches whole.

    The next answer is fetched while the last is looked at. Raises as `range_reader.read_range`, and
    DataLost where offsets of it were deleted, which says where it goes on.
    """
    brokers, answers = connections(), _Answers()
    fetch = partial(_fetch_all, part, committed, limits, answers)
    fetching = brokers.use(part.bootstrap, part.client, fetch)
    try:
        while (one := answers.got.get()) is not None:
            brokers.call(answers.room.release)
            if isinstance(one, Exception):
                raise one
            yield one
    finally:
        fetching.cancel()


@dataclass(frozen=True, slots=True)
class _Answers:
    """On their way from the loop's thread to a task's; None is the end, an error too.

    Attributes:
        room: taken before an answer is put, and given back for each that was taken out.
    """

    got: SimpleQueue[Fetched | Exception | None] = field(default_factory=SimpleQueue)
    room: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, _AHEAD))


async def _fetch_all(
    part: BrokerSlice, committed: bool, limits: FetchLimits, answers: _Answers, cluster: Cluster
) -> None:
    """Put all answers into the queue, and then None or what went wrong."""
    wanted = OffsetRange(part.partition, part.offset_from, part.offset_until, part.topic_id)
    reached = part.offset_from
    end: Exception | None = None
    try:
        try:
            reading = read_range(cluster, wanted, committed=committed, limits=limits)
            async with contextlib.aclosing(reading):
                async for one in reading:
                    await answers.room.acquire()
                    answers.got.put(one)
                    reached = one.next_offset
        except KafkaError as e:
            if e.code not in _GONE:
                raise
            end = await _lost(part, reached, e, limits, cluster)
    except Exception as e:  # noqa: BLE001  (it is the task's)
        end = e
    answers.got.put(end)


async def _lost(
    part: BrokerSlice, offset: int, refused: KafkaError, limits: FetchLimits, cluster: Cluster
) -> DataLost:
    """What is said of an offset that is gone, with where the log begins if that is beyond it."""
    said = f"{part.partition}: {_GONE[refused.code].format(offset)}: {refused}"
    if refused.code != ErrorCode.OFFSET_OUT_OF_RANGE:
        return DataLost(said)
    config = ConsumerConfig(default_api_timeout_ms=limits.api_timeout_ms)
    async with Consumer(cluster, config) as consumer:
        first = (await consumer.beginning_offsets([part.partition]))[part.partition]
    return DataLost(said, goes_on_at=first if first > offset else None)
