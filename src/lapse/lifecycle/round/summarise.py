"""Real summaries for segments that have none: what a task does, one segment after the other.

A log that somebody else wrote is opened on estimates (`log.estimate`); before the first decision on
it, its segments are looked through by tasks and the owner takes over what they found. The driver
reads nothing and the opening broker neither. A task only reads, so it may run twice, be killed
anywhere, or race with another attempt: whoever comes first is believed, they all say the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lapse.base.errors import LapseError, StorageError
from lapse.base.ids import TopicPartition
from lapse.log.facts import LogFacts
from lapse.log.look import SegmentFile, look, told
from lapse.log.partition_log import PartitionLog
from lapse.log.segment import LOG, segment_path
from lapse.log.sketch import encode_sketch
from lapse.log.summary import Summary


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """One segment to be looked through, as its owner told of it.

    Attributes:
        generation: of the facts; the owner takes nothing over if it has moved.
        next_base: base of the segment after it.
        records: look into records too, for tombstones and keys. Without it they stay unknown,
            which no decision minds.
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
    """What came of a request: counts and times, never a key or value.

    Attributes:
        pid: process that did it.
        summary: None where there is an error.
        keys: sketch of the segment's keys (`log.sketch`), "" where they were not looked at.
    """

    name: str
    generation: int
    base_offset: int
    pid: int
    summary: Summary | None
    keys: str = ""
    error: str | None = None


def requests_of(logs: Iterable[LogFacts], *, records: bool) -> list[SummaryRequest]:
    """What is lacking in these logs; the active segment is looked through once it is sealed."""
    return [
        SummaryRequest(
            partition=log.partition,
            dir=log.dir,
            generation=log.generation,
            base_offset=segment.base_offset,
            size=segment.size,
            next_base=after.base_offset,
            records=records,
        )
        for log in logs
        for segment, after in zip(log.segments[:-1], log.segments[1:], strict=True)
        if segment.lacks_summary
    ]


def summarise(request: SummaryRequest) -> SummaryReceipt:
    """Carry out one request; what goes wrong comes back as the receipt's error.

    A segment that cannot be read to its end is no error: its summary says so, and keeps rounds
    away from the log.
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
    return SummaryReceipt(
        request.name, request.generation, request.base_offset, os.getpid(),
        told(segment, looked), keys,
    )  # fmt: skip


def adopt(log: PartitionLog, receipt: SummaryReceipt) -> str | None:
    """Have an owner's log take over a receipt's summary; why it did not, None if it did."""
    if receipt.summary is None:
        return receipt.error or f"{receipt.name}: the receipt is empty"
    try:
        refusal = log.adopt_summary(receipt.summary, receipt.keys, receipt.generation)
    except StorageError as e:
        refusal = str(e)
    return None if refusal is None else f"{receipt.name}: {refusal}"


def failed_summary(request: SummaryRequest, error: str) -> SummaryReceipt:
    """The receipt of a request that came to nothing."""
    return SummaryReceipt(
        request.name, request.generation, request.base_offset, os.getpid(), None,
        error=f"{request.name}: {error}",
    )  # fmt: skip
