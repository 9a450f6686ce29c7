"""From options to what each Spark task reads: offset ranges, cut at batch boundaries, packed.

Done in the driver, from names, sizes and indexes: of segments only the end of the last one is read,
and what looking up a time or an open transaction needs. A range is a range of *offsets*: what
becomes of the files meanwhile does not matter, and each record is in exactly one range. End offsets
are fixed here, so what a live log gets later is not in the answer.

`Pruning` is what the option `where` excludes (`scan.pruning`), and what else somebody knows.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pyspark.sql.datasource import InputPartition

from lapse.base.clock import Clock
from lapse.base.errors import ConfigError, CorruptData, MissingData
from lapse.base.ids import TopicPartition
from lapse.log import checkpoints
from lapse.log.folders import list_partitions
from lapse.log.headers import read_at, walk
from lapse.log.missing import Remembered
from lapse.log.reader import aborted_transactions
from lapse.log.replay import LogPart, producers_at_end
from lapse.log.segment import LOG, base_offset_of, file_name
from lapse.log.start import read_start
from lapse.log.txn_index import AbortedTxn
from lapse.records.batch import records_of
from lapse.records.column_filter import Condition
from lapse.spark.scan.bounds import EARLIEST, LATEST, Bounds, require_order_found
from lapse.spark.scan.files import (
    DataLost,
    OpenedSegment,
    offset_index,
    open_segment,
    position_near,
    time_index,
)
from lapse.spark.scan.options import SourceOptions
from lapse.spark.scan.shares import at_least

OFFSET_MAX = (1 << 63) - 1
_SEARCH_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Slice:
    """Offsets of one log, for one task.

    Attributes:
        size: bytes of segments they take, about.
        aborted: transactions whose data a read_committed consumer is not given.
        topic_id: of the topic that is meant; None where it is not known.
    """

    dir: str
    partition: TopicPartition
    offset_from: int
    offset_until: int
    size: int
    aborted: tuple[AbortedTxn, ...] = ()
    topic_id: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class BrokerSlice:
    """The same, read from a broker; `client` has settings of Kafka's clients."""

    bootstrap: str
    client: Mapping[str, str] = field(repr=False)
    partition: TopicPartition
    offset_from: int
    offset_until: int
    topic_id: uuid.UUID | None = None


class Split(InputPartition):
    """What one Spark task reads."""

    def __init__(self, slices: Sequence[Slice | BrokerSlice]) -> None:
        super().__init__(tuple(slices))

    @property
    def slices(self) -> tuple[Slice | BrokerSlice, ...]:
        found: tuple[Slice | BrokerSlice, ...] = self.value
        return found


@dataclass(frozen=True, slots=True)
class Pruning:
    """Which records are wanted: those outside it are not needed.

    Attributes:
        timestamp_from: ms; older records are not needed.
        timestamp_until: ms; records as old or younger are not needed.
        topics, numbers: None for any.
        conditions: records for which one does not hold are not handed out; all else here only
            saves reading.
        offsets: ascending; records with others are not handed out. None: all.
    """

    offset_from: int = 0
    offset_until: int = OFFSET_MAX
    timestamp_from: int | None = None
    timestamp_until: int | None = None
    topics: frozenset[str] | None = None
    numbers: frozenset[int] | None = None
    conditions: tuple[Condition, ...] = ()
    offsets: NDArray[np.int64] | None = field(default=None, compare=False)

    def admits(self, partition: TopicPartition) -> bool:
        """Whether records of a partition can be in the result at all."""
        if self.topics is not None and partition.topic not in self.topics:
            return False
        return self.numbers is None or partition.partition in self.numbers


@dataclass(frozen=True, slots=True)
class Log:
    """A partition directory, and where readers may begin and must end."""

    dir: Path
    partition: TopicPartition
    start_offset: int
    parts: tuple[LogPart, ...]
    topic_id: uuid.UUID | None = None

    @property
    def end_offset(self) -> int:
        return self.parts[-1].end_offset


