"""`spark.readStream.format("lapse")`: a log as a stream of micro-batches.

A position is JSON, `{"orders": {"0": 17}}`, the next offset of each partition: what Spark keeps in
its checkpoint. A batch is the offsets between two positions and nothing else, so that one that is
repeated after a failure has the same records, as far as they are still there: with a sink that is
idempotent each record counts once.

The end of a partition is what its segments hold, or its broker tells, when Spark asks; with
`kafka.isolation.level` = `read_committed` the last stable offset. Partitions that come later are
read from their beginning. What retention, DeleteRecords or compaction took before it was read is
data loss for offsets below the log start, and for a topic that is gone: `failOnDataLoss`.
Compaction itself is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from lapse.base.ids import TopicPartition
from lapse.spark.source_files import DataLost
from lapse.spark.source_options import EARLIEST, Bounds, SourceOptions
from lapse.spark.source_place import place_of
from lapse.spark.source_plan import Pruning
from lapse.spark.source_read import read_split

Position = dict[str, dict[str, int]]
Offsets = Mapping[TopicPartition, int]


class LapseStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark asks it for positions in the driver, and for records in the tasks."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._until: Offsets | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a query begins that has no checkpoint yet."""
        return position_of(place_of(self._options).starts())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What comes from now on is the next query's."""
        self._until = place_of(self._options).ends()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.offsets_max
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends; raises DataLost where a partition is gone."""
        begin = offsets_of(start)
        there = self._until if self._until is not None else place_of(self._options).ends()
        gone = sorted(str(partition) for partition in begin.keys() - there.keys())
        if gone and self._options.fail_on_data_loss:
            raise DataLost(f"{', '.join(gone)}: not there any more; failOnDataLoss=false goes on")
        # One that is gone keeps its place: it may only be away, on a disk that is not mounted.
        latest = {**begin, **{p: max(end, begin.get(p, 0)) for p, end in there.items()}}
        if isinstance(limit, ReadMaxRows):
            latest = limited(begin, latest, limit.max_rows)
        return position_of(latest)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """For the query's status."""
        return position_of(place_of(self._options).ends())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What the batch between two positions reads, in tasks."""
        begin, until = offsets_of(start), offsets_of(end)
        wanted = {p: offset for p, offset in until.items() if offset > begin.get(p, 0)}
        if not wanted:
            return []
        options = replace(
            self._options,
            topics=None,
            pattern=None,
            partitions=tuple(sorted(wanted)),
            # One that is new is read from its beginning, wherever that is.
            starting=Bounds(EARLIEST, {p: begin.get(p, EARLIEST) for p in wanted}),
            ending=Bounds(EARLIEST, wanted),
        )
        return place_of(options).plan(Pruning())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        return read_split(self._options, partition)


def limited(begin: Offsets, latest: Offsets, offsets_max: int) -> dict[TopicPartition, int]:
    """Ends nearer, so that there are no more offsets in all: to each its share of what waits.

    As Spark's Kafka source shares `maxOffsetsPerTrigger`; one offset at least where any waits, so
    that a small partition beside a huge one moves too.
    """
    waits = {p: latest[p] - begin.get(p, 0) for p in latest}
    total = sum(waits.values())
    if total <= offsets_max:
        return dict(latest)
    return {
        p: begin.get(p, 0) + (max(1, n * offsets_max // total) if n else 0)
        for p, n in waits.items()
    }


def position_of(offsets: Offsets) -> Position:
    """As Spark keeps it."""
    position: Position = {}
    for partition, offset in sorted(offsets.items()):
        position.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return position


def offsets_of(position: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Inverse of `position_of`."""
    return {
        TopicPartition(topic, int(number)): int(offset)
        for topic, numbers in position.items()
        for number, offset in numbers.items()
    }
