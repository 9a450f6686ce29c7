"""What a task of the data source does: the batches of a range of offsets, block by block, to Arrow.

Reads with `pread`, never through a map: a file that shrinks under a map kills the process. Each
segment is looked up by offset when its turn comes, so that a round that replaces segments between
planning and reading, or while this reads, changes nothing: what is open stays readable, and what
comes next is looked up again.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.datasource import InputPartition

from lapse.base.clock import Clock, SystemClock
from lapse.base.errors import CorruptData
from lapse.client.range_reader import DEFAULTS, FetchLimits
from lapse.kernels.layout import CONTROL, LENGTH, LOG_APPEND_TIME, LOG_OVERHEAD
from lapse.log.checkpoints import read_topic_id
from lapse.log.headers import read_at
from lapse.log.txn_index import committed
from lapse.records import columns
from lapse.records.append_times import AppendTimes
from lapse.records.batch import scan_prefix
from lapse.records.columns import ArrowColumns, ColumnSpec
from lapse.spark.scan import broker
from lapse.spark.scan.files import DataLost, OpenedSegment, open_segment, position_near
from lapse.spark.scan.options import SourceOptions
from lapse.spark.scan.plan import BrokerSlice, Pruning, Slice, Split

BLOCK_BYTES = 16 << 20
_CUT_OFF = "batch cut off"


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """How slices are read; the same for all tasks.

    Attributes:
        wanted: which records; batches that hold none of them may be left out.
        api_timeout_ms: how long a broker that does not answer is tried.
    """

    columns: tuple[str, ...]
    control: bool
    committed: bool
    fail_on_data_loss: bool
    valued_tombstones: bool
    wanted: Pruning = field(default_factory=Pruning)
    block_bytes: int = BLOCK_BYTES
    api_timeout_ms: int = DEFAULTS.api_timeout_ms


def read_split(
    options: SourceOptions, partition: InputPartition, wanted: Pruning | None = None
) -> Iterator[pa.RecordBatch]:
    """What a Spark task reads: the records of its slices; raises as `read_slice`."""
    _load_kernels()
    clock = SystemClock()
    spec = ReadSpec(
        options.columns,
        options.control,
        options.committed,
        options.fail_on_data_loss,
        options.valued_tombstones,
        wanted or Pruning(),
        api_timeout_ms=options.api_timeout_ms,
    )
    assert isinstance(partition, Split)
    for one in partition.slices:
        if isinstance(one, BrokerSlice):
            yield from read_broker_slice(one, spec)
        else:
            yield from read_slice(one, spec, clock)


# Once a worker; the first on a machine compiles them, the others wait for it.
_load_kernels = functools.cache(columns.warm_up)


def read_slice(part: Slice, spec: ReadSpec, clock: Clock) -> Iterator[pa.RecordBatch]:
    """The records of a slice.

    Raises CorruptData with file and position; DataLost where offsets of the slice are gone, unless
    that is allowed.
    """
    try:
        yield from _SliceReader(part, spec, clock).run()
    except DataLost:
        if spec.fail_on_data_loss:
            raise


def read_broker_slice(part: BrokerSlice, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
    """The same, over our client; tombstones that carry a value come as they are.

    Where offsets of the slice are gone, what is left of it is read, if that is allowed.
    """
    left: BrokerSlice | None = part
    while left is not None:
        try:
            yield from _read_broker_slice(left, spec)
        except DataLost as e:
            if spec.fail_on_data_loss:
                raise
            begin = part.offset_until if e.goes_on_at is None else e.goes_on_at
            left = replace(part, offset_from=begin) if begin < part.offset_until else None
        else:
            left = None


def _read_broker_slice(part: BrokerSlice, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
    arrow = _columns(part, spec)
    limits = FetchLimits(api_timeout_ms=spec.api_timeout_ms)
    for one in broker.read_slice(part, committed=spec.committed, limits=limits):
        rows = one.rows
        wanted = one.counts
        if spec.control:
            wanted = wanted | (rows["magic"] == 2) & (rows["attributes"] & CONTROL != 0)
        kept, times = one.create_times_kept, one.append_times
        _tell(arrow, create_times_kept=kept, append_times=times)
        yield from arrow.convert(one.data, rows[wanted], str(part.partition))


def _columns(part: Slice | BrokerSlice, spec: ReadSpec) -> ArrowColumns:
    """For all of a slice; `_tell` says what differs from place to place."""
    return ArrowColumns(
        part.partition,
        ColumnSpec(
            spec.columns,
            offset_from=part.offset_from,
            offset_until=part.offset_until,
            control=spec.control,
            valued_tombstones=spec.valued_tombstones,
            conditions=spec.wanted.conditions,
            offsets=spec.wanted.offsets,
        ),
    )


def _tell(arrow: ArrowColumns, *, create_times_kept: bool, append_times: AppendTimes) -> None:
    """What is known beside the batches that are next."""
    arrow.spec = replace(arrow.spec, create_times_kept=create_times_kept, append_times=append_times)


class _SliceReader:
    """One pass over one slice; `offset` is the next one wanted."""

    def __init__(self, part: Slice, spec: ReadSpec, clock: Clock) -> None:
        self._slice, self._spec, self._clock = part, spec, clock
        self._dir = Path(part.dir)
        self._offset = part.offset_from
        self._columns = _columns(part, spec)

    def run(self) -> Iterator[pa.RecordBatch]:
        until = self._slice.offset_until
        while self._offset < until:
            with closing(open_segment(self._dir, self._offset, self._clock)) as segment:
                if self._is_anew():
                    what = f"offsets from {self._offset} to {until - 1}"
                    self._lost(f"{what} are gone: they were of another topic of this name")
                    return
                self._check_start(segment)
                yield from self._segment(segment)
            if self._offset < until:
                if segment.next_base is None:
                    self._lost(f"offsets from {self._offset} to {until - 1} are not there any more")
                    return
                self._offset = max(self._offset, segment.next_base)

    def _is_anew(self) -> bool:
        """Whether the folder is not the planned topic's any more, with a segment of it open."""
        wanted = self._slice.topic_id
        return wanted is not None and read_topic_id(self._dir) not in {wanted, None}

    def _check_start(self, segment: OpenedSegment) -> None:
        first = segment.base_offset
        if self._offset < first:
            self._lost(f"offsets from {self._offset} to {first - 1} were deleted meanwhile")
            self._offset = first

    def _lost(self, what: str) -> None:
        if self._spec.fail_on_data_loss:
            raise DataLost(
                f"{self._slice.partition}: {what}; failOnDataLoss=false reads what is there"
            )

    def _segment(self, segment: OpenedSegment) -> Iterator[pa.RecordBatch]:
        """From the batch that the index has before the offset wanted to the slice's or the end."""
        fd, where = segment.fileno(), str(segment.path)
        kept, times = segment.create_times_kept(), segment.append_times()
        _tell(self._columns, create_times_kept=kept, append_times=times)
        position, size = position_near(segment, self._offset), os.fstat(fd).st_size
        # What was handed out from an earlier segment may lie in its replacement too, before what is
        # wanted of it.
        resumed_at = self._offset if self._offset > self._slice.offset_from else 0
        n_bytes, before = self._spec.block_bytes, -1
        while position < size and self._offset < self._slice.offset_until:
            data = read_at(fd, position, n_bytes)
            if not data:
                return  # cut off after it was opened
            rows, covered, wrong = scan_prefix(data)
            if len(rows):
                _check_order(rows, before, where, position)
                before = int(rows["last_offset"][-1])
                self._offset = max(self._offset, before + 1)
                fresh = rows[rows["last_offset"] >= resumed_at]
                yield from self._converted(data, fresh, where, position)
            at_end = position + len(data) >= size
            if self._offset < self._slice.offset_until and (
                wrong is not None and (wrong != _CUT_OFF or at_end)
            ):
                raise CorruptData(where, position + covered, wrong)
            # A batch larger than a block: the next block is as large as it says.
            n_bytes = self._spec.block_bytes if covered else max(2 * n_bytes, _declared_size(data))
            position += covered

    def _converted(
        self, data: bytes, rows: NDArray[np.void], where: str, position: int
    ) -> Iterator[pa.RecordBatch]:
        spec = self._spec
        if spec.committed:
            handed_out = committed(rows, self._slice.aborted)
            if spec.control:
                handed_out |= (rows["magic"] == 2) & (rows["attributes"] & CONTROL != 0)
            rows = rows[handed_out]
        rows = _in_time(rows, spec.wanted)
        try:
            yield from self._columns.convert(data, rows, where)
        except CorruptData as e:
            raise CorruptData(where, position + e.position, e.reason) from e


