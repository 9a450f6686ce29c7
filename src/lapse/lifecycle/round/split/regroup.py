"""The last stage: one group rewritten, with the same code as in the small plan."""

from __future__ import annotations

from lapse.lifecycle.round.judged import Round, judge
from lapse.lifecycle.round.offset_map import MapResult, Tick
from lapse.lifecycle.round.rewrite import (
    RewriteResult,
    for_its_markers,
    let_live,
    write_group,
)
from lapse.lifecycle.round.source import (
    PIECE_BYTES,
    SourceSegment,
    find_transactions,
    open_source,
)
from lapse.lifecycle.round.split.edges import continue_begun
from lapse.lifecycle.round.split.requests import RewriteRequest, Rewritten
from lapse.lifecycle.round.split.task import Attempt, read_bits


def rewrite_group(request: RewriteRequest, this: Attempt) -> Rewritten:
    """Rewrite one group. Raises BadSegment, CorruptData, StorageError."""
    plan = request.plan
    segments: list[SourceSegment] = []
    try:
        for n, planned in enumerate(plan.segments):
            segments.append(open_source(plan, planned, this.workplace, sparing=True))
            segments[n].forget()
            read_bits(plan, request.first + n, request.bits[n], segments[n])
        round_ = _round_of(request, segments)
        judged = [judge(round_, segment) for segment in segments]
        result = RewriteResult([])
        if request.for_its_markers:
            let_live(round_, segments[0])
        if not request.for_its_markers or for_its_markers(round_, judged, 0):
            tick = _forgetting(segments, this.tick)
            write_group(round_, judged, this.fs, this.folder, tick, result, this.spend)
        for segment in segments:
            segment.require_whole()
    finally:
        for segment in segments:
            segment.close()
    group = result.groups[0] if result.groups else None
    return Rewritten(group, result.records_read, result.records_kept, result.bytes_written)


def _forgetting(segments: list[SourceSegment], tick: Tick) -> Tick:
    """A tick that also releases, now and then, the pages that were read."""
    done = 0

    def tick_and_forget(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        if done >= PIECE_BYTES:
            done = 0
            for segment in segments:
                segment.forget()
        tick(n_bytes)

    return tick_and_forget


def _round_of(request: RewriteRequest, segments: list[SourceSegment]) -> Round:
    mapped = MapResult(
        segments, request.latest, request.latest + 1, looked_at=request.looked_at
    )  # fmt: skip
    mapped.transactions = find_transactions(segments, dict(request.outcomes))
    for segment, found in zip(segments, mapped.transactions.segments, strict=True):
        segment.transactions = found
    round_ = Round.of(request.plan, mapped)
    rows = [segment.rows for segment in segments]
    continue_begun(mapped.transactions, rows, request.begun, round_.alive)
    return round_
