"""Exactly once: a task's rows of a batch, and the word that they are there, count together.

A task of a stream writes in a transaction of its own (KIP-98), under a transactional id that all
attempts at its part share: `lapse-sink.QUERY.TASK`. With the rows it commits an offset of a group
of that name, which is the batch's number, and how many rows there were and their digest: at the
topics that it writes to, since a broker forgets the offsets of a topic that is deleted. An attempt
looks first: where its batch is there already it writes nothing, and sees only whether its rows are
the same. So whoever reads committed records sees each row once, whatever was killed or run twice.

An attempt fences the one before it, and ends what that left open. One that finds itself fenced
(speculation, a driver that was thought dead) waits for the word of the other.

How long the word is kept is up to the broker: `offsets.retention.minutes` (7 days) after the last
batch of a query that is not running. A batch that is repeated later is written again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from lapse.base.decoding import from_json
from lapse.base.errors import ConfigError, ErrorCode, KafkaError, LapseError
from lapse.base.ids import TopicPartition
from lapse.base.typed import whole
from lapse.client.attempts import tried
from lapse.client.cluster import Cluster, may_try_again, parse_bootstrap
from lapse.client.groups import group_ids
from lapse.client.login import login
from lapse.client.producer import Producer, ProducerConfig
from lapse.client.transactions import FENCED, Transactions, TransactionSettings, open_transactions
from lapse.records.row_digest import RowDigest
from lapse.spark.scan.write_options import WriteOptions
from lapse.spark.source.send import Target, producer_config, send_all

# Spark's own names, which tasks are told as local properties.
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
_LOOK_SECONDS = 0.5
_ABORT_SECONDS_MAX = 10.0  # an error is not kept back for longer
_WORDS_AT_ONCE = 16
_WORD_TOPICS_MAX = 100  # in one record batch of a broker's, however many topics a task writes to


class ReplayDiffers(LapseError):
    """A batch that is repeated is not what was written of it; its task has written nothing now."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A task's part of a batch."""

    query_id: str
    batch_id: int
    task: int

    @property
    def name(self) -> str:
        """Of its transactions, and of the group that keeps the word."""
        return f"{self._prefix}{self.task}"

    @property
    def _prefix(self) -> str:
        return f"lapse-sink.{self.query_id}."

    def task_named(self, name: str) -> int | None:
        """Which task of the query a group is of; None for other groups."""
        number = name.removeprefix(self._prefix)
        return whole(number) if name != number else None

    def __str__(self) -> str:
        return f"batch {self.batch_id}, task {self.task} of the query {self.query_id}"


class Word(msgspec.Struct, frozen=True):
    """What the group keeps: the last batch that the task has written."""

    batch: int
    rows: int
    digest: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a turn; `was_there`: an earlier attempt, or another, has written it."""

    records: int
    was_there: bool


def turn_of(context: TaskContext | None) -> Turn | None:
    """What a task is told; None where it is no stream's."""
    if context is None:
        return None
    query_id, batch_id = (context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID))
    if query_id is None or batch_id is None:
        return None
    return Turn(query_id, int(batch_id), context.partitionId())


async def write_once(
    batches: Iterator[pa.RecordBatch], options: WriteOptions, turn: Turn
) -> Outcome:
    """Send all rows unless they are there.

    Raises ReplayDiffers, and what sending raises; then nothing of it counts.
    """
    config, who = producer_config(options), login(options.client)
    settings = _settings(options, config)
    async with Cluster(parse_bootstrap(options.bootstrap), who) as cluster:
        transactions = Transactions(cluster, turn.name, settings)
        try:
            word = await _word(transactions, turn)
            if word is None or word.batch < turn.batch_id:
                await transactions.begin()  # nobody else's word comes after this
                word = await _stable_word(transactions, turn, settings)
            if word is not None and word.batch == turn.batch_id:
                return await _see_that_it_is_there(batches, options, turn, word)
            return await _write(batches, options, turn, transactions)
        except KafkaError as e:
            if e.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                asked = f"kafka.transaction.timeout.ms={options.transaction_timeout_ms}"
                raise ConfigError(
                    f"option {asked}: more than the brokers allow (transaction.max.timeout.ms)"
                ) from e
            if e.code not in FENCED:
                raise
            outcome = await _written_by_another(transactions, turn, config, e)
            await _take(batches)
            return outcome


async def see_no_more_tasks(options: WriteOptions, turn: Turn, tasks: int) -> None:
    """That no earlier try at a batch had more tasks with rows than it has; `turn` is one of them.

    What tasks that are none any more have left open is ended first: nothing of it counts later.
    Raises ReplayDiffers; KafkaError and ConnectionLost where a broker cannot be asked for
    `kafka.delivery.timeout.ms`.
    """
    settings, room = _settings(options, producer_config(options)), asyncio.Semaphore(_WORDS_AT_ONCE)
    async with Cluster(parse_bootstrap(options.bootstrap), login(options.client)) as cluster:

        def others(names: list[str]) -> list[Turn]:
            numbers = (turn.task_named(name) for name in names)
            found = (replace(turn, task=n) for n in numbers if n is not None and n >= tasks)
            return sorted(found, key=lambda one: one.task)

        async def word_of(other: Turn) -> Word | None:
            async with room:
                transactions = Transactions(cluster, other.name, settings)
                return await _stable_word(transactions, other, settings)

        opened = partial(open_transactions, cluster, settings=settings)
        for other in others(await tried(opened, settings)):
            await Transactions(cluster, other.name, settings).begin()
        gone = others(await tried(partial(group_ids, cluster), settings))
        for other, word in zip(gone, await asyncio.gather(*map(word_of, gone)), strict=True):
            if word is not None and word.batch == turn.batch_id:
                raise _differs(other, f"{word.rows} rows of it are there, now it has {tasks} tasks")