def _in_time(rows: NDArray[np.void], wanted: Pruning) -> NDArray[np.void]:
    """Batches that may hold records of the times wanted.

    The least time of a batch is known where all its records have that of the append.
    """
    if wanted.timestamp_from is not None:
        rows = rows[rows["max_timestamp"] >= wanted.timestamp_from]
    if wanted.timestamp_until is not None:
        one_time = (rows["attributes"] & LOG_APPEND_TIME != 0) & (rows["magic"] > 0)
        rows = rows[~one_time | (rows["max_timestamp"] < wanted.timestamp_until)]
    return rows


def _check_order(rows: NDArray[np.void], before: int, where: str, position: int) -> None:
    """Offsets that go back, or batches that overlap: a reader would give records twice."""
    ends = rows["last_offset"]
    begins = np.where(rows["magic"] == 2, rows["base_offset"], ends)
    wrong = np.flatnonzero(begins <= np.concatenate([[before], ends[:-1]]))
    if len(wrong):
        n = int(wrong[0])
        at = position + int(rows["position"][n])
        raise CorruptData(where, at, f"offset {int(begins[n])} does not ascend")


def _declared_size(data: bytes) -> int:
    return LOG_OVERHEAD + int.from_bytes(data[LENGTH : LENGTH + 4], "big", signed=True)
