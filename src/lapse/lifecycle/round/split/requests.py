"""Requests to the tasks of a split plan, and their answers: frozen, JSON-able, without paths.

A request holds everything its task needs. The folders of an earlier stage's files follow from the
attempt ids in it; if a request had several attempts, the one whose answer the driver got counts.
The seed of the keys' hash goes from the driver to the tasks that hash and nowhere else: no answer,
file or error text contains it (ADR-2).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Generic, TypeVar

from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import BadSpot, GroupReceipt, attempt_dir
from lapse.lifecycle.round.split.edges import Begun, Edge, Outcomes
from lapse.lifecycle.round.split.parts import PartsReceipt


class Stage(Enum):
    """The stages of a split round, in order."""

    SCAN = "scan"
    MERGE = "merge"
    JUDGE = "judge"
    REWRITE = "rewrite"


@dataclass(frozen=True, slots=True)
class Blob:
    """A file that is read whole: the attempt that wrote it, its size and CRC-32C."""

    attempt_id: str
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """Scan one segment to runs by hash range.

    Attributes:
        plan: the round's plan, with this one segment only; other requests hold their own segments.
        index: number of the segment in the round.
        end: base of the segment after it, or the round's upper bound.
        seed: seed of the hash.
        outcomes: outcomes of the transactions open at its end; None while they are unknown: then a
            segment with transactions only reports those that cross its borders.
    """

    plan: RoundPlan
    index: int
    end: int
    seed: tuple[int, int] = field(repr=False)
    outcomes: Outcomes | None = None


@dataclass(frozen=True, slots=True)
class Scanned:
    """The result of scanning a segment.

    Attributes:
        runs: keyed by hash range; None if the scan only reports what crosses the borders.
        mapped_from: number of the first mapped record; the number of records if none is mapped.
        bits: the map stage's bitmaps of the segment, with nothing superseded yet.
        markers: whether it has control batches.
    """

    index: int
    records: int
    edges: tuple[Edge, ...]
    markers: bool
    runs: PartsReceipt | None = None
    mapped_from: int = 0
    bits: Blob | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """The runs of a segment, for a merge."""

    index: int
    attempt_id: str
    parts: PartsReceipt
    mapped_from: int


@dataclass(frozen=True, slots=True)
class MergeRequest:
    """Merge hash ranges first..after-1 of all runs, which are in the order of their segments."""

    plan: RoundPlan
    first: int
    after: int
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Merged:
    """Numbers of superseded records, keyed by segment.

    Attributes:
        first: first hash range of the task.
        entries: keys mapped.
    """

    first: int
    parts: PartsReceipt
    entries: int


@dataclass(frozen=True, slots=True)
class Superseded:
    """A merge's file, for a judge."""

    first: int
    attempt_id: str
    parts: PartsReceipt


@dataclass(frozen=True, slots=True)
class JudgeRequest:
    """Judge one segment by the findings of all merges.

    Attributes:
        latest: last offset that is mapped.
        looked_at: whether the clean part is judged; if no key was mapped, it is not.
    """

    plan: RoundPlan
    index: int
    bits: Blob
    superseded: tuple[Superseded, ...]
    edges: tuple[Edge, ...]
    outcomes: Outcomes
    latest: int
    looked_at: bool


@dataclass(frozen=True, slots=True)
class JudgedSegment:
    """The judgement on a segment.

    Attributes:
        touched: whether something changes for sure.
        bits: the map stage's bitmaps of the segment.
        staying: producers whose transaction is open at the segment's end and keeps some data if
            the segment is rewritten.
    """

    touched: bool
    bits: Blob
    staying: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RewriteRequest:
    """Rewrite one group.

    Attributes:
        first: index of its first segment.
        bits: the map stage's bitmaps of each of its segments.
        begun: transactions that were open before the group.
        for_its_markers: the group is one segment in which at most the markers change.
        looked_at: as in a `JudgeRequest`.
    """

    plan: RoundPlan
    first: int
    bits: tuple[Blob, ...]
    outcomes: Outcomes
    begun: tuple[Begun, ...]
    latest: int
    for_its_markers: bool
    looked_at: bool


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A group's new segment, None if it stays as it is; counts as in a round's receipt."""

    group: GroupReceipt | None
    records_read: int = 0
    records_written: int = 0
    bytes_written: int = 0


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """The outcome of one attempt at one request.

    Attributes:
        done: the result; None on failure, with the reason in `error` and an unreadable place in
            `bad`.
        bytes_read: bytes read of log files.
    """

    attempt_id: str
    pid: int
    seconds: float
    bytes_read: int
    done: T | None
    error: str | None = None
    bad: BadSpot | None = None


def folder_of(plan: RoundPlan, attempt_id: str) -> Path:
    """The folder of an attempt's files, at any stage."""
    return attempt_dir(Path(plan.dir), plan.round_id, attempt_id)


def runs_file(index: int) -> str:
    """File name of a segment's runs."""
    return f"{index}-runs"


def bits_file(index: int) -> str:
    """File name of a segment's bitmaps."""
    return f"{index}-bits"


def superseded_file(first: int) -> str:
    """File name of a merge's superseded records."""
    return f"{first}-superseded"
