"""The bad range of a log: the first place that rounds could not read (L10).

A round that fails on such a place is repeated after a minute, then after twice as long each time,
up to an hour; until then rounds stay below it, and nothing at or above it is stamped or removed.
Where there are several such places, the lowest bounds the rounds. Tries are counted per log, not
per place: only a round that reads the whole log resets the count. `decide.bounds` reads the range
from the facts; it is written by the commit (`round.commit`), and when the owner adopts the summary
of a segment that cannot be read (`round.summarise`).

`.lapse/bad` (`log.bad`) keeps the range, as JSON, with the size and mtime of its segment's file: a
range whose segment is gone, or whose file has changed, is forgotten.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from pathlib import Path

import msgspec

from lapse.base.backoff import backoff_ms
from lapse.base.errors import StorageError
from lapse.base.fs import Fs
from lapse.lifecycle.round.receipt import BadSpot
from lapse.log.bad import bad_path, read_bad
from lapse.log.facts import BadRange, LogFacts
from lapse.log.partition_log import PartitionLog
from lapse.log.roster import FileStamp
from lapse.log.segment import LOG, segment_path

FIRST_BACKOFF_MS = 60_000
BACKOFF_MS_MAX = 3_600_000


def note_failure(existing: BadRange | None, spot: BadSpot, now_ms: int) -> BadRange:
    """The range after a round failed at `spot`; each failure of the log makes the wait longer.

    While a range still holds the rounds below it, a place above it does not replace it. A place met
    by a full try does: the lower place may be readable again, and the next round finds that out.
    """
    tries = 1 if existing is None else existing.tries + 1
    wait_ms = backoff_ms(tries, FIRST_BACKOFF_MS, BACKOFF_MS_MAX)
    holds = existing is not None and now_ms < existing.next_try_ms
    lowest: BadRange | BadSpot = spot
    if existing is not None and holds and _place(existing) < _place(spot):
        lowest = existing
    return BadRange(
        segment_base=lowest.segment_base,
        first_offset=lowest.first_offset,
        position=lowest.position,
        reason=lowest.reason,
        since_ms=now_ms if existing is None else existing.since_ms,
        tries=tries,
        next_try_ms=now_ms + wait_ms,
    )


def _place(bad: BadRange | BadSpot) -> tuple[int, int]:
    return bad.segment_base, bad.first_offset


def note(log: PartitionLog, fs: Fs, spot: BadSpot, now_ms: int) -> BadRange:
    """Note in a log where it could not be read; after a StorageError, only until the log closes."""
    noted = note_failure(log.facts().bad, spot, now_ms)
    log.set_bad(noted)
    store(fs, log.dir, noted)
    return noted


def store(fs: Fs, log_dir: Path, bad: BadRange) -> None:
    """Write the bad range, durably. Raises StorageError."""
    path = bad_path(log_dir)
    fs.make_dir(path.parent)
    stamp = FileStamp.of(segment_path(log_dir, bad.segment_base, LOG))
    fs.replace_file(path, msgspec.json.encode({**asdict(bad), **msgspec.structs.asdict(stamp)}))


def clear(fs: Fs, log_dir: Path) -> None:
    """Remove the bad range, durably. Raises StorageError."""
    path = bad_path(log_dir)
    if path.exists():
        fs.unlink(path)
        fs.fsync_dir(path.parent)


def current_facts(log: PartitionLog, fs: Fs) -> LogFacts:
    """A log's facts, after forgetting a bad range whose segment is gone or has another file."""
    facts = log.facts()
    if facts.bad is None or _is_there(facts, facts.bad):
        return facts
    with contextlib.suppress(StorageError):  # `read_bad` ignores a stale file
        clear(fs, log.dir)
    log.set_bad(None)
    return log.facts()


def _is_there(facts: LogFacts, bad: BadRange) -> bool:
    if all(segment.base_offset != bad.segment_base for segment in facts.segments):
        return False
    log_dir = Path(facts.dir)
    segment = segment_path(log_dir, bad.segment_base, LOG)
    if FileStamp.of(segment).size < 0 or not bad_path(log_dir).exists():
        return True  # the missing file is the bad place, or `.lapse/bad` could not be written
    return read_bad(log_dir) is not None