async def _write(
    batches: Iterator[pa.RecordBatch],
    options: WriteOptions,
    turn: Turn,
    transactions: Transactions,
) -> Outcome:
    digest, who = RowDigest(), login(options.client)
    config = producer_config(options)
    try:
        async with Producer(
            options.bootstrap, config, login=who, transactions=transactions
        ) as producer:
            target = Target(producer, options, turn.task, digest)
            rows = await send_all(batches, target)
        if target.topics:
            word = Word(turn.batch_id, rows, str(digest))
            text = msgspec.json.encode(word).decode()
            where = [TopicPartition(name, 0) for name in sorted(target.topics)[:_WORD_TOPICS_MAX]]
            await transactions.commit_offsets(turn.name, where, turn.batch_id, text)
            await transactions.end(commit=True)
    except BaseException:
        with suppress(LapseError, TimeoutError):  # the next attempt, or the broker, ends it too
            async with asyncio.timeout(_ABORT_SECONDS_MAX):
                await transactions.end(commit=False)
        raise
    return Outcome(rows, was_there=False)


async def _see_that_it_is_there(
    batches: Iterator[pa.RecordBatch], options: WriteOptions, turn: Turn, word: Word
) -> Outcome:
    if not options.rows_checked:
        await _take(batches)
        return Outcome(word.rows, was_there=True)
    digest, who = RowDigest(), login(options.client)
    async with Producer(options.bootstrap, producer_config(options), login=who) as producer:
        await send_all(batches, Target(producer, options, turn.task, digest, sends=False))
    if (digest.rows, str(digest)) != (word.rows, word.digest):
        raise _differs(turn, f"{word.rows} rows of it are there, now it has {digest.rows} others")
    return Outcome(word.rows, was_there=True)


async def _take(batches: Iterator[pa.RecordBatch]) -> None:
    """What is left of them: Spark wants a task's rows to be taken."""
    await asyncio.to_thread(deque, batches, 0)


async def _written_by_another(
    transactions: Transactions, turn: Turn, config: ProducerConfig, fenced: KafkaError
) -> Outcome:
    """The word of the attempt that has fenced this one; raises KafkaError where none comes."""
    with suppress(TimeoutError):
        async with asyncio.timeout(config.delivery_timeout_ms / 1000):
            while True:
                word = await _word(transactions, turn)
                if word is not None and word.batch == turn.batch_id:
                    return Outcome(word.rows, was_there=True)
                await asyncio.sleep(_LOOK_SECONDS)
    raise KafkaError(
        fenced.code,
        f"{turn}: another attempt took over, and has written nothing yet; or this one was longer "
        f"than kafka.transaction.timeout.ms ({fenced})",
    )


async def _word(transactions: Transactions, turn: Turn) -> Word | None:
    """As `_last_word`; None where an open transaction may replace it."""
    try:
        return await _last_word(transactions, turn)
    except KafkaError as e:
        if e.code is not ErrorCode.UNSTABLE_OFFSET_COMMIT:
            raise
        return None


async def _stable_word(
    transactions: Transactions, turn: Turn, settings: TransactionSettings
) -> Word | None:
    """As `_last_word`, of a task whose transactions have all ended.

    Brokers may say so before the offsets of the last one count (Kafka up to 3.9).
    """
    return await tried(partial(_last_word, transactions, turn), settings, _is_stable_later)


async def _last_word(transactions: Transactions, turn: Turn) -> Word | None:
    """What the group keeps.

    Raises ReplayDiffers where it is of a later batch, KafkaError as `Transactions.committed`.
    """
    offsets = await transactions.committed(turn.name)
    words = [_parsed(one.metadata) for one in offsets.values()]
    last = max((one for one in words if one), key=lambda one: one.batch, default=None)
    if last is not None and last.batch > turn.batch_id:
        raise _differs(turn, f"batch {last.batch} is there already: an old checkpoint?")
    return last


def _is_stable_later(error: LapseError) -> bool:
    unstable = isinstance(error, KafkaError) and error.code is ErrorCode.UNSTABLE_OFFSET_COMMIT
    return unstable or may_try_again(error)


def _parsed(metadata: str) -> Word | None:
    try:
        return from_json(metadata, Word)
    except msgspec.MsgspecError:
        return None  # somebody else's


def _differs(turn: Turn, what: str) -> ReplayDiffers:
    return ReplayDiffers(
        f"{turn}: {what}. This task has written nothing now; exactlyOnce=false for one run writes "
        "the batch again, whole"
    )


def _settings(options: WriteOptions, config: ProducerConfig) -> TransactionSettings:
    return TransactionSettings(
        transaction_timeout_ms=options.transaction_timeout_ms,
        request_timeout_ms=config.request_timeout_ms,
        max_block_ms=config.delivery_timeout_ms,
    )


__all__: Sequence[str] = (
    "BATCH_ID", "QUERY_ID", "Outcome", "ReplayDiffers", "Turn", "Word", "see_no_more_tasks",
    "turn_of", "write_once",
)  # fmt: skip