@dataclass(frozen=True, slots=True)
class Extent:
    """Where the log of a partition begins, and where readers must end.

    Attributes:
        topic_id: id of the log's topic, where a broker reports it, or the log's folder has it.
        log_end_offset: where the log ends, which may be above the last stable offset; None: there.
    """

    start_offset: int
    end_offset: int
    topic_id: uuid.UUID | None = None
    log_end_offset: int | None = None

    @property
    def known_end(self) -> int:
        """Where the log ends, for all that is known: no offset up to there is lost."""
        return self.end_offset if self.log_end_offset is None else self.log_end_offset

    def end_for(self, position: int) -> int:
        """Where a reader that has come to `position` ends; below it only where the log does."""
        is_there = self.end_offset < position <= self.known_end
        return position if is_there else self.end_offset


@dataclass(frozen=True, slots=True)
class Range:
    """The offsets wanted of a log."""

    log: Log
    begin: int
    until: int
    aborted: tuple[AbortedTxn, ...] = ()


def plan(options: SourceOptions, pruning: Pruning, clock: Clock) -> list[Split]:
    """What to read, in tasks of about `partition_bytes_max`, and at least `partitions_min` of them.

    Raises ConfigError where something named is not there, DataLost where offsets are not,
    CorruptData where a log does not say of which topic it is.
    """
    ranges = []
    for partition, (directory, log_start) in sorted(_chosen(options).items()):
        if pruning.admits(partition):
            log = _look(directory, partition, log_start, clock)
            ranges += _range_of(log, options, pruning, clock)
    total = sum(size for wanted in ranges for _, size in _cuts(wanted, OFFSET_MAX))
    bytes_max = min(options.partition_bytes_max, max(1, total // options.partitions_min))
    records_max = options.records_max or OFFSET_MAX
    slices = (s for wanted in ranges for s in _slices(wanted, bytes_max))
    pieces = (piece for s in slices for piece in _pieces(s, records_max))
    packed = list(_packed(pieces, bytes_max, records_max))
    return [Split(task) for task in at_least(packed, options.partitions_min, _part)]


def starts(options: SourceOptions, clock: Clock) -> dict[TopicPartition, int]:
    """Where a stream begins in each selected partition; raises as `plan`."""
    return {
        log.partition: _resolved(log, options.starting, options, _upper(log, options), clock)
        for log in logs(options, clock)
    }


def extents(
    options: SourceOptions, clock: Clock, *, lenient: bool = False
) -> dict[TopicPartition, Extent]:
    """Each selected partition as it is now; `lenient` leaves out what is named and not there."""
    return {
        log.partition: Extent(
            log.start_offset,
            max(log.start_offset, _upper(log, options)),
            log.topic_id,
            log.end_offset,
        )
        for log in logs(options, clock, lenient=lenient)
    }


def logs(options: SourceOptions, clock: Clock, *, lenient: bool = False) -> Iterator[Log]:
    """Each selected log as it is now; raises as `extents`."""
    for partition, (directory, log_start) in sorted(_chosen(options, lenient=lenient).items()):
        try:
            yield _look(directory, partition, log_start, clock)
        except DataLost:
            continue  # deleted since it was listed: a caller that knew it will miss it


# --- which logs -----------------------------------------------------------------------------------


def _chosen(
    options: SourceOptions, *, lenient: bool = False
) -> dict[TopicPartition, tuple[Path, int]]:
    """Directory and log start of each selected partition."""
    there: dict[TopicPartition, tuple[Path, int]] = {}
    for path in options.paths:
        for partition, found in _partitions_in(path):
            twice = there.setdefault(partition, found)
            if twice[0].resolve() != found[0].resolve():
                raise ConfigError(f"option path: {partition} is in {twice[0]} and in {found[0]}")
    where = f"in {', '.join(map(str, options.paths))}"
    chosen = named(options, there, where, lenient=lenient)
    if options.fail_on_data_loss:
        for path in options.paths:
            _require_whole(options, path.absolute(), chosen)
    return {partition: there[partition] for partition in chosen}


def _require_whole(options: SourceOptions, path: Path, chosen: Collection[TopicPartition]) -> None:
    """Raise DataLost where a log lacks what its directory remembers; a broker does not serve it."""
    itself = TopicPartition.parse(path.name)
    is_one = itself is not None and has_segments(path)
    remembered = Remembered.of(path.parent if is_one else path)
    try:
        wanted = {itself} if is_one else set(chosen)
        if not is_one:
            gone = remembered.missing_partitions()
            wanted |= _named(options, gone) & set(gone)
        for partition in sorted(p for p in wanted if p is not None):
            remembered.require_whole(partition)
    except MissingData as e:
        raise DataLost(f"{e}; failOnDataLoss=false reads what is there") from e


def _partitions_in(path: Path) -> Iterator[tuple[TopicPartition, tuple[Path, int]]]:
    """Of a log directory, or of one that is a partition's itself."""
    path = path.absolute()
    itself = TopicPartition.parse(path.name)
    if itself is not None and has_segments(path):
        yield itself, (path, _log_start(path, _log_starts(path.parent).get(itself, 0)))
        return
    starts = _log_starts(path)
    for partition in list_partitions(path):
        directory = path / str(partition)
        yield partition, (directory, _log_start(directory, starts.get(partition, 0)))


def _log_start(directory: Path, checkpointed: int) -> int:
    """What was deleted is not read: a log keeps its start itself before the checkpoint has it."""
    return max(checkpointed, read_start(directory).offset)


def has_segments(path: Path) -> bool:
    """Whether a directory is a partition's itself."""
    try:
        names = os.listdir(path)
    except OSError:
        return False  # said when it is listed as a log directory
    return any(name.endswith(LOG) and base_offset_of(name) is not None for name in names)


def _log_starts(log_dir: Path) -> dict[TopicPartition, int]:
    return checkpoints.read_offsets(log_dir / checkpoints.LOG_START)


def named(
    options: SourceOptions,
    there: Collection[TopicPartition],
    where: str,
    *,
    lenient: bool = False,
) -> set[TopicPartition]:
    """Which of the partitions that exist are selected.

    Raises ConfigError where one is named that is not there, unless that is no error (`lenient`).
    """
    chosen = _named(options, there)
    if lenient:
        return chosen & set(there)
    missing = set(options.topics or ()) - {partition.topic for partition in there}
    if missing:
        raise ConfigError(f"there is no topic {', '.join(sorted(missing))} {where}")
    topics = {partition.topic for partition in there}
    unnamed = {name for one in (options.starting, options.ending) for name in one.topics} - topics
    unknown = sorted(str(p) for p in _mentioned(options) - set(there)) + sorted(unnamed)
    if unknown:
        raise ConfigError(f"there is no {', '.join(unknown)} {where}")
    return chosen


def _named(options: SourceOptions, there: Collection[TopicPartition]) -> set[TopicPartition]:
    if options.partitions is not None:
        return set(options.partitions)
    if options.topics is not None:
        return {partition for partition in there if partition.topic in options.topics}
    pattern = re.compile(options.pattern or ".*")
    return {
        partition
        for partition in there
        if pattern.fullmatch(partition.topic) and not partition.topic.startswith("__")
    }


def _mentioned(options: SourceOptions) -> set[TopicPartition]:
    """Partitions that options name; a misspelt one must not be taken for an empty one."""
    bounds = options.starting, options.ending
    in_bounds = {p for one in bounds for p in (*one.offsets, *one.times)}
    return {*(options.partitions or ()), *in_bounds}


def offset_in(
    partition: TopicPartition, extent: Extent, bounds: Bounds, options: SourceOptions, latest: int
) -> int:
    """A partition's offset where it is not given by time; raises DataLost where it is not there."""
    offset = bounds.offset_of(partition)
    start, end = extent.start_offset, extent.end_offset
    if offset == EARLIEST:
        return start
    if offset == LATEST:
        return latest
    if not start <= offset <= end and options.fail_on_data_loss:
        raise DataLost(
            f"{partition}: offset {offset} is not in [{start}, {end}]; "
            "failOnDataLoss=false reads what is there"
        )
    return min(max(offset, start), end)


# --- one log --------------------------------------------------------------------------------------


def _look(directory: Path, partition: TopicPartition, log_start: int, clock: Clock) -> Log:
    """The same with its topic's id. Raises CorruptData where that does not parse."""
    topic_id = checkpoints.read_topic_id(directory)  # first: one made anew meanwhile has another
    return replace(look(directory, partition, log_start, clock), topic_id=topic_id)


def look(directory: Path, partition: TopicPartition, log_start: int, clock: Clock) -> Log:
    """A log as it is now; a torn end of the last segment is where it ends."""
    with contextlib.closing(open_segment(directory, OFFSET_MAX, clock)) as last:
        bases = [*last.bases_before, last.base_offset]
        end = _end_of(last)
    parts = [
        LogPart(base, next_base, _size(directory, base)) for base, next_base in pairwise(bases)
    ]
    return Log(directory, partition, max(log_start, bases[0]), (*parts, end))


def _end_of(last: OpenedSegment) -> LogPart:
    size = os.fstat(last.fileno()).st_size
    end_offset, position = last.base_offset, position_near(last, OFFSET_MAX)
    with contextlib.suppress(CorruptData):  # being written, or cut off by a crash
        for rows in walk(last.fileno(), position, size, str(last.path), check_crc=True):
            end_offset = int(rows["last_offset"][-1]) + 1
            position = int(rows["position"][-1] + rows["size"][-1])
    return LogPart(last.base_offset, end_offset, position)


def _size(directory: Path, base_offset: int) -> int:
    try:  # of each segment at each look: pathlib would take four times as long
        return os.stat(f"{directory}/{file_name(base_offset, LOG)}").st_size
    except FileNotFoundError:
        return 0  # merged into a neighbour or deleted since it was listed; only an estimate anyway


def _upper(log: Log, options: SourceOptions) -> int:
    """Where readers must end: the last stable offset for those of committed records."""
    if not options.committed:
        return log.end_offset
    first_unstable = producers_at_end(log.dir, list(log.parts)).first_unstable_offset
    return log.end_offset if first_unstable is None else min(log.end_offset, first_unstable)


def _range_of(log: Log, options: SourceOptions, pruning: Pruning, clock: Clock) -> list[Range]:
    """One, or none where nothing is wanted of the log."""
    upper = _upper(log, options)
    begin = _resolved(log, options.starting, options, upper, clock)
    until = _resolved(log, options.ending, options, upper, clock)
    bounds = options.starting, options.ending
    require_order_found(log.partition, bounds, begin, until)
    begin, until = max(begin, pruning.offset_from), min(until, upper, pruning.offset_until)
    if pruning.timestamp_from is not None and begin < until:
        found = offset_for_time(log, pruning.timestamp_from, begin, clock)
        begin = until if found is None else found
    if begin >= until:
        return []
    if not options.committed:
        return [Range(log, begin, until)]
    # Now, not when it is read: a round may remove aborted data and its index entry in between, and
    # a reader that had opened the old segment before would treat that data as committed.
    return [Range(log, begin, until, tuple(aborted_transactions(log.dir, begin, until, clock)))]


def _slices(wanted: Range, bytes_max: int) -> Iterator[Slice]:
    for (first, size), (last, _) in pairwise(_cuts(wanted, bytes_max)):
        mine = tuple(t for t in wanted.aborted if t.first_offset < last and t.last_offset >= first)
        log = wanted.log
        yield Slice(str(log.dir), log.partition, first, last, size, mine, log.topic_id)


def _resolved(log: Log, bounds: Bounds, options: SourceOptions, upper: int, clock: Clock) -> int:
    """An offset that the log has, or its end; only the latest one is never above `upper`."""
    time_ms = bounds.time_of(log.partition)
    if time_ms is not None:
        found = offset_for_time(log, time_ms, log.start_offset, clock)
        return bounds.or_end(found, log.partition, upper)
    extent = Extent(log.start_offset, log.end_offset)
    return offset_in(log.partition, extent, bounds, options, upper)


def _cuts(wanted: Range, bytes_max: int) -> list[tuple[int, int]]:
    """(offset, bytes from there to the next cut), ending with (until, 0).

    Between segments, and within one where its index knows a batch's end: the batch that an entry
    names ends with the entry's offset.
    """
    log, begin, until = wanted.log, wanted.begin, wanted.until
    cuts: list[tuple[int, int]] = []
    first = max(bisect_right(log.parts, begin, key=lambda part: part.base_offset) - 1, 0)
    for part in log.parts[first:]:
        if part.base_offset >= until:
            break
        places = [*_places(log.dir, part, bytes_max), (part.end_offset, part.size)]
        for (offset, position), (after, next_position) in pairwise(places):
            if after > begin and offset < until:
                cuts.append((max(offset, begin), max(next_position - position, 0)))
    return [*cuts, (until, 0)] if cuts else []


def _places(directory: Path, part: LogPart, bytes_max: int) -> list[tuple[int, int]]:
    """Where a segment may be cut, so that no piece is shorter: (offset, byte position).

    An index has an entry for every few KiB, and few of them are asked.
    """
    places = [(part.base_offset, 0)]
    if part.size <= bytes_max:
        return places
    index = offset_index(directory, part.base_offset)
    while True:
        n = int(np.searchsorted(index.values, places[-1][1] + bytes_max))
        if n == len(index.keys):
            return places
        offset, position = int(index.keys[n]) + 1, int(index.values[n])
        if position >= part.size or offset >= part.end_offset:
            return places
        places.append((offset, position))


def _pieces(whole: Slice, records_max: int) -> Iterator[Slice]:
    """Cut anywhere, so that none has more offsets: a batch may be read for two of them."""
    first, count = whole.offset_from, whole.offset_until - whole.offset_from
    n = -(-count // records_max)
    for k in range(n):
        bounds = first + count * k // n, first + count * (k + 1) // n
        yield _part(whole, *bounds)


def _part(whole: Slice, begin: int, until: int) -> Slice:
    count = whole.offset_until - whole.offset_from
    size = -(-whole.size * (until - begin) // count)
    return replace(whole, offset_from=begin, offset_until=until, size=size)


def _packed(slices: Iterable[Slice], bytes_max: int, records_max: int) -> Iterator[list[Slice]]:
    """Neighbours together while they are small: a task for each small log would cost its time."""
    held: list[Slice] = []
    size = records = 0
    for one in slices:
        more = one.offset_until - one.offset_from
        if held and (size + one.size > bytes_max or records + more > records_max):
            yield held
            held, size, records = [], 0, 0
        records += more
        if held and held[-1].partition == one.partition:
            before = held.pop()
            aborted = tuple(dict.fromkeys((*before.aborted, *one.aborted)))
            one = replace(  # noqa: PLW2901
                one, offset_from=before.offset_from, size=before.size + one.size, aborted=aborted
            )
            size -= before.size
        held.append(one)
        size += one.size
    if held:
        yield held


# --- by time --------------------------------------------------------------------------------------


def offset_for_time(log: Log, timestamp: int, start_offset: int, clock: Clock) -> int | None:
    """The first record at or after a time from `start_offset` on (T-16, L8)."""
    offset = start_offset
    while offset < log.end_offset:
        with contextlib.closing(open_segment(log.dir, offset, clock)) as segment:
            if _may_hold(log.dir, segment, timestamp):
                found = _first_at(log, segment, timestamp, offset)
                if found is not None:
                    return found
        if segment.next_base is None:
            break
        offset = max(offset, segment.next_base)
    return None


def _may_hold(directory: Path, segment: OpenedSegment, timestamp: int) -> bool:
    """Sealing a segment notes its greatest timestamp (T-14); without an entry, who knows."""
    times = time_index(directory, segment.base_offset).keys
    return segment.next_base is None or not len(times) or int(times[-1]) >= timestamp


def _first_at(log: Log, segment: OpenedSegment, timestamp: int, start_offset: int) -> int | None:
    near = time_index(log.dir, segment.base_offset).before(timestamp - 1)
    from_offset = max(start_offset, near or 0)
    fd, where = segment.fileno(), str(segment.path)
    size = os.fstat(fd).st_size
    if segment.next_base is None:
        size = min(size, log.parts[-1].size)
    position = position_near(segment, from_offset)
    for rows in walk(fd, min(position, size), size, where, block_bytes=_SEARCH_BLOCK_BYTES):
        for row in rows[rows["max_timestamp"] >= timestamp]:
            data = read_at(fd, int(row["position"]), int(row["size"]))
            here = row.copy()
            here["position"] = 0
            for record in records_of(data, here, where):
                if record.timestamp >= timestamp and record.offset >= start_offset:
                    return record.offset
    return None
