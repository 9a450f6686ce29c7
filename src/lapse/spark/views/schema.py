"""The columns of each view: Arrow types, and what they mean (docs/data-source.md says the same).

What each field means is in its Arrow metadata too, under `comment`. Every view begins with the same
columns. Null is what is not known or does not apply; times are microseconds, UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import pyarrow as pa

from lapse.lifecycle.outlook.rows import Row
from lapse.records.column_spec import TIME
from lapse.spark.views.spec import KEYS, LEDGER, PLAN, SEGMENTS

RANGES = pa.list_(
    pa.field("element", pa.struct([pa.field("first", pa.int64()), pa.field("last", pa.int64())]))
)
_TEXT, _COUNT, _FLAG = pa.string(), pa.int64(), pa.bool_()
_ROWS_MAX = 4096

_Columns = Mapping[str, tuple[pa.DataType, str]]

_LOG: _Columns = {
    "log_dir": (_TEXT, "the log directory; a partition with replicas in several has rows of each"),
    "topic": (_TEXT, "the topic"),
    "partition": (pa.int32(), "its partition"),
    "as_of": (TIME, "the moment that the view describes, the same in all rows"),
    "broker": (pa.int32(), "the broker that says it; null where a directory was looked at"),
}

_SEGMENTS: _Columns = {
    "base_offset": (_COUNT, "the offset its files are named by"),
    "end_offset": (_COUNT, "one past its last offset"),
    "sealed": (_FLAG, "whether another segment follows; the last one is the active one"),
    "bytes": (_COUNT, "of the log file"),
    "index_bytes": (_COUNT, "of entries in both indexes"),
    "batches": (_COUNT, "batches; messages and wrappers of old formats count one each"),
    "records": (_COUNT, "records, by the batches' headers"),
    "tombstones": (_COUNT, "records with a null value; null where the batches were not read"),
    "markers": (_COUNT, "markers that end a transaction"),
    "transactional": (_COUNT, "data batches of transactions"),
    "old_format": (_COUNT, "batches of format v0 or v1"),
    "min_timestamp": (TIME, "the least of its batches' greatest timestamps"),
    "max_timestamp": (TIME, "its greatest timestamp"),
    "first_append": (TIME, "when its first batch was appended, by the append clock"),
    "last_append": (TIME, "when its last one was"),
    "append_estimated": (_FLAG, "the two are guessed from the file's and the records' times"),
    "horizon_earliest": (TIME, "the first delete horizon to pass (KIP-534)"),
    "horizon_bytes": (_COUNT, "of batches with a horizon: what their passing frees, at most"),
    "unreadable_from": (_COUNT, "the first offset that could not be read"),
    "estimated": (_FLAG, "the segment was not read: counts are null, the end offset is a bound"),
}

_PLAN: _Columns = {
    "policy": (_TEXT, "cleanup.policy; null where it is unknown"),
    "due": (_FLAG, "whether it gets a round now"),
    "reasons": (pa.list_(pa.field("element", _TEXT)), "what the round is for, empty if none is"),
    "kind": (_TEXT, "of the round: clean or trim"),
    "due_since": (
        TIME,
        "when it became due; null where the dirty ratio decides, which knows no time",
    ),
    "rule": (_TEXT, "the rule that binds, a word of `lapse explain`; unreadable after an error"),
    "explanation": (_TEXT, "the same as a sentence"),
    "until": (TIME, "when what holds it back ends by itself"),
    "deadline": (TIME, "by when the first of the topic's promises wants something gone"),
    "deadline_for": (_TEXT, "what that is: superseded, tombstone, marker or deleted"),
    "missed_by_ms": (_COUNT, "by how much the deadline is missed; 0 on time, null without one"),
    "next_look": (TIME, "when another decision may come out at the earliest"),
    "dirty_ratio": (pa.float64(), "dirty bytes of those that count"),
    "first_dirty": (_COUNT, "the first offset not cleaned yet"),
    "first_uncleanable": (_COUNT, "where a round must end"),
    "dirty_bytes": (_COUNT, "bytes not cleaned yet that a round may map"),
    "bytes": (_COUNT, "of all segments"),
    "bytes_to_read": (_COUNT, "of segments a due round maps; it rewrites at most as many"),
    "bytes_to_free": (_COUNT, "what a due round frees, estimated; null where keys are not known"),
}

_LEDGER: _Columns = {
    "round_id": (_TEXT, "the round"),
    "segment": (_COUNT, "base offset of the old segment; null where nothing was removed"),
    "reason": (_TEXT, "why; null where nothing was removed"),
    "records": (_COUNT, "how many records left the segment for this reason"),
    "first_offset": (_COUNT, "the first of them"),
    "last_offset": (_COUNT, "the last of them"),
    "ranges": (RANGES, "all of them, first to last; null where there are more than 1,000 ranges"),
    "judged": (TIME, "the round's clock"),
    "committed": (TIME, "when the new segment was in place and durable"),
    "group_base": (_COUNT, "base offset of the new segment"),
    "stamped": (_COUNT, "batches that got a horizon; on the first row of a group, else null"),
    "horizon": (TIME, "that horizon"),
    "bytes_before": (_COUNT, "of the group's segments; on the first row of a group, else null"),
    "bytes_after": (_COUNT, "likewise, of the new one"),
}

_KEYS: _Columns = {
    "key": (pa.binary(), "the key"),
    "offset": (_COUNT, "of its last record"),
    "timestamp": (TIME, "of that record"),
    "create_time": (TIME, "what its producer said (KIP-32)"),
    "value_bytes": (_COUNT, "size of its value; null for a null value"),
    "is_tombstone": (_FLAG, "whether it deletes the key"),
    "records": (_COUNT, "records of the key that are still in the log"),
    "record_bytes": (_COUNT, "of keys and values of all of these, not compressed"),
}


def _schema(columns: _Columns) -> pa.Schema:
    return pa.schema(
        [
            pa.field(name, kind, metadata={"comment": comment})
            for name, (kind, comment) in {**_LOG, **columns}.items()
        ]
    )


SCHEMAS: Mapping[str, pa.Schema] = {
    SEGMENTS: _schema(_SEGMENTS),
    PLAN: _schema(_PLAN),
    LEDGER: _schema(_LEDGER),
    KEYS: _schema(_KEYS),
}


def batches_of(view: str, rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Rows as record batches of the view's schema; a column that a row lacks is null in it."""
    left = iter(rows)
    while some := list(islice(left, _ROWS_MAX)):
        yield pa.RecordBatch.from_pylist(some, schema=SCHEMAS[view])
