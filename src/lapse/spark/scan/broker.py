"""`format("lapse")` from a broker, over Lapse's client: for readers without access to its files.

The driver requests the ends of the partitions and cuts them into ranges of offsets; each task reads
its own. Works with any broker that speaks Kafka's protocol. `kafka.*` options are those of Kafka's
clients, without their prefix (`client.login` has what they mean); they travel to the tasks, secrets
included, as those of Spark's own Kafka source do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from queue import Empty, Queue
from threading import Event, Thread
from typing import Any, TypeVar

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.consumer import Consumer, ConsumerConfig
from lapse.client.fetched import Fetched
from lapse.client.login import login
from lapse.client.range_reader import DEFAULTS, FetchLimits, OffsetRange, read_range
from lapse.spark.scan.files import DataLost
from lapse.spark.scan.options import LATEST, Bounds, SourceOptions
from lapse.spark.scan.plan import BrokerSlice, Extent, Pruning, Split, named, offset_in

T = TypeVar("T")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_MAX_MS = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_AHEAD = 2  # answers that wait to be looked at
_GONE = {
    ErrorCode.OFFSET_OUT_OF_RANGE: "offset {} is gone",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "not there any more",
    ErrorCode.UNKNOWN_TOPIC_ID: "not there any more",
}


# --- in the driver --------------------------------------------------------------------------------


def plan(options: SourceOptions, pruning: Pruning) -> list[Split]:
    """What to read, a task for each partition at least, and `minPartitions` where offsets allow.

    Raises ConfigError where something named is not there, DataLost where offsets are not,
    KafkaError and ConnectionLost.
    """

    async def ask(consumer: Consumer) -> list[Split]:
        extents = {
            p: e for p, e in (await _extents(consumer, options)).items() if pruning.admits(p)
        }
        begin = await _resolved(consumer, extents, options.starting, options)
        until = await _resolved(consumer, extents, options.ending, options)
        if pruning.timestamp_from is not None:
            wanted = Bounds(LATEST, timestamp_ms=pruning.timestamp_from)
            young = await _resolved(consumer, extents, wanted, options)
            begin = {p: max(at, young[p]) for p, at in begin.items()}
        ranges = {
            p: (max(begin[p], pruning.offset_from), min(until[p], pruning.offset_until))
            for p in sorted(extents)
        }
        return [Split((one,)) for one in _cut(options, ranges)]

    return asyncio.run(_with_consumer(options, ask))


def starts(options: SourceOptions) -> dict[TopicPartition, int]:
    """Where a stream begins in each selected partition; raises as `plan`."""

    async def ask(consumer: Consumer) -> dict[TopicPartition, int]:
        extents = await _extents(consumer, options)
        return await _resolved(consumer, extents, options.starting, options)

    return asyncio.run(_with_consumer(options, ask))


def extents(options: SourceOptions, *, lenient: bool = False) -> dict[TopicPartition, Extent]:
    """Each selected partition as it is now; `lenient` leaves out what is named and not there."""
    ask = partial(_extents, options=options, lenient=lenient)
    return asyncio.run(_with_consumer(options, ask))


async def _with_consumer(options: SourceOptions, ask: Callable[[Consumer], Awaitable[T]]) -> T:
    config = ConsumerConfig(
        read_committed=options.committed, default_api_timeout_ms=options.api_timeout_ms
    )
    async with Consumer(options.bootstrap, config, login=login(options.client)) as consumer:
        return await ask(consumer)


def _cut(
    options: SourceOptions, ranges: Mapping[TopicPartition, tuple[int, int]]
) -> Iterator[BrokerSlice]:
    """As Spark's Kafka source does it: a partition's share of tasks is its share of offsets."""
    sizes = {p: until - begin for p, (begin, until) in ranges.items() if until > begin}
    total = sum(sizes.values())
    for partition, size in sizes.items():
        least = -(-size // (options.records_max or size))
        pieces = min(size, max(least, round(options.partitions_min * size / total)))
        begin = ranges[partition][0]
        bounds = [begin + size * n // pieces for n in range(pieces + 1)]
        for first, last in pairwise(bounds):
            yield BrokerSlice(options.bootstrap, options.client, partition, first, last)


async def _extents(
    consumer: Consumer, options: SourceOptions, *, lenient: bool = False
) -> dict[TopicPartition, Extent]:
    topics = await consumer.topics()  # ids before ends: a topic made anew meanwhile has another
    there = [TopicPartition(name, n) for name, topic in topics.items() for n in topic.leaders]
    chosen = sorted(named(options, there, f"at {options.bootstrap}", lenient=lenient))
    first = await consumer.beginning_offsets(chosen)
    last = await consumer.end_offsets(chosen)
    ids = {name: topic.topic_id for name, topic in topics.items() if topic.topic_id.int}
    return {p: Extent(first[p], max(first[p], last[p]), ids.get(p.topic)) for p in chosen}


async def _resolved(
    consumer: Consumer,
    extents: Mapping[TopicPartition, Extent],
    bounds: Bounds,
    options: SourceOptions,
) -> dict[TopicPartition, int]:
    """Offsets between the start and the end of each log."""
    timed = {p: at for p in extents if (at := bounds.time_of(p)) is not None}
    found = await _at_times(consumer, timed)
    return {
        p: min(bounds.or_end(found[p], p, extent.end_offset), extent.end_offset)
        if p in timed
        else offset_in(p, extent, bounds, options, extent.end_offset)
        for p, extent in extents.items()
    }


async def _at_times(
    consumer: Consumer, times_ms: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, int | None]:
    if not times_ms:
        return {}
    moments = {
        p: _EPOCH + timedelta(milliseconds=min(at, _TIME_MAX_MS)) for p, at in times_ms.items()
    }
    return await consumer.offsets_for_times(moments)


# --- in a task ------------------------------------------------------------------------------------


def read_slice(
    part: BrokerSlice, *, committed: bool, limits: FetchLimits = DEFAULTS
) -> Iterator[Fetched]:
    """What there is of a slice, batches whole.

    Fetched by a thread of its own, so that the next answer comes while the last is looked at.
    Raises as `range_reader.read_range`, and DataLost where offsets of it were deleted, which says
    where it goes on.
    """
    answers: Queue[Fetched | BaseException | None] = Queue(_AHEAD)
    stopped = Event()
    work = partial(_fetch_all, part, committed, limits, answers, stopped)
    thread = Thread(target=work, name="lapse-fetch", daemon=True)
    thread.start()
    try:
        while (one := answers.get()) is not None:
            if isinstance(one, BaseException):
                raise one
            yield one
    finally:
        stopped.set()
        with contextlib.suppress(
            Empty
        ):  # a producer that waits for room must see that the reader is gone
            while True:
                answers.get_nowait()
        thread.join()


def _fetch_all(
    part: BrokerSlice,
    committed: bool,
    limits: FetchLimits,
    answers: Queue[Any],
    stopped: Event,
) -> None:
    wanted = OffsetRange(part.partition, part.offset_from, part.offset_until)
    reached = part.offset_from

    async def fetch() -> None:
        nonlocal reached
        async with Cluster(parse_bootstrap(part.bootstrap), login(part.client)) as cluster:
            reading = read_range(cluster, wanted, committed=committed, limits=limits)
            async with contextlib.aclosing(reading):
                async for one in reading:
                    await asyncio.to_thread(answers.put, one)
                    reached = one.next_offset
                    if stopped.is_set():
                        return

    end: BaseException | None = None
    try:
        asyncio.run(fetch())
    except BaseException as e:  # noqa: BLE001  (it is the task's)
        end = e
    if isinstance(end, KafkaError) and end.code in _GONE:
        try:
            end = asyncio.run(_lost(part, reached, end, limits))
        except BaseException as e:  # noqa: BLE001  (the log start cannot be read)
            end = e
    answers.put(end)


async def _lost(
    part: BrokerSlice, offset: int, refused: KafkaError, limits: FetchLimits
) -> DataLost:
    """What is said of an offset that is gone, with where the log begins if that is beyond it."""
    said = f"{part.partition}: {_GONE[refused.code].format(offset)}: {refused}"
    if refused.code != ErrorCode.OFFSET_OUT_OF_RANGE:
        return DataLost(said)
    config = ConsumerConfig(default_api_timeout_ms=limits.api_timeout_ms)
    async with Consumer(part.bootstrap, config, login=login(part.client)) as consumer:
        first = (await consumer.beginning_offsets([part.partition]))[part.partition]
    return DataLost(said, goes_on_at=first if first > offset else None)
