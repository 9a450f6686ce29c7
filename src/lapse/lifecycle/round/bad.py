"""The bad range of a log: the first place that rounds could not read (L10).

A round that fails on such a place is repeated after a minute, then after twice as long each time,
up to an hour; until then rounds stay below it, and nothing at or above it is stamped or removed.
Where there are several, the lowest bounds them. How often is counted for the log, whichever of its
places was met: only a round that reads all of it begins anew.
`decide.bounds` reads it from the facts; the commit (`round.commit`) writes it, and whoever adopts
the summary of a segment that cannot be read (`round.summarise`).

`.lapse/bad` (`log.bad`) keeps it, as JSON, with the size and mtime its segment's file had: a range
whose segment is gone, or whose file is another one now, is forgotten.
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
from lapse.log.bad import bad_path, file_state, read_bad
from lapse.log.facts import BadRange, LogFacts
from lapse.log.partition_log import PartitionLog
from lapse.log.segment import LOG, segment_path

FIRST_BACKOFF_MS = 60_000
BACKOFF_MS_MAX = 3_600_000


def note_failure(existing: BadRange | None, spot: BadSpot, now_ms: int) -> BadRange:
    """The range after a round failed at `spot`: each failure of the log waits longer.

    While a range still holds the rounds below it, one met above it does not take its place. One met
    by a full try does: what is below may be readable again, and the next round finds that out.
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
    """Have a log remember where it could not be read. Raises StorageError: then until it closes."""
    noted = note_failure(log.facts().bad, spot, now_ms)
    log.set_bad(noted)
    store(fs, log.dir, noted)
    return noted


def store(fs: Fs, log_dir: Path, bad: BadRange) -> None:
    """Keep it, durably. Raises StorageError."""
    path = bad_path(log_dir)
    fs.make_dir(path.parent)
    state = file_state(segment_path(log_dir, bad.segment_base, LOG))
    fs.replace_file(path, msgspec.json.encode({**asdict(bad), **asdict(state)}))


def clear(fs: Fs, log_dir: Path) -> None:
    """Forget it, durably. Raises StorageError."""
    path = bad_path(log_dir)
    if path.exists():
        fs.unlink(path)
        fs.fsync_dir(path.parent)


def current_facts(log: PartitionLog, fs: Fs) -> LogFacts:
    """A log's facts, after forgetting a bad range whose segment is gone or has another file."""
    facts = log.facts()
    if facts.bad is None or _is_there(facts, facts.bad):
        return facts
    with contextlib.suppress(StorageError):  # `read_bad` will not believe what is left
        clear(fs, log.dir)
    log.set_bad(None)
    return log.facts()


def _is_there(facts: LogFacts, bad: BadRange) -> bool:
    if all(segment.base_offset != bad.segment_base for segment in facts.segments):
        return False
    log_dir = Path(facts.dir)
    segment = segment_path(log_dir, bad.segment_base, LOG)
    if file_state(segment).size < 0 or not bad_path(log_dir).exists():
        return True  # a file that is missing is what was met; what could not be kept, memory knows
    return read_bad(log_dir) is not None
