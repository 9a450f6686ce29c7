"""`df.write.format("lapse")` and `writeStream`: rows to a broker, batches built by kernel.

    rows.write.format("lapse").mode("append")
        .option("kafka.bootstrap.servers", "broker:9092").option("topic", "orders").save()

Columns and what they mean are `records.from_arrow`'s: those of Spark's Kafka sink, create times
(KIP-32) and tombstones (KIP-87) besides. All rows of an Arrow batch are judged before the first
of them is sent.

What is promised is what Spark's Kafka sink promises: **at least once**. The producer of a task is
idempotent (KIP-98): its own repeated requests leave one copy, in order. But a task that Spark runs
again, after a failure or by speculation, and a batch of a stream that is repeated after a crash,
write all their rows again; what an earlier attempt had written stays. The task and the driver log a
warning then. Records of a job that failed stay too.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from lapse.base.clock import SystemClock
from lapse.base.errors import ConfigError, ErrorCode, KafkaError
from lapse.client.admin import Admin
from lapse.client.login import login
from lapse.client.producer import DEFAULTS, Producer, ProducerConfig
from lapse.client.settings import TOPIC, Resource
from lapse.records.from_arrow import WriteSpec, check_columns, place_records, warm_up
from lapse.spark.scan.options import TOMBSTONE_VALUES, WriteOptions

_log = logging.getLogger(__name__)
_AHEAD = 2  # Arrow batches under way at a time
_NO_TOPIC = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION})


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """The message of a task to the driver.

    Attributes:
        attempt: 0 for the first; earlier attempts have written an unknown number of records.
    """

    task: int
    attempt: int
    records: int


class _Writer:
    """What both writers do; travels to the tasks by pickle."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        names = schema.fieldNames()
        check_columns(names)
        if options.topic is None and "topic" not in names:
            raise ConfigError("option topic is missing, and there is no column topic either")
        self._options = options

    def require_topic(self) -> None:
        """Before anything is read, in the driver: that the topic is there, if it is one for all.

        Raises ConfigError, ConnectionLost where no broker answers for `kafka.delivery.timeout.ms`.
        """
        name = self._options.topic
        if name is not None and asyncio.run(_partition_count(self._options, name)) < 1:
            where = self._options.bootstrap
            raise ConfigError(
                f"topic {name} is not there to be written to, at {where}: "
                f"`lapse topic create {name} --bootstrap-server {where}` makes it"
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Runs in a task.

        Raises ConfigError on what cannot be written, KafkaError as the broker refuses,
        ConnectionLost where no broker answers for `kafka.delivery.timeout.ms`.
        """
        context = TaskContext.get()
        task, attempt = (context.partitionId(), context.attemptNumber()) if context else (0, 0)
        if attempt:
            _log.warning(
                "task %d is run again (attempt %d): what was written before stays",
                task,
                attempt + 1,
            )
        warm_up()
        return Written(task, attempt, asyncio.run(write_all(iterator, self._options, task)))

    def commit(self, messages: list[WriterCommitMessage | None], _batch_id: int = -1) -> None:
        self._tell(messages, aborted=False)

    def abort(self, messages: list[WriterCommitMessage | None], _batch_id: int = -1) -> None:
        self._tell(messages, aborted=True)

    def _tell(self, messages: Sequence[WriterCommitMessage | None], *, aborted: bool) -> None:
        written = [one for one in messages if isinstance(one, Written)]
        again = sorted(one.task for one in written if one.attempt)
        if again:
            names = ", ".join(map(str, again))
            _log.warning("task %s needed several attempts: records may be there twice", names)
        if aborted:
            count = sum(one.records for one in written)
            _log.warning(
                "writing failed: %d records of the tasks that were done stay, and what the others "
                "had written", count,
            )  # fmt: skip


class LapseWriter(_Writer, DataSourceArrowWriter):
    """Of a batch job."""


class LapseStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Of a streaming query."""


# --- in a task ------------------------------------------------------------------------------------


async def write_all(
    batches: Iterator[pa.RecordBatch], options: WriteOptions, keyless_from: int = 0
) -> int:
    """Send all rows, and wait until all are in the log; returns how many. Raises as `write`."""
    who = login(options.client)
    sent = 0
    waiting: deque[asyncio.Task[None]] = deque()
    async with Producer(options.bootstrap, _config(options), login=who) as producer:
        target = _Target(producer, options, keyless_from)
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
class _Target:
    producer: Producer
    options: WriteOptions
    keyless_from: int
    counts: dict[str, int] = field(default_factory=dict)
    keeping: dict[str, bool] = field(default_factory=dict)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def send(self, rows: pa.RecordBatch) -> None:
        """Judge and send; batches take their places in the order of the calls."""
        async with self.turn:
            self.keyless_from += 1
            await self._learn(_topics_of(rows, self.options))
            if self.options.valued_tombstones and _has_valued(rows):
                await self._learn_settings()
            spec = WriteSpec(
                topics=self.counts,
                now_ms=SystemClock().now_ms(),
                topic=self.options.topic,
                tombstone_values=frozenset(name for name, keeps in self.keeping.items() if keeps),
                keyless_from=self.keyless_from,
            )
            placed = await asyncio.to_thread(place_records, rows, spec)
            sending = [
                asyncio.ensure_future(self.producer.send_fields(one.partition, one.fields))
                for one in placed
            ]
            await asyncio.sleep(0)  # they are in their partitions' queues now
        outcomes = await asyncio.gather(*sending, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

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
        who = login(self.options.client)
        async with await Admin.open(self.options.bootstrap, login=who) as admin:
            found = await admin.describe_configs(unknown, [TOMBSTONE_VALUES])
        for resource, config in found.items():
            if config.error is not None:
                raise config.error
            entry = config.entries.get(TOMBSTONE_VALUES)
            self.keeping[resource.name] = entry is not None and entry.value == "true"


async def _partition_count(options: WriteOptions, name: str) -> int:
    who = login(options.client)
    async with Producer(options.bootstrap, _config(options), login=who) as producer:
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


def _config(options: WriteOptions) -> ProducerConfig:
    given = options.producer
    largest = given.get("max.request.size", DEFAULTS.max_request_size)
    return ProducerConfig(
        compression=options.codec,
        request_timeout_ms=given.get("request.timeout.ms", DEFAULTS.request_timeout_ms),
        delivery_timeout_ms=given.get("delivery.timeout.ms", DEFAULTS.delivery_timeout_ms),
        buffer_memory=max(DEFAULTS.buffer_memory, largest),
        max_request_size=largest,
    )
