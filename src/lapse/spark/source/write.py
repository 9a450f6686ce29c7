"""`df.write.format("lapse")` and `writeStream`: rows to a broker, batches built by kernel.

    rows.write.format("lapse").mode("append")
        .option("kafka.bootstrap.servers", "broker:9092").option("topic", "orders").save()

Columns and what they mean are `records.from_arrow`'s: those of Spark's Kafka sink, create times
(KIP-32) and tombstones (KIP-87) besides. All rows of an Arrow batch are judged before the first
of them is sent.

A stream is written **exactly once**, for who reads committed records (`source.exactly_once`). It is
visible task by task: a batch that is under way, or broken off, may be there in part.

A batch job is written as by Spark's Kafka sink, **at least once**, and so is a stream with
`exactlyOnce=false`. The producer of a task is idempotent (KIP-98): its own repeated requests leave
one copy, in order. But a task that Spark runs again, after a failure or by speculation, and a batch
of a stream that is repeated after a crash, write all their rows again; what an earlier attempt had
written stays. The task and the driver log a warning then. Records of a job that failed stay too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from lapse.base.errors import ConfigError
from lapse.records import row_digest
from lapse.records.from_arrow import check_columns, warm_up
from lapse.spark.scan.write_options import WriteOptions
from lapse.spark.source.exactly_once import Turn, see_no_more_tasks, turn_of, write_once
from lapse.spark.source.send import partition_count, write_all

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """The message of a task to the driver.

    Attributes:
        attempt: 0 for the first; without a turn, earlier ones have written some records too.
        turn: what was written exactly once; None where it was at least once.
    """

    task: int
    attempt: int
    records: int
    turn: Turn | None = None


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
        if name is not None and asyncio.run(partition_count(self._options, name)) < 1:
            where = self._options.bootstrap
            raise ConfigError(
                f"topic {name} is not there to be written to, at {where}: "
                f"`lapse topic create {name} --bootstrap-server {where}` makes it"
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Runs in a task.

        Raises ConfigError on what cannot be written, KafkaError as the broker refuses,
        ConnectionLost where no broker answers for `kafka.delivery.timeout.ms`, ReplayDiffers.
        """
        context = TaskContext.get()
        task, attempt = (context.partitionId(), context.attemptNumber()) if context else (0, 0)
        turn = turn_of(context) if self._options.exactly_once else None
        warm_up()
        row_digest.warm_up()
        if turn is not None:
            done = asyncio.run(write_once(iterator, self._options, turn))
            return Written(task, attempt, done.records, turn)
        if attempt:
            _log.warning(
                "task %d is run again (attempt %d): what was written before stays",
                task,
                attempt + 1,
            )
        return Written(task, attempt, asyncio.run(write_all(iterator, self._options, task)))

    def commit(self, messages: list[WriterCommitMessage | None], _batch_id: int = -1) -> None:
        self._tell(messages, aborted=False)

    def abort(self, messages: list[WriterCommitMessage | None], _batch_id: int = -1) -> None:
        self._tell(messages, aborted=True)

    def _tell(self, messages: Sequence[WriterCommitMessage | None], *, aborted: bool) -> None:
        written = [one for one in messages if isinstance(one, Written) and one.turn is None]
        again = sorted(one.task for one in written if one.attempt)
        if again:
            names = ", ".join(map(str, again))
            _log.warning("task %s needed several attempts: records may be there twice", names)
        if aborted and written:
            count = sum(one.records for one in written)
            _log.warning(
                "writing failed: %d records of the tasks that were done stay, and what the others "
                "had written", count,
            )  # fmt: skip


class LapseWriter(_Writer, DataSourceArrowWriter):
    """Of a batch job."""


class LapseStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Of a streaming query."""

    def commit(self, messages: list[WriterCommitMessage | None], batch_id: int = -1) -> None:
        """All tasks are done. Raises ReplayDiffers where an earlier try had more of them.

        Nobody tells whether there was one, and none of these tasks need have been done in it.
        """
        turns = [one.turn for one in messages if isinstance(one, Written) and one.turn is not None]
        if turns:
            asyncio.run(see_no_more_tasks(self._options, turns[0], len(messages)))
        super().commit(messages, batch_id)
