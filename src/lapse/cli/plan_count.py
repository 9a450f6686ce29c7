"""What a round would do to a log, by doing it all but for the writing: `lapse plan --count`.

The one place where tools run a round's stages without an owner. What the rewrite would write is
counted and thrown away; messages of old formats, which a round upgrades to files of its own first,
go to a temporary directory. The log's own directory is only read.

A round of a split plan leaves the very bytes of the small one that has room for all keys, so that
one is run in its place, without the runs that a split one writes. It takes memory for all dirty
keys (`map_size`), whatever a task of the round may use, and 2^32 records are the most it counts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from lapse.base.fs import RealFs, temporary_folder
from lapse.lifecycle.outlook.plan import Counted
from lapse.lifecycle.round.discard_fs import DiscardFs
from lapse.lifecycle.round.offset_map import ORDINAL_MAX, Tick, build_map
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.rewrite import rewrite
from lapse.lifecycle.round.source import Workplace


def count(plan: RoundPlan, tick: Tick) -> Counted:
    """Run map and rewrite. Raises CorruptData, StorageError."""
    if plan.split is not None:
        plan = replace(plan, split=None, map_entries_max=ORDINAL_MAX)
    with temporary_folder("plan") as folder:
        mapped = build_map(plan, tick, Workplace(RealFs(), folder))
        try:
            done = rewrite(plan, mapped, DiscardFs(), folder, tick)
        finally:
            mapped.close()
    removed: Counter[str] = Counter()
    for group in done.groups:
        removed.update(group.removed)
    trim = mapped.latest < 0
    return Counted(
        removed={reason: n for reason, n in sorted(removed.items()) if n},
        stamped=sum(group.stamped for group in done.groups),
        map_entries=mapped.entries,
        bytes_read=done.bytes_read + (0 if trim else plan.bytes_to_read),
        bytes_written=done.bytes_written,
        segments_before=sum(len(group.old_bases) for group in done.groups),
        segments_after=len(done.groups),
        first_dirty_after=None if trim else mapped.end_offset,
    )
