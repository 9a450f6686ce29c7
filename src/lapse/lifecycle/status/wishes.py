"""Requests to a lifecycle service that a log be cleaned soon, whatever its dirty ratio.

Files, as pauses are, and for the same reasons. The service grants a wish like a deadline: its round
goes before those that only tidy up. No promise is skipped for it: what `min.compaction.lag.ms`
keeps stays, and the active segment waits until it is rolled. A wish ends with the log's next round,
where nothing of the log can be cleaned, and after an hour: nobody waits for it any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lapse.base.errors import CorruptData, StorageError
from lapse.base.fs import Fs
from lapse.lifecycle.status.pauses import locked
from lapse.lifecycle.status.reports import read_file

WISHES = "lapse-wishes.json"
WISH_MS_MAX = 3_600_000


@dataclass(frozen=True, slots=True)
class Wish:
    """That a log, `topic-partition`, be cleaned; since when."""

    log: str
    since_ms: int

    def holds(self, now_ms: int) -> bool:
        """Whether anybody may still wait for it; one from the future is of a clock set right."""
        return abs(now_ms - self.since_ms) < WISH_MS_MAX


def read_wishes(data_dir: Path, now_ms: int) -> dict[str, Wish]:
    """Those that hold, by log; none where the file cannot be read: they are only wishes."""
    try:
        kept = read_file(data_dir / WISHES, tuple[Wish, ...], "a list of wishes")
    except (CorruptData, StorageError):
        return {}
    return {one.log: one for one in kept or () if one.holds(now_ms)}


def wish(fs: Fs, data_dir: Path, logs: Sequence[str], now_ms: int) -> tuple[Wish, ...]:
    """Wish for these logs; returns the wishes. Raises StorageError."""
    made = tuple(Wish(log, now_ms) for log in logs)
    with locked(fs, data_dir):
        kept = read_wishes(data_dir, now_ms)
        _write(fs, data_dir, {**kept, **{one.log: one for one in made}}.values())
    return made


def end_wishes(fs: Fs, data_dir: Path, until: Mapping[str, int], now_ms: int) -> None:
    """End wishes of these logs that were there by that time. Raises StorageError."""
    with locked(fs, data_dir):
        kept = read_wishes(data_dir, now_ms)
        left = [w for w in kept.values() if w.since_ms > until.get(w.log, -1)]
        if len(left) < len(kept):
            _write(fs, data_dir, left)


def _write(fs: Fs, data_dir: Path, wishes: Iterable[Wish]) -> None:
    fs.replace_file(data_dir / WISHES, msgspec.json.encode(tuple(wishes)))
