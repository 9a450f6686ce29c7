"""What the tasks of a split plan are asked, and what they answer: frozen, JSON-able, without paths.

A request holds everything its task needs. Where the files of an earlier stage lie follows from the
attempt ids in it; which attempt of several counts, the answers that came back say. The seed of the
keys' hash goes from the driver to the tasks that hash and nowhere else: no answer, file or text of
an error has it (ADR-2).
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
    """What a task does, in the order of a round."""

    SCAN = "scan"
    MERGE = "merge"
    JUDGE = "judge"
    REWRITE = "rewrite"


@dataclass(frozen=True, slots=True)
class Blob:
    """A file that is read whole: which attempt wrote it, its size and CRC-32C."""

    attempt_id: str
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """One segment, to runs by hash range.

    Attributes:
        plan: of the round, with this one segment only; so in all requests: with those meant.
        index: number of the segment in the round.
        end: base of the segment after it, or the round's upper bound.
        seed: of the hash.
        outcomes: how what is open at its end ends; None while nobody knows, and then a segment
            that has transactions only says what crosses its borders.
    """

    plan: RoundPlan
    index: int
    end: int
    seed: tuple[int, int] = field(repr=False)
    outcomes: Outcomes | None = None


@dataclass(frozen=True, slots=True)
class Scanned:
    """What is in a segment.

    Attributes:
        runs: keyed by hash range; None if it only says what crosses its borders.
        mapped_from: number of its first record that is mapped; as many as it has if none is.
        bits: what a map stage leaves of it, nothing superseded yet.
        markers: it has control batches.
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
    """Hash ranges first..after-1 of all runs, which are in the order of their segments."""

    plan: RoundPlan
    first: int
    after: int
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Merged:
    """Numbers of superseded records, keyed by segment.

    Attributes:
        first: hash range that the task began with.
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
    """One segment: what the merges found of it, together.

    Attributes:
        latest: last offset that is mapped.
        looked_at: whether the clean part counts; without a key mapped it does not.
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
    """What becomes of a segment.

    Attributes:
        touched: something changes for sure.
        bits: what a map stage leaves of it.
        staying: producers of which some data of the transaction open at its end stays if it is
            rewritten.
    """

    index: int
    touched: bool
    bits: Blob
    staying: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RewriteRequest:
    """One group.

    Attributes:
        first: index of its first segment.
        bits: of each of its segments.
        begun: transactions that were open before.
        for_its_markers: one segment that nothing changes in but perhaps its markers.
    """

    plan: RoundPlan
    first: int
    bits: tuple[Blob, ...]
    outcomes: Outcomes
    begun: tuple[Begun, ...]
    latest: int
    for_its_markers: bool


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A group's new segment, None if it stays as it is; counts as in a round's receipt."""

    first: int
    group: GroupReceipt | None
    records_read: int = 0
    records_written: int = 0
    bytes_written: int = 0


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """The outcome of one attempt at one request.

    Attributes:
        done: None if it failed; `error` says why, and `bad` where the log could not be read.
        bytes_read: of log files.
    """

    attempt_id: str
    pid: int
    seconds: float
    bytes_read: int
    done: T | None
    error: str | None = None
    bad: BadSpot | None = None


def folder_of(plan: RoundPlan, attempt_id: str) -> Path:
    """Where an attempt at any stage keeps its files."""
    return attempt_dir(Path(plan.dir), plan.round_id, attempt_id)


def runs_file(index: int) -> str:
    """Name of a segment's runs."""
    return f"{index}-runs"


def bits_file(index: int) -> str:
    """Name of what is known of a segment's records."""
    return f"{index}-bits"


def superseded_file(first: int) -> str:
    """Name of what a merge found."""
    return f"{first}-superseded"
