"""The view of the ledger: which records left which segment in which round, and why.

Only logs that Lapse cleans have a ledger. Offsets are given as ranges, so that a row of a million
removed records stays small; never a key or a value, which no ledger holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lapse.base.errors import CorruptData
from lapse.lifecycle.round.ledger import LedgerEntry, Removed, ledger_path, read
from lapse.spark.views.logs import of_log, partitions_of
from lapse.spark.views.schema import Row, micros
from lapse.spark.views.spec import ViewUnit

RANGES_MAX = 1000


def ledger_rows(unit: ViewUnit) -> Iterator[Row]:
    """Rows of the unit's logs, oldest first in each. Raises CorruptData with file and position."""
    for partition in partitions_of(unit):
        partition_dir = Path(unit.log_dir) / str(partition)
        of_this = of_log(unit, partition)
        for entry in read(partition_dir):
            if unit.options.filter.admits_time(entry.committed_ms):
                for row in _rows_of(entry, partition_dir):
                    yield {**of_this, **row}


def _rows_of(entry: LedgerEntry, partition_dir: Path) -> Iterator[Row]:
    """A row for each segment and reason; one without either where batches were only stamped."""
    common = {
        "round_id": entry.round_id,
        "judged": micros(entry.now_ms),
        "committed": micros(entry.committed_ms),
        "group_base": entry.base_offset,
        "horizon": micros(entry.horizon_ms) if entry.stamped else None,
    }
    # On one row of each group, so that a sum over rows counts nothing twice.
    once: dict[str, Any] = {
        "stamped": entry.stamped,
        "bytes_before": entry.bytes_before,
        "bytes_after": entry.bytes_after,
    }
    if not entry.removed:
        yield {**common, **once, "records": 0}
    for removed in entry.removed:
        yield {**common, **once, **_removed(removed, entry, partition_dir)}
        once = {}


def _removed(removed: Removed, entry: LedgerEntry, partition_dir: Path) -> Row:
    try:
        bitmap = removed.offsets()
    except ValueError as e:
        reason = f"round {entry.round_id}, segment {removed.segment_base}: {e}"
        raise CorruptData(str(ledger_path(partition_dir)), 0, reason) from e
    offsets = np.frombuffer(bitmap.to_array(), np.uint32).astype(np.int64) + removed.segment_base
    ends = np.flatnonzero(np.diff(offsets) != 1)
    firsts = offsets[np.concatenate([[0], ends + 1])] if len(offsets) else offsets
    lasts = offsets[np.concatenate([ends, [len(offsets) - 1]])] if len(offsets) else offsets
    pairs = zip(firsts.tolist(), lasts.tolist(), strict=True)
    return {
        "segment": removed.segment_base,
        "reason": removed.reason,
        "records": len(offsets),
        "first_offset": int(offsets[0]) if len(offsets) else None,
        "last_offset": int(offsets[-1]) if len(offsets) else None,
        "ranges": [{"first": first, "last": last} for first, last in pairs]
        if len(firsts) <= RANGES_MAX
        else None,
    }
