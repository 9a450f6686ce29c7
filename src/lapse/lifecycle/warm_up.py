"""A round over next to nothing, so that the first real one finds its kernels loaded.

Loading them takes a third of a second from their cache, compiling them the first time many. Run by
the set-up, and by Spark's Python daemon before it forks its workers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from lapse.base.clock import SystemClock
from lapse.base.errors import LapseError
from lapse.base.fs import Fs, temporary_folder
from lapse.base.ids import TopicPartition
from lapse.kernels.jit import first_compile
from lapse.kernels.layout import RECORD
from lapse.kernels.offset_map import rehash
from lapse.kernels.sketch import note_records
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round.choice import split_for
from lapse.lifecycle.round.engine import run_plan
from lapse.lifecycle.round.plan import PlanSegment, RoundPlan
from lapse.lifecycle.round.split.drive import run_split_here
from lapse.log.look import SegmentFile, look
from lapse.log.segment import LOG, segment_path
from lapse.log.sketch import empty_sketch
from lapse.records.batch import as_array
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec

_CLEAN, _DIRTY, _END = 0, 100, 200


def warm_up(fs: Fs) -> None:
    """Run everything a round has kernels for once; raises LapseError if that cannot be."""
    with temporary_folder("warm-up") as folder:
        sizes = {base: _write(fs, folder, base) for base in (_CLEAN, _DIRTY)}
        with first_compile("rounds"):
            receipt = run_plan(_plan(folder, sizes), "warm-up", fs, SystemClock())
            split = replace(_plan(folder, sizes), split=split_for(1, 1))
            after = run_split_here(split, fs, SystemClock())
            rehash(np.zeros(2, np.uint64), np.zeros(4, np.uint64))
            _look_through(folder, sizes[_CLEAN])
        for error in (receipt.error, after.error):
            if error is not None:
                raise LapseError(f"the warm-up round failed: {error}")


def _look_through(folder: Path, size: int) -> None:
    """What summaries are made with; messages of old formats have a kernel of their own."""
    segment = SegmentFile(segment_path(folder, _CLEAN, LOG), _CLEAN, size, _DIRTY)
    look(segment, records=True)
    note_records(as_array(b"0"), np.zeros(0, RECORD), empty_sketch())


def _write(fs: Fs, folder: Path, base_offset: int) -> int:
    """A segment with a record to keep, one to supersede and a tombstone, plain and packed."""
    records = [NewRecord(b"a", b"v"), NewRecord(b"b", None), NewRecord(b"%d" % base_offset, b"v")]
    batches = [
        build_batch(records, BatchSpec(base_offset=base_offset + at, codec=codec))
        for at, codec in ((0, Codec.NONE), (10, Codec.LZ4))
    ]
    data = b"".join(batches)
    fs.write_file(segment_path(folder, base_offset, LOG), data)
    return len(data)


def _plan(folder: Path, sizes: dict[int, int]) -> RoundPlan:
    segments = tuple(PlanSegment(base, size, 0, 8, 12, 0, 0, False) for base, size in sizes.items())
    return RoundPlan(
        round_id="warm-up",
        partition=TopicPartition("warm-up", 0),
        dir=str(folder),
        generation=0,
        now_ms=1,
        rules=Rules.LAPSE,
        dirty=_DIRTY,
        upper=_END,
        segments=segments,
        guarded_last_offsets=(),
        end_guard=_END,
        horizon_ms=2,
        passed_until_ms=1,
        segment_bytes=1 << 20,
        segment_index_bytes=1 << 20,
        index_interval_bytes=1,
        map_entries_max=1 << 10,
        due=(),
    )
