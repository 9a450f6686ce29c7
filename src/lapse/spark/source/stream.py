"""`spark.readStream.format("lapse")`: a log as a stream of micro-batches.

A position is JSON, `{"orders": {"0": 17, "topicId": "…"}}`, the next offset of each partition, and
of which topic where brokers or logs tell its id: what Spark keeps in its checkpoint. One of an
older checkpoint has no id; then that of the topic that is there now is noted. A batch is the
offsets between two positions and nothing else, so that one that is repeated after a failure has
the same records, as far as they are still there: with a sink that is idempotent each record counts
once. From brokers its tasks have the same parts, too. For that a position also has where its batch
began in partitions that are new in it, and in all of the first one: these begin where their logs
do, and when the batch is repeated that may be elsewhere.

The end of a partition is read from its segments or its broker when Spark requests it; with
`kafka.isolation.level` = `read_committed` the last stable offset. Partitions that come later are
read from their beginning. What retention, DeleteRecords or compaction took before it was read is
data loss for offsets below the log start, for a topic that is gone or has another id, and where a
log ends before what was read of it: `failOnDataLoss`. Compaction itself is none.

Spark keeps no word of where a query begins until its first batch is done. So of partitions that
begin at their end nothing is in that batch: if it is repeated, "the end" is another place, and what
came in between would be in no batch.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from lapse.base.clock import SystemClock
from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition, format_topic_id
from lapse.spark.scan import place
from lapse.spark.scan.bounds import EARLIEST, Bounds
from lapse.spark.scan.files import DataLost
from lapse.spark.scan.options import SourceOptions
from lapse.spark.scan.plan import Extent
from lapse.spark.scan.pruning import pruning_of
from lapse.spark.scan.read import read_split
from lapse.spark.source.delete import Deletion
from lapse.spark.source.progress import BEGINS, BESIDE, TOPIC_ID, parse_topic_ids

Position = dict[str, dict[str, Any]]
Offsets = Mapping[TopicPartition, int]
TopicIds = Mapping[str, uuid.UUID]
Extents = Mapping[TopicPartition, Extent]


class LapseStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver gets positions from it, and the tasks get records."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._wanted = pruning_of(options.where)  # by tasks: a batch is all offsets of its range
        self._until: Extents | None = None
        self._seen: Extents = {}
        self._held: Offsets = {}
        self._first: Offsets | None = None
        self._has_parts = bool(options.bootstrap)  # by a path they depend on files, too
        self._clock = SystemClock()
        self._batch_at = -math.inf  # when one had something last, by the monotonic clock
        wish = options.deletion
        self._deletion = None if wish is None else Deletion(options, wish, self._clock)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a query begins that has no checkpoint yet."""
        before = place.extents(self._options)
        begin = place.starts(self._options)
        none = Extent(0, 0)
        self._held = {p: at for p, at in begin.items() if at >= before.get(p, none).end_offset}
        self._first = begin
        if self._until is not None:  # Spark asks for the ends first, and the log may have grown
            ends = {p: self._until.get(p, replace(before.get(p, none), end_offset=at))
                    for p, at in begin.items()}  # fmt: skip
            self._until = {
                **self._until,
                **{p: replace(e, end_offset=max(e.end_offset, begin[p])) for p, e in ends.items()},
            }
        position = position_of(begin, ids_of(before))
        if self._deletion is not None:
            self._deletion.begins(position)
        return position

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What comes from now on is the next query's."""
        self._until = place.extents(self._options, lenient=True)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        wish = self._options
        if wish.bytes_max is not None:
            return ReadMaxBytes(wish.bytes_max)
        return ReadAllAvailable() if wish.offsets_max is None else ReadMaxRows(wish.offsets_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends; raises DataLost where a partition, or its end, is gone."""
        if self._deletion is not None:
            self._deletion.goes_on(start)
        there = self._seen = self._until or place.extents(self._options, lenient=True)
        begin, ids = offsets_of(start), parse_topic_ids(start)
        is_first = begin == self._first
        anew = self._made_anew(ids, there)
        begin = {p: at for p, at in begin.items() if p.topic not in anew}
        if self._options.fail_on_data_loss:
            _check_all_there(begin, there, self._options.topics or ())
        latest = _latest(begin, there, fail_on_data_loss=self._options.fail_on_data_loss)
        latest |= {p: at for p, at in self._held.items() if begin.get(p) == at}
        self._held = {}
        # A partition that is new is read from where it begins.
        known = {p: extent.start_offset for p, extent in there.items()} | begin
        if self._waits_for_more(known, latest):
            return start
        if isinstance(limit, ReadMaxRows):
            latest = limited(known, latest, limit.max_rows)
        elif isinstance(limit, ReadMaxBytes):
            latest = place.ends_within(self._options, known, latest, limit.max_bytes)
        # What this start does not say to who repeats the batch: Spark keeps no first one.
        unsaid = known if is_first else {p: at for p, at in known.items() if at != begin.get(p, 0)}
        begins = {p: at for p, at in unsaid.items() if latest.get(p, at) > at}
        after = position_of(latest, {**ids, **ids_of(there)}, begins if self._has_parts else {})
        # Spark sees by their texts that it is the same position.
        return after if after != _without_begins(start) else start

    def _waits_for_more(self, begin: Offsets, latest: Offsets) -> bool:
        """Whether there is too little for a batch yet; the first one has what there is."""
        waits = sum(max(0, latest[p] - begin.get(p, 0)) for p in latest)
        now, delay_ms = self._clock.monotonic(), self._options.trigger_delay_ms
        is_late = self._until is not None or now - self._batch_at >= delay_ms / 1000
        if waits < self._options.offsets_min and not is_late:
            return True
        if waits:
            self._batch_at = now
        return False

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """For the query's status."""
        there = self._seen  # Spark calls this right after `latestOffset`
        return position_of({p: extent.end_offset for p, extent in there.items()}, ids_of(there))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What the batch between two positions reads, in tasks."""
        if self._deletion is not None:
            self._deletion.goes_on(start)
        begin, until = offsets_of(start), offsets_of(end)
        before, ids = parse_topic_ids(start), parse_topic_ids(end)
        # Of a topic that was made anew nothing is read before this batch.
        anew = {topic for topic, topic_id in before.items() if ids.get(topic, topic_id) != topic_id}
        begin = {p: at for p, at in begin.items() if p.topic not in anew}
        first = begin | begins_of(end)
        ranges = {p: (first.get(p, 0), at) for p, at in until.items() if at > first.get(p, 0)}
        if not ranges:
            return []
        waits = {p: at for p, at in until.items() if at > begin.get(p, 0)}
        wanted = self._still_there(waits, ids)
        options = replace(
            self._options,
            topics=None,
            pattern=None,
            partitions=tuple(sorted(wanted)),
            # One that is new is read from its beginning, wherever that is.
            starting=Bounds(EARLIEST, {p: begin.get(p, EARLIEST) for p in wanted}),
            ending=Bounds(EARLIEST, wanted),
        )
        return place.plan_batch(options, ranges, ids)

    def _still_there(self, wanted: Offsets, ids: TopicIds) -> Offsets:
        """A topic may have been deleted since the batch was planned, perhaps in another life."""
        options = replace(self._options, topics=None, pattern=None, partitions=tuple(wanted))
        there = place.extents(options, lenient=True) if wanted else {}
        if self._options.fail_on_data_loss:
            _check_all_there(wanted, there, ())
        anew = self._made_anew(ids, there)
        left = {p: offset for p, offset in wanted.items() if p in there and p.topic not in anew}
        for partition, offset in sorted(left.items()):
            _require_stable(partition, offset, there[partition])
        return left

    def _made_anew(self, ids: TopicIds, there: Extents) -> frozenset[str]:
        """Names that other topics have by now; raises DataLost if that is to end the query."""
        anew = {name for name, now in ids_of(there).items() if ids.get(name, now) != now}
        if anew and self._options.fail_on_data_loss:
            raise DataLost(
                f"{', '.join(sorted(anew))}: made anew, what was read was of another topic of this "
                "name; failOnDataLoss=false reads it from its beginning"
            )
        return frozenset(anew)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        return read_split(self._options, partition, self._wanted)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark calls this for a finished batch when it has planned the next one."""
        if self._deletion is not None:
            self._deletion.committed(end)


def _latest(
    begin: Offsets, there: Extents, *, fail_on_data_loss: bool
) -> dict[TopicPartition, int]:
    """The end of each partition; one that is gone keeps its place: its disk may only be away.

    A log that ends before what was read of it was made anew, or cut. What it will get is to be
    read, so the stream goes on at its end.
    """
    ends = {p: extent.end_for(begin.get(p, 0)) for p, extent in there.items()}
    for partition, end in sorted(ends.items()):
        if end < begin.get(partition, 0) and fail_on_data_loss:
            raise DataLost(
                f"{partition}: read up to offset {begin[partition]}, but the log ends at "
                f"{end}: it was made anew, or cut; failOnDataLoss=false goes on there"
            )
    return {**begin, **ends}


def _require_stable(partition: TopicPartition, offset: int, extent: Extent) -> None:
    """Raise KafkaError where a transaction is open below a batch's end: the rest would be lost.

    So it is where the batch was planned for readers of what is not committed.
    """
    if extent.end_offset < offset <= extent.known_end:
        raise KafkaError(
            ErrorCode.OFFSET_NOT_AVAILABLE,
            f"{partition}: the batch ends at offset {offset}, and committed records end at "
            f"{extent.end_offset} for now: start the query again when the transaction there has "
            "ended, or with kafka.isolation.level=read_uncommitted",
        )


def _check_all_there(
    wanted: Collection[TopicPartition],
    there: Collection[TopicPartition],
    topics: Collection[str],
) -> None:
    topics_there = {partition.topic for partition in there}
    missing = {str(p) for p in set(wanted) - set(there)} | (set(topics) - topics_there)
    if missing:
        names = ", ".join(sorted(missing))
        raise DataLost(f"{names}: not there any more; failOnDataLoss=false goes on")


def limited(begin: Offsets, latest: Offsets, offsets_max: int) -> dict[TopicPartition, int]:
    """Ends nearer, so that there are no more offsets in all: to each its share of what waits.

    As Spark's Kafka source shares `maxOffsetsPerTrigger`; one offset at least where any waits, so
    that a small partition beside a huge one moves too.
    """
    waits = {p: max(0, latest[p] - begin.get(p, 0)) for p in latest}
    total = sum(waits.values())
    if total <= offsets_max:
        return dict(latest)
    return {
        p: begin.get(p, 0) + max(1, n * offsets_max // total) if n else latest[p]
        for p, n in waits.items()
    }


def position_of(
    offsets: Offsets, ids: TopicIds | None = None, begins: Offsets | None = None
) -> Position:
    """As Spark keeps it; of topics without an id, offsets alone.

    `begins`: where the batch that ends there began, as far as the position before does not say.
    """
    position: Position = {}
    for partition, offset in sorted(offsets.items()):
        position.setdefault(partition.topic, {})[str(partition.partition)] = offset
    for topic in position.keys() & (ids or {}).keys():
        position[topic][TOPIC_ID] = format_topic_id((ids or {})[topic])
    for partition, offset in sorted((begins or {}).items()):
        position[partition.topic].setdefault(BEGINS, {})[str(partition.partition)] = offset
    return position


def offsets_of(position: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, int]:
    """Inverse of `position_of`; ids are `parse_topic_ids`', and the rest is `begins_of`'s."""
    return {
        TopicPartition(topic, int(number)): int(offset)
        for topic, numbers in position.items()
        for number, offset in numbers.items()
        if number not in BESIDE
    }


def begins_of(position: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, int]:
    """Where a batch began that ends there, as far as that is noted."""
    return offsets_of({topic: beside.get(BEGINS, {}) for topic, beside in position.items()})


def _without_begins(position: Mapping[str, Mapping[str, Any]]) -> Position:
    return {
        topic: {name: what for name, what in beside.items() if name != BEGINS}
        for topic, beside in position.items()
    }


def ids_of(there: Extents) -> dict[str, uuid.UUID]:
    """Ids of the existing topics, where they are known, and all partitions say the same."""
    known: dict[str, set[uuid.UUID]] = {}
    for partition, extent in there.items():
        if extent.topic_id is not None:
            known.setdefault(partition.topic, set()).add(extent.topic_id)
    return {topic: ids.pop() for topic, ids in known.items() if len(ids) == 1}
