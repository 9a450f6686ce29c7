"""Rows of the views: a log's plan, its segments and its ledger, as columns by their names.

A broker says them of its own logs (DescribeOutlook), Spark's views of directories. What the columns
mean is in `spark.views.schema`; times are microseconds, and what is not known is None. Pure, but
for the sketches of keys that are kept beside a log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from pyroaring import BitMap

from lapse.base.errors import CorruptData
from lapse.lifecycle.decide.deadline import next_look_ms
from lapse.lifecycle.decide.explain import Context, explain
from lapse.lifecycle.decide.lateness import first_deadline
from lapse.lifecycle.decide.select import Decision, RoundKind
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.outlook.due import bytes_to_free, due_since_ms
from lapse.lifecycle.round.ledger import LedgerEntry, Removed, ledger_path
from lapse.lifecycle.round.plan import MapMemory, make_plan
from lapse.log.facts import SegmentFacts
from lapse.log.sketch import Sketch, decode_sketch, estimate
from lapse.log.summary import read_keys, summary_path

RANGES_MAX = 1000
_ANY_MEMORY = MapMemory(1 << 30)  # of a plan that only says what is to be read
_MICROS_MAX = (1 << 63) - 1

Row = Mapping[str, Any]


def micros(time_ms: int | None) -> int | None:
    """A time for a column; below 0 and None are none, far beyond any calendar is the last one."""
    if time_ms is None or time_ms < 0:
        return None
    return min(time_ms * 1000, _MICROS_MAX)


def known(count: int) -> int | None:
    """A count, None where it is -1."""
    return count if count >= 0 else None


def plan_row(decision: Decision, context: Context | None = None) -> Row:
    """Of a log; `context`: what else holds its rounds back."""
    facts, config, bounds = decision.info.facts, decision.info.config, decision.bounds
    why, deadline = explain(decision, context), first_deadline(decision)
    plan = make_plan(decision, "view", Rules.LAPSE, _ANY_MEMORY) if decision.due else None
    compacts = config.compacts
    return {
        "policy": ",".join(sorted(config.cleanup_policy)),
        "due": bool(decision.due),
        "reasons": [due.value for due in decision.due],
        "kind": None if plan is None else plan.kind.value,
        "due_since": micros(due_since_ms(decision)),
        "rule": why.rule,
        "explanation": why.text,
        "until": micros(why.until_ms),
        "deadline": None if deadline is None else micros(deadline.ms),
        "deadline_for": None if deadline is None else deadline.what,
        "missed_by_ms": None if deadline is None else max(decision.now_ms - deadline.ms, 0),
        "next_look": micros(next_look_ms(decision)),
        "dirty_ratio": bounds.ratio if compacts else None,
        "first_dirty": bounds.dirty if compacts else None,
        "first_uncleanable": bounds.upper if compacts else None,
        "dirty_bytes": bounds.dirty_bytes if compacts else None,
        "bytes": sum(segment.size for segment in facts.segments),
        "bytes_to_read": 0 if plan is None else plan.bytes_to_read,
        "bytes_to_free": 0 if plan is None else bytes_to_free(decision, _keys_of(decision)),
    }


def unjudged(rule: str, why: str) -> Row:
    """Of a log whose settings are not known (`policy`), or that cannot be read (`unreadable`)."""
    return {"rule": rule, "explanation": why}


def kept_sketch(partition_dir: Path, base_offset: int, size: int) -> Sketch | None:
    """Of a segment's keys, if it is kept with a summary that is of a segment of that size."""
    kept = read_keys(summary_path(partition_dir, base_offset), size)
    return None if kept is None else decode_sketch(kept)


def _keys_of(decision: Decision) -> int | None:
    """Distinct keys of what a round reaches, by the sketches that are kept; None if one lacks."""
    if decision.kind is RoundKind.TRIM:
        return None
    facts = decision.info.facts
    sketches: list[Sketch] = []
    for segment, _ in pairwise(facts.segments):
        if segment.base_offset >= decision.bounds.upper or not segment.size:
            continue
        sketch = kept_sketch(Path(facts.dir), segment.base_offset, segment.size)
        if sketch is None:
            return None
        sketches.append(sketch)
    return estimate(sketches)


def segment_row(segment: SegmentFacts) -> Row:
    """Of a segment; without a summary, what is known without one."""
    summary = segment.summary
    if summary is None:
        return {**_of_files(segment), "estimated": True}
    is_read = not summary.estimated
    markers_known = is_read and summary.commits >= 0
    return {
        **_of_files(segment),
        "end_offset": summary.end_offset,
        "batches": summary.batches if is_read else None,
        "records": summary.records if is_read else None,
        "tombstones": known(summary.tombstones) if is_read else None,
        "markers": summary.commits + summary.aborts if markers_known else None,
        "transactional": summary.transactional if is_read else None,
        "old_format": summary.old_format if is_read else None,
        "min_timestamp": micros(summary.min_timestamp),
        "max_timestamp": micros(summary.max_timestamp),
        "first_append": micros(summary.append_first_ms),
        "last_append": micros(summary.append_last_ms),
        "append_estimated": summary.append_estimated,
        "horizon_earliest": micros(summary.horizon_earliest_ms) if is_read else None,
        "horizon_bytes": summary.horizon_bytes if is_read else None,
        "unreadable_from": known(summary.unreadable_from),
        "estimated": summary.estimated,
    }


def _of_files(segment: SegmentFacts) -> Row:
    return {
        "base_offset": segment.base_offset,
        "sealed": not segment.active,
        "bytes": segment.size,
        "index_bytes": segment.index_bytes + segment.time_index_bytes,
    }


def ledger_rows_of(entry: LedgerEntry, partition_dir: Path) -> Iterator[Row]:
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


def group_row(entry: LedgerEntry, partition_dir: Path) -> Row:
    """Of a ledger's entry, by rule how many records went; for people, who want no offsets."""
    removed: dict[str, int] = {}
    for one in entry.removed:
        count = len(_offsets(one, entry, partition_dir))
        removed[one.reason] = removed.get(one.reason, 0) + count
    return {
        "round_id": entry.round_id,
        "committed": micros(entry.committed_ms),
        "removed": removed,
        "stamped": entry.stamped,
        "bytes_before": entry.bytes_before,
        "bytes_after": entry.bytes_after,
    }


def _offsets(removed: Removed, entry: LedgerEntry, partition_dir: Path) -> BitMap:
    try:
        return removed.offsets()
    except ValueError as e:
        reason = f"round {entry.round_id}, segment {removed.segment_base}: {e}"
        raise CorruptData(str(ledger_path(partition_dir)), 0, reason) from e


def _removed(removed: Removed, entry: LedgerEntry, partition_dir: Path) -> Row:
    bitmap = _offsets(removed, entry, partition_dir)
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
