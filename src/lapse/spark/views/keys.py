"""The view of keys: the last record of each key of a log, and how many it has.

A unit is a log, or several small ones, and a range of hashes of each. Its segments are read in
order, as the data source reads records, into a table of bounded memory (`key_table`); what does not
fit is left for another pass over the log. So memory never depends on how many keys there are, only
the number of passes does. Where sketches of the keys are kept with the summaries, a log with many
keys becomes several ranges.

Which records count is fixed when the question is planned: from the log start to the log end of that
moment. Records without key and control records have no row; without `committed` an aborted or open
transaction counts like any other record, as for a consumer that reads uncommitted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lapse.base.clock import Clock
from lapse.base.ids import TopicPartition
from lapse.kernels.jit import first_compile
from lapse.kernels.key_table import PARTS
from lapse.lifecycle.outlook.rows import kept_sketch
from lapse.log import checkpoints
from lapse.log.reader import aborted_transactions
from lapse.log.replay import producers_at_end
from lapse.log.sketch import estimate
from lapse.log.start import read_start
from lapse.log.txn_index import AbortedTxn
from lapse.records.batch import scan_batches
from lapse.records.builder import NewRecord, build_batch
from lapse.records.columns import ColumnSpec, record_batches
from lapse.spark.scan.plan import Log, Slice, look
from lapse.spark.scan.read import ReadSpec, read_slice
from lapse.spark.views.key_table import KEY_BYTES, NO_TIME, KeyTable
from lapse.spark.views.logs import logs_of, of_log, partitions_of, unless_gone
from lapse.spark.views.plan import policies_of
from lapse.spark.views.schema import SCHEMAS
from lapse.spark.views.spec import KEYS, KeyRange, ViewOptions, ViewUnit

COLUMNS = ("key", "value", "offset", "timestamp", "create_time", "is_tombstone")
_OWN_BYTES = 32  # of a key itself, about, where many units are planned
_UNIT_BYTES_MAX = 128 << 20
_SLACK = 2  # a table grows by doubling
_NO_TIMESTAMP_MICROS = -1000


def key_units(options: ViewOptions, clock: Clock) -> list[ViewUnit]:
    """Units of all logs, small ones together; a log that is empty is in none."""
    units: list[ViewUnit] = []
    for log_dir, partitions in logs_of(options):
        starts = checkpoints.read_offsets(log_dir / checkpoints.LOG_START)
        policies = policies_of(log_dir, options)
        wanted: list[_Wanted] = []
        for partition in partitions:
            valued = policies.flags_count(partition)
            start = starts.get(partition, 0)
            for one in _wanted_of(log_dir, partition, start, options, clock):
                keys = replace(one.keys, valued_tombstones=valued)
                wanted.append(replace(one, keys=keys))
        units += _packed(wanted, log_dir, options)
    return units


def key_batches(unit: ViewUnit, clock: Clock) -> Iterator[pa.RecordBatch]:
    """The keys of a unit.

    Raises CorruptData with file and position, DataLost where records vanish meanwhile unless that
    is allowed; keys whose pass was done have been handed out by then.
    """
    for partition, keys in zip(partitions_of(unit), unit.keys, strict=True):
        begin, width = keys.part_from, keys.part_until - keys.part_from
        while begin < keys.part_until:
            table = KeyTable(
                begin, min(begin + width, keys.part_until), (keys.seed0, keys.seed1),
                unit.options.memory_bytes,
            )  # fmt: skip
            tried = table.part_until
            _fill(table, unit, partition, keys, clock)
            yield from _tables(table, unit, partition)
            # What fitted is what is tried next; where it fitted well, twice that.
            width = (table.part_until - begin) * (2 if table.part_until == tried else 1)
            begin = table.part_until


def warm_up() -> None:
    """Compile or load the kernels, once on this machine under a lock."""
    data = build_batch([NewRecord(b"k", b"v")])
    spec, partition = ColumnSpec(COLUMNS), TopicPartition("warm-up", 0)
    table = KeyTable(0, PARTS, (0, 0), 0)
    with first_compile("key-table"):
        for records in record_batches(data, scan_batches(data, ""), partition, "", spec):
            table.note(records)
            table.find(records)
        table.narrow()
        for _ in table.rows():
            pass


# --- planning -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Some keys of a log, and the bytes of the segments they are read from."""

    name: str
    size: int
    keys: KeyRange


