"""Rows to a broker: Arrow batches judged and sent, some at a time, in the order they come."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lapse.base.clock import SystemClock
from lapse.base.errors import ErrorCode, KafkaError
from lapse.client.admin import Admin
from lapse.client.attempts import tried
from lapse.client.login import login
from lapse.client.producer import DEFAULTS, Producer, ProducerConfig
from lapse.client.settings import TOPIC, Resource, ResourceConfig
from lapse.records.from_arrow import PlacedRecords, WriteSpec, place_records
from lapse.records.row_digest import RowDigest
from lapse.spark.scan.options import TOMBSTONE_VALUES
from lapse.spark.scan.write_options import WriteOptions

_UNTIMED = (1 << 62) + 1  # of a row without a time, as long as nobody gave it one
_AHEAD = 2  # Arrow batches under way at a time
_NO_TOPIC = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION})


async def write_all(
    batches: Iterator[pa.RecordBatch], options: WriteOptions, keyless_from: int = 0
) -> int:
    """Send all rows, and wait until all are in the log; returns how many.

    Raises ConfigError, KafkaError, ConnectionLost.
    """
    who = login(options.client)
    async with Producer(options.bootstrap, producer_config(options), login=who) as producer:
        return await send_all(batches, Target(producer, options, keyless_from))


async def send_all(batches: Iterator[pa.RecordBatch], target: Target) -> int:
    """All rows to a target, some batches at a time; returns how many."""
    sent = 0
    waiting: deque[asyncio.Task[None]] = deque()
    try:
        while (rows := await asyncio.to_thread(next, batches, None)) is not None:
            waiting.append(asyncio.create_task(target.send(rows)))
            sent += len(rows)
            if len(waiting) > _AHEAD:
                await waiting.popleft()
        while waiting:
            await waiting.popleft()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    return sent


@dataclass(slots=True)
class Target:
    """Where rows go.

    Attributes:
        digest: of all rows, if somebody wants it.
        sends: False where they are only judged.
        topics: that rows were for.
    """

    producer: Producer
    options: WriteOptions
    keyless_from: int
    digest: RowDigest | None = None
    sends: bool = True
    counts: dict[str, int] = field(default_factory=dict)
    keeping: dict[str, bool] = field(default_factory=dict)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    topics: set[str] = field(default_factory=set)

    async def send(self, rows: pa.RecordBatch) -> None:
        """Judge and send; batches take their places in the order of the calls."""
        async with self.turn:
            self.keyless_from += 1
            await self._learn(_topics_of(rows, self.options))
            if self.options.valued_tombstones and _has_valued(rows):
                await self._learn_settings()
            spec = WriteSpec(
                topics=self.counts,
                now_ms=_UNTIMED,
                topic=self.options.topic,
                tombstone_values=frozenset(name for name, keeps in self.keeping.items() if keeps),
                keyless_from=self.keyless_from,
            )
            placed = await asyncio.to_thread(place_records, rows, spec)
            self._take(placed)
            sending = [
                asyncio.ensure_future(self.producer.send_fields(one.partition, one.fields))
                for one in (placed if self.sends else ())
            ]
            await asyncio.sleep(0)  # they are in their partitions' queues now
        outcomes = await asyncio.gather(*sending, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def _take(self, placed: Sequence[PlacedRecords]) -> None:
        """Rows without a time get the present one after they are counted: it is no part of them."""
        now_ms = SystemClock().now_ms()
        for one in placed:
            if self.digest is not None:
                self.digest.add(one.fields, one.partition.topic)
            times = one.fields.times
            times[times == _UNTIMED] = now_ms
            self.topics.add(one.partition.topic)

    async def _learn(self, names: Sequence[str]) -> None:
        """How many partitions each topic has; who is not there is refused by name later."""
        for name in names:
            if name in self.counts:
                continue
            if count := await _count_of(self.producer, name):
                self.counts[name] = count

    async def _learn_settings(self) -> None:
        """Which topics keep the values of tombstones: others would store them as null."""
        unknown = [Resource(TOPIC, n) for n in self.counts if n not in self.keeping]
        if not unknown:
            return
        found = await tried(partial(self._described, unknown), producer_config(self.options))
        for resource, config in found.items():
            if config.error is not None:
                raise config.error
            entry = config.entries.get(TOMBSTONE_VALUES)
            self.keeping[resource.name] = entry is not None and entry.value == "true"

    async def _described(self, topics: Sequence[Resource]) -> Mapping[Resource, ResourceConfig]:
        who = login(self.options.client)
        async with await Admin.open(self.options.bootstrap, login=who) as admin:
            return await admin.describe_configs(topics, [TOMBSTONE_VALUES])


async def partition_count(options: WriteOptions, name: str) -> int:
    """Partitions of a topic, 0 where it is not there. Raises ConnectionLost, KafkaError."""
    who = login(options.client)
    async with Producer(options.bootstrap, producer_config(options), login=who) as producer:
        return await _count_of(producer, name)


async def _count_of(producer: Producer, name: str) -> int:
    """Partitions of a topic, 0 where it is not there."""
    try:
        return await producer.partition_count(name)
    except KafkaError as e:
        if e.code not in _NO_TOPIC:
            raise
    return 0


def _has_valued(rows: pa.RecordBatch) -> bool:
    """Whether a row may be a tombstone with a value; types are judged later."""
    if "is_tombstone" not in rows.schema.names:
        return False
    dead = rows.column("is_tombstone")
    if not pa.types.is_boolean(dead.type):
        return False
    return bool(pc.any(pc.and_(dead, pc.is_valid(rows.column("value")))).as_py())


def _topics_of(rows: pa.RecordBatch, options: WriteOptions) -> list[str]:
    if options.topic is not None:
        return [options.topic]
    column = rows.column("topic")
    if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
        return []  # said when the rows are judged
    return [name for name in pc.unique(column).to_pylist() if name is not None]


def producer_config(options: WriteOptions) -> ProducerConfig:
    """As the options ask for it."""
    given = options.producer
    delivery_ms = given.get("delivery.timeout.ms", DEFAULTS.delivery_timeout_ms)
    largest = given.get("max.request.size", DEFAULTS.max_request_size)
    return ProducerConfig(
        compression=options.codec,
        request_timeout_ms=given.get("request.timeout.ms", DEFAULTS.request_timeout_ms),
        max_block_ms=delivery_ms,
        delivery_timeout_ms=delivery_ms,
        buffer_memory=max(DEFAULTS.buffer_memory, largest),
        max_request_size=largest,
    )
