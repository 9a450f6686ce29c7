"""The columns that exist, and the ways to select them; their meaning: `records.columns`."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lapse.base.errors import ConfigError
from lapse.records.append_times import NOTHING, AppendTimes
from lapse.records.column_filter import Condition

TIME = pa.timestamp("us", tz="UTC")
TIME_MS_MAX = ((1 << 63) - 1) // 1000  # what fits into it; farther ones read as this
HEADERS = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIME,
    "timestampType": pa.int32(),
    "headers": HEADERS,
    "create_time": TIME,
    "append_time": TIME,
    "is_tombstone": pa.bool_(),
    "horizon": TIME,
    "producer_id": pa.int64(),
    "control": pa.bool_(),
    "create_time_ms": pa.int64(),
}
# Who names no columns gets these; what only a copy needs is for who asks for it.
WITH_HEADERS = tuple(name for name in TYPES if name != "create_time_ms")
WITHOUT_HEADERS = tuple(name for name in WITH_HEADERS if name != "headers")

RECORDS_MAX = 1 << 15
BYTES_MAX = 64 << 20
OFFSET_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """The columns and records requested.

    Attributes:
        names: columns, in the order wanted.
        offset_from, offset_until: records outside are left out.
        control: hand out control records too.
        valued_tombstones: `is_tombstone` is what a record says (KIP-87); False: null alone.
        create_times_kept: no cleaner has overwritten the times in these v2 batches (L15).
        append_times: of what batches do not say themselves.
        views: do not copy keys and values that lie in the buffer.
        conditions: records for which one does not hold are left out; of any columns.
        offsets: ascending; records with others are left out. None: all.
    """

    names: tuple[str, ...] = WITHOUT_HEADERS
    offset_from: int = 0
    offset_until: int = OFFSET_MAX
    control: bool = False
    valued_tombstones: bool = True
    create_times_kept: bool = False
    append_times: AppendTimes = NOTHING
    views: bool = False
    conditions: tuple[Condition, ...] = ()
    offsets: NDArray[np.int64] | None = field(default=None, compare=False)
    records_max: int = RECORDS_MAX
    bytes_max: int = BYTES_MAX


def schema_of(spec: ColumnSpec) -> pa.Schema:
    """The Arrow schema of a spec; raises ConfigError on an unknown column."""
    for name in spec.names:
        if name not in TYPES:
            raise ConfigError(f"no column {name!r}: there are {', '.join(TYPES)}")
    viewed = {"key", "value"} if spec.views else set()
    return pa.schema(
        [pa.field(n, pa.binary_view() if n in viewed else TYPES[n]) for n in spec.names]
    )