def _wanted_of(
    log_dir: Path, partition: TopicPartition, log_start: int, options: ViewOptions, clock: Clock
) -> Iterator[_Wanted]:
    """The records of a log that count, in as many ranges of hashes as its keys need."""
    partition_dir = log_dir / str(partition)
    log = unless_gone(partition_dir, lambda: look(partition_dir, partition, log_start, clock))
    if log is None:
        return
    begin, until = max(log.start_offset, read_start(partition_dir).offset), log.end_offset
    aborted: tuple[AbortedTxn, ...] = ()
    if options.committed:
        first_open = producers_at_end(log.dir, list(log.parts)).first_unstable_offset
        until = until if first_open is None else min(until, first_open)
        aborted = tuple(aborted_transactions(log.dir, begin, until, clock))
    if begin >= until:
        return
    seed0, seed1 = np.frombuffer(os.urandom(16), np.int64).tolist()
    bytes_wanted = _keys_in(log) * (KEY_BYTES + _OWN_BYTES) * _SLACK
    ranges = max(-(-bytes_wanted // options.memory_bytes), 1)
    size = sum(part.size for part in log.parts)
    for part_from, part_until in pairwise(PARTS * n // ranges for n in range(ranges + 1)):
        keys = KeyRange(begin, until, part_from, part_until, seed0, seed1, aborted=aborted)
        yield _Wanted(str(partition), size, keys)


def _packed(wanted: Iterable[_Wanted], log_dir: Path, options: ViewOptions) -> Iterator[ViewUnit]:
    """Neighbours together while they are small: a task for each small log would cost its time."""
    held: list[_Wanted] = []
    size = 0

    def unit() -> ViewUnit:
        names = tuple(one.name for one in held)
        return ViewUnit(options, str(log_dir), names, tuple(one.keys for one in held))

    for one in wanted:
        full = len(held) == options.logs_per_unit or size + one.size > _UNIT_BYTES_MAX
        if held and full:
            yield unit()
            held, size = [], 0
        held.append(one)
        size += one.size
    if held:
        yield unit()


def _keys_in(log: Log) -> int:
    """Distinct keys by the sketches that are kept with summaries; some are better than none."""
    found = (kept_sketch(log.dir, part.base_offset, part.size) for part in log.parts)
    sketches = [sketch for sketch in found if sketch is not None]
    return estimate(sketches) if sketches else 0


# --- reading --------------------------------------------------------------------------------------


def _fill(
    table: KeyTable, unit: ViewUnit, partition: TopicPartition, keys: KeyRange, clock: Clock
) -> None:
    """One pass over the log."""
    options = unit.options
    part = Slice(
        str(Path(unit.log_dir) / str(partition)), partition, keys.offset_from, keys.offset_until, 0,
        keys.aborted,
    )  # fmt: skip
    spec = ReadSpec(
        COLUMNS,
        control=False,
        committed=options.committed,
        fail_on_data_loss=options.fail_on_data_loss,
        valued_tombstones=keys.valued_tombstones,
    )
    for records in read_slice(part, spec, clock):
        table.note(records)


def _tables(table: KeyTable, unit: ViewUnit, partition: TopicPartition) -> Iterator[pa.RecordBatch]:
    schema = SCHEMAS[KEYS]
    constants = of_log(unit, partition)
    for keys, entries in table.rows():
        count = len(entries)
        columns: dict[str, Any] = {
            name: pa.repeat(pa.scalar(value, schema.field(name).type), count)
            for name, value in constants.items()
        }
        value_bytes = entries["value_length"].astype(np.int64)
        timestamps, create_times = entries["timestamp"], entries["create_time"]
        columns |= {
            "key": keys,
            "offset": entries["offset"],
            "timestamp": _times(timestamps, timestamps == _NO_TIMESTAMP_MICROS),
            "create_time": _times(create_times, create_times == NO_TIME),
            "value_bytes": pa.array(value_bytes, mask=value_bytes < 0),
            "is_tombstone": entries["tombstone"] != 0,
            "records": entries["records"],
            "record_bytes": entries["bytes"],
        }
        arrays = [
            column if isinstance(column, pa.Array) else pa.array(np.ascontiguousarray(column))
            for column in (columns[name] for name in schema.names)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _times(micros: NDArray[np.int64], missing: NDArray[np.bool_]) -> pa.Array:
    found = pa.array(np.ascontiguousarray(micros), mask=np.ascontiguousarray(missing))
    return found.cast(SCHEMAS[KEYS].field("timestamp").type)
