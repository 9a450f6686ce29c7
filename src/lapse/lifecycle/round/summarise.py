"""Real summaries for segments that have none: the work of a task, one segment after the other.

A log written by another program is opened on estimates (`log.estimate`); before the first decision
on it, tasks look through its segments and the owner takes over the results. Neither the driver nor
the broker that opens the log reads the segments. A task only reads, so it may run twice, be killed
anywhere, or race with another attempt: all attempts find the same, and the first one is taken.

An unreadable place (L10) may be readable again later, for instance in a file restored from a
replica. So the owner notes the place as a bad range with a next try (`round.bad`), at which the
segment is looked through again; at once, if its file has changed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from lapse.base.errors import LapseError, StorageError
from lapse.base.ids import TopicPartition
from lapse.lifecycle.decide.select import Blocked, Decision
from lapse.lifecycle.round import bad
from lapse.lifecycle.round.receipt import BadSpot
from lapse.log.env import LogEnv
from lapse.log.facts import LogFacts, SegmentFacts
from lapse.log.look import SegmentFile, look, sealed_summary
from lapse.log.partition_log import PartitionLog
from lapse.log.segment import LOG, segment_path
from lapse.log.sketch import encode_sketch
from lapse.log.summary import Summary


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """One segment to be looked through, as described by its owner.

    Attributes:
        generation: the log's, from the facts; the owner takes nothing over if it has moved.
        next_base: base of the segment after it.
        records: read records too, for tombstones and keys. Without it these stay unknown, which
            every decision can deal with.
    """

    partition: TopicPartition
    dir: str
    generation: int
    base_offset: int
    size: int
    next_base: int
    records: bool = True

    @property
    def name(self) -> str:
        return str(self.partition)


@dataclass(frozen=True, slots=True)
class SummaryReceipt:
    """The result of a request: counts and times, never a key or value.

    Attributes:
        pid: id of the process that carried it out.
        summary: None if there was an error.
        keys: sketch of the segment's keys (`log.sketch`), "" if they were not looked at.
        bad: the place that could not be read, if reading ended early.
    """

    name: str
    generation: int
    base_offset: int
    pid: int
    summary: Summary | None
    keys: str = ""
    error: str | None = None
    bad: BadSpot | None = None


def requests_of(logs: Iterable[LogFacts], *, records: bool) -> list[SummaryRequest]:
    """Requests for the missing summaries of these logs, without those of active segments."""
    return [
        _request(log, segment, after.base_offset, records=records)
        for log in logs
        for segment, after in pairwise(log.segments)
        if segment.lacks_summary
    ]


def wants_look(decision: Decision) -> bool:
    """Whether anything of the log is to be looked through before its next round."""
    return decision.blocked is Blocked.SUMMARIES or decision.look_again is not None


def requests_due(decisions: Iterable[Decision], *, records: bool) -> list[SummaryRequest]:
    """What is lacking in these logs, where that keeps rounds away, and what may be readable now.

    Where `records` says no, only those that a round need not read are looked into: what is clean.
    """
    return [
        _request(
            log, segment, after.base_offset,
            records=records or after.base_offset <= decision.bounds.dirty,
        )
        for decision in decisions
        for log in [decision.info.facts]
        for segment, after in pairwise(log.segments)
        if (segment.lacks_summary and decision.blocked is Blocked.SUMMARIES)
        or segment.base_offset == decision.look_again
    ]  # fmt: skip


def _request(
    log: LogFacts, segment: SegmentFacts, next_base: int, *, records: bool
) -> SummaryRequest:
    return SummaryRequest(
        log.partition, log.dir, log.generation, segment.base_offset, segment.size, next_base,
        records,
    )  # fmt: skip


def summarise(request: SummaryRequest) -> SummaryReceipt:
    """Carry out one request; a failure is returned as the receipt's error.

    A segment that cannot be read to its end is no error: its summary says so, and keeps rounds
    away from that place.
    """
    path = segment_path(Path(request.dir), request.base_offset, LOG)
    segment = SegmentFile(path, request.base_offset, request.size, request.next_base)
    try:
        size = path.stat().st_size
        if size != request.size:
            return failed_summary(request, f"{path} has {size} bytes, {request.size} were expected")
        looked = look(segment, records=request.records)
    except (LapseError, OSError) as e:
        return failed_summary(request, str(e))
    keys = "" if looked.keys is None else encode_sketch(looked.keys)
    spot = None
    if looked.bad is not None:
        above = min(looked.summary.end_offset, request.next_base - 1)
        spot = BadSpot(request.base_offset, above, looked.summary.size, looked.bad)
    return SummaryReceipt(
        request.name, request.generation, request.base_offset, os.getpid(),
        sealed_summary(segment, looked), keys, bad=spot,
    )  # fmt: skip


def adopt(log: PartitionLog, receipt: SummaryReceipt) -> str | None:
    """Let the owner's log take over a receipt's summary; returns why it did not, None if it did."""
    if receipt.summary is None:
        return receipt.error or f"{receipt.name}: the receipt is empty"
    try:
        refusal = log.adopt_summary(receipt.summary, receipt.keys, receipt.generation)
    except StorageError as e:
        refusal = str(e)
    return None if refusal is None else f"{receipt.name}: {refusal}"


def take_over(log: PartitionLog, receipt: SummaryReceipt, env: LogEnv) -> str | None:
    """As `adopt`, by the owner, which also notes an unreadable place with its next try.

    A look that failed at a segment already known to be unreadable counts as one more try.
    """
    refusal = adopt(log, receipt)
    spot = receipt.bad if refusal is None else None
    if receipt.summary is None:
        spot = _known_spot(log, receipt)
    if spot is None:
        return refusal
    with contextlib.suppress(StorageError):  # the log remembers it until it is closed
        bad.note(log, env.fs, spot, env.clock.now_ms())
    return None


def _known_spot(log: PartitionLog, receipt: SummaryReceipt) -> BadSpot | None:
    for segment in log.segments[:-1]:
        if segment.base_offset == receipt.base_offset and segment.summary.unreadable_from >= 0:
            reason = receipt.error or "it could not be looked through"
            return BadSpot(segment.base_offset, segment.summary.unreadable_from, 0, reason)
    return None


def failed_summary(request: SummaryRequest, error: str) -> SummaryReceipt:
    """The receipt of a request that failed."""
    return SummaryReceipt(
        request.name, request.generation, request.base_offset, os.getpid(), None,
        error=f"{request.name}: {error}",
    )  # fmt: skip
