"""The receipt: the result that a task returns. Counts and checksums, no paths (ADR-13).

The folder of an attempt's files follows from the round and attempt ids: `attempt_dir`. Their names
never end in Kafka's suffixes, so that no Kafka broker takes one for a segment.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from lapse.log.summary import FOLDER, Summary

# Attempt file kind → the suffix it gets at commit; "removed" goes to the ledger instead, and is a
# file only where the receipt is not to carry so much. There is a file of aborted transactions only
# where there are any.
ABORTED = "aborted"
KAFKA_SUFFIX = {"records": ".log", "offsets": ".index", "times": ".timeindex", ABORTED: ".txnindex"}
REMOVED = "removed"
APPENDED = "appended"  # append times, if any are known for the segment

# Prefix of the ids of attempts made in this process, whose files a commit need not read back.
THIS_PROCESS = f"inline-{secrets.token_hex(8)}"


@dataclass(frozen=True, slots=True)
class FileReceipt:
    """One file of an attempt: its kind, size and CRC-32C."""

    kind: str
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class GroupReceipt:
    """One rewritten group: old segments in, one new segment out.

    Attributes:
        base_offset: base of the new segment, which is the first old one's (G-3).
        old_bases: bases of the segments that the new one replaces.
        mtime_ns: mtime of the last of them; the new files get it (F-11).
        stamped: batches that got a delete horizon.
        removed: records removed, by reason.
        removed_offsets: which these are, as a file of kind "removed" has it; empty if there is one.
        old_sizes: bytes of each replaced segment, which the owner notes in its intent so that
            recovery recognises the files it finds. A segment that is not the log's has no size.
    """

    base_offset: int
    old_bases: tuple[int, ...]
    mtime_ns: int
    files: tuple[FileReceipt, ...]
    summary: Summary
    stamped: int
    removed: dict[str, int]
    old_sizes: tuple[int, ...] = ()
    removed_offsets: bytes = b""


@dataclass(frozen=True, slots=True)
class Seconds:
    """Wall time of a round by stage.

    Attributes:
        map: and `rewrite`: reading and kernels, in its tasks.
        engine: all else until its receipt came: waiting for a task slot, and Spark's own work.
    """

    map: float = 0.0
    rewrite: float = 0.0
    commit: float = 0.0
    engine: float = 0.0


@dataclass(frozen=True, slots=True)
class BadSpot:
    """The first place an attempt could not read (L10).

    Attributes:
        first_offset: the least offset that may lie at the place.
        position: byte position in the segment's log file.
    """

    segment_base: int
    first_offset: int
    position: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The outcome of one attempt at one plan.

    Attributes:
        pid: id of the process that made the attempt.
        kind: kind of the round, "clean" or "trim".
        upper: the plan's upper bound; nothing at or above it was looked at.
        log_start: no record below it is left in the round's files; -1 if the plan did not want it.
        end_offset: the next first dirty offset (M-8), -1 after a trim.
        groups: the rewritten groups only, ascending by base offset.
        bytes_read: bytes of log files mapped, probed and rewritten; headers alone do not count.
        error: why the attempt failed, None if it did not; with an error, only `bad` counts besides.
        bad: where the log could not be read, if the attempt failed on that.
        plan: "small" or "split".
        saw_markers: it went by markers at or above `upper`, where the log may not be synced.
    """

    round_id: str
    attempt_id: str
    name: str
    generation: int
    pid: int
    now_ms: int
    horizon_ms: int
    end_offset: int
    groups: tuple[GroupReceipt, ...]
    map_entries: int
    records_read: int
    records_written: int
    bytes_read: int
    bytes_written: int
    seconds: Seconds
    error: str | None = None
    bad: BadSpot | None = None
    kind: str = "clean"
    upper: int = 0
    log_start: int = -1
    plan: str = "small"
    saw_markers: bool = False


def attempt_dir(log_dir: Path, round_id: str, attempt_id: str) -> Path:
    """The folder of an attempt's files."""
    return log_dir / FOLDER / round_id / attempt_id


def attempt_file(base_offset: int, kind: str) -> str:
    """Name of a file of an attempt."""
    return f"{base_offset:020d}-{kind}"
