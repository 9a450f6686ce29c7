"""The third stage: the merges' findings on one segment as one bitmap; whether it is rewritten.

All that a rewrite needs is in one file then, and the files of the earlier stages can be removed.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np

from lapse.base.errors import CorruptData
from lapse.kernels import keep
from lapse.kernels.runs import set_bits
from lapse.lifecycle.round.discard_fs import DiscardFs
from lapse.lifecycle.round.judged import Judged, Round, judge
from lapse.lifecycle.round.offset_map import MapResult
from lapse.lifecycle.round.rewrite import GroupWriter, let_live
from lapse.lifecycle.round.source import SourceSegment, find_transactions, open_source
from lapse.lifecycle.round.split.edges import open_at_end
from lapse.lifecycle.round.split.parts import PartsReader
from lapse.lifecycle.round.split.requests import (
    JudgedSegment,
    JudgeRequest,
    folder_of,
    superseded_file,
)
from lapse.lifecycle.round.split.task import Attempt, read_bits, write_bits


def judge_segment(request: JudgeRequest, this: Attempt) -> JudgedSegment:
    """Judge one segment. Raises BadSegment, CorruptData, StorageError."""
    plan = request.plan
    [planned] = plan.segments
    with contextlib.closing(open_source(plan, planned, this.workplace, sparing=True)) as segment:
        segment.forget()
        read_bits(plan, request.index, request.bits, segment)
        gather(request, segment)
        if not request.looked_at:
            forget_clean(segment, plan.dirty)
        bits = write_bits(this, request.index, segment)
        mapped = MapResult([segment], request.latest, request.latest + 1)
        mapped.transactions = find_transactions([segment], dict(request.outcomes))
        [segment.transactions] = mapped.transactions.segments
        round_ = Round.of(plan, mapped)
        judged = judge(round_, segment)
        staying = _staying(request, round_, judged, this) if judged.touched else ()
        segment.require_whole()
    return JudgedSegment(judged.touched, bits, staying)


def gather(request: JudgeRequest, segment: SourceSegment) -> None:
    """Set the bits of the records that the merges found to be superseded."""
    for merged in request.superseded:
        if request.index >= merged.parts.keys:
            continue
        path = folder_of(request.plan, merged.attempt_id) / superseded_file(merged.first)
        reader = PartsReader(path, merged.parts, request.index, request.index + 1)
        for part in reader.parts(request.index):
            if set_bits(part.view(np.uint32), segment.records, segment.superseded) < 0:
                raise CorruptData(str(path), 0, f"segment {request.index} has no such record")


def forget_clean(segment: SourceSegment, dirty: int) -> None:
    """Leave out the clean part, as a round that has mapped nothing does."""
    n = segment.first_at(dirty)
    if n == len(segment.rows):
        segment.keyless[:] = 0
    else:
        after = int(segment.ordinals[n])
        segment.keyless[: after >> 3] = 0
        segment.keyless[after >> 3] &= 0xFF << (after & 7) & 0xFF
    segment.tombstones[:n] = 0


def _staying(
    request: JudgeRequest, round_: Round, judged: Judged, this: Attempt
) -> tuple[int, ...]:
    """The transactions open at the segment's end of which some data stays.

    Their markers are in a later segment, perhaps in another task. They are found as in a rewrite:
    only the batches of these transactions are rewritten, and the output is discarded.
    """
    segment = judged.segment
    txns = segment.transactions.txns
    numbers = open_at_end(segment.rows, txns, request.edges)
    if not numbers:
        return ()
    theirs = np.isin(txns, list(numbers.values()))
    changing = np.where(theirs, judged.classes, np.uint8(keep.UNTOUCHED)).astype(np.uint8)
    if changing.any():
        only = replace(judged, classes=changing)
        GroupWriter(round_, DiscardFs(), this.folder, [only]).add(only, lambda _: None)
    else:
        let_live(round_, segment)
    return tuple(producer for producer, number in numbers.items() if round_.alive[number])
