"""Requests to a lifecycle service: to pause rounds, or to call off a round under way.

They are files, so that they need no connection, outlast restarts, and are open to all who may write
to the first data directory: `lapse rounds` on the machine, and the broker's HTTP port for users
with that right.

A pause covers all logs or some, and is checked before each run. Only rounds wait: the broker does
rolls and retention. What a round would have removed is late then, as `lapse explain`, the
metrics and the service's progress say. A round is called off by a marker that its attempts look for
(`round.cancel`), so that every engine can; its log is left alone for some minutes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from lapse.base.clock import time_text
from lapse.base.errors import CorruptData, StorageError
from lapse.base.fs import Fs, storage_errors
from lapse.lifecycle.round.cancel import cancel_round
from lapse.lifecycle.status.reports import (
    UnderWay,
    is_running,
    read_file,
    read_progress,
    read_queue,
)

PAUSES = "lapse-pauses.json"
_LOCK = "lapse-pauses.lock"
EVERY_LOG = "*"


@dataclass(frozen=True, slots=True)
class Pause:
    """Rounds of one log, or of every log, wait.

    Attributes:
        log: `topic-partition`, or `EVERY_LOG`.
        since_ms: when the pause was requested.
        until_ms: when it ends by itself; None: by `resume` only.
        reason: the operator's reason, "" if none was given.
    """

    log: str
    since_ms: int
    until_ms: int | None = None
    reason: str = ""

    def holds(self, now_ms: int) -> bool:
        """Whether the pause is not over.

        One from the future holds on, though its clock may have been set right since: who paused
        rounds wants nothing removed, and an alert calls about a pause that lasts.
        """
        return self.until_ms is None or now_ms < self.until_ms


class Pauses:
    """All pauses that hold at one moment."""

    def __init__(self, pauses: Iterable[Pause], now_ms: int) -> None:
        self._by_log = {p.log: p for p in pauses if p.holds(now_ms)}

    def __len__(self) -> int:
        return len(self._by_log)

    def __iter__(self) -> Iterator[Pause]:
        return iter(self._by_log.values())

    @property
    def all(self) -> Pause | None:
        """The pause of every log, if there is one."""
        return self._by_log.get(EVERY_LOG)

    def of(self, log: str) -> Pause | None:
        """Why rounds of a log wait, None if they do not."""
        return self._by_log.get(log) or self.all


def pause_text(pause: Pause) -> str:
    """Why rounds wait, in words."""
    until = "" if pause.until_ms is None else f", until {time_text(pause.until_ms)}"
    why = f": {pause.reason}" if pause.reason else ""
    return f"paused since {time_text(pause.since_ms)}{until}{why}"


def read_pauses(data_dir: Path, now_ms: int) -> Pauses:
    """Read the pauses; raises StorageError, and CorruptData for a file that Lapse did not write."""
    kept = read_file(data_dir / PAUSES, tuple[Pause, ...], "a list of pauses")
    return Pauses(kept or (), now_ms)


def pauses_or_all(data_dir: Path, now_ms: int) -> Pauses:
    """Read the pauses; if the file cannot be read, every log is paused."""
    try:
        return read_pauses(data_dir, now_ms)
    except (CorruptData, StorageError) as e:
        return Pauses([Pause(EVERY_LOG, now_ms, None, str(e))], now_ms)


def pause(fs: Fs, data_dir: Path, logs: Sequence[str], request: Pause) -> None:
    """Pause the rounds of these logs, of every log if none is named; `request.log` is not used.

    An earlier pause of the same log is replaced. Raises StorageError, CorruptData.
    """
    with locked(fs, data_dir):
        before = {p.log: p for p in read_pauses(data_dir, request.since_ms)}
        now = {log: replace(request, log=log) for log in logs or (EVERY_LOG,)}
        _write(fs, data_dir, {**before, **now}.values())


def resume(fs: Fs, data_dir: Path, logs: Sequence[str], now_ms: int) -> tuple[Pause, ...]:
    """End the pauses of these logs, all pauses if none is named; returns those that ended.

    Raises StorageError, CorruptData.
    """
    with locked(fs, data_dir):
        before = list(read_pauses(data_dir, now_ms))
        ended = tuple(p for p in before if not logs or p.log in logs)
        _write(fs, data_dir, [p for p in before if p not in ended])
    return ended


def end_pauses(fs: Fs, data_dir: Path, logs: Collection[str], until_ms: int) -> None:
    """End pauses of these logs, which are gone, that were made by then.

    Raises StorageError, CorruptData.
    """
    if not os.path.exists(data_dir / PAUSES):
        return  # as nearly always: no lock is made for that
    with locked(fs, data_dir):
        before = list(read_pauses(data_dir, until_ms))
        left = [p for p in before if p.log not in logs or p.since_ms > until_ms]
        if len(left) < len(before):
            _write(fs, data_dir, left)


@contextlib.contextmanager
def locked(fs: Fs, data_dir: Path) -> Iterator[None]:
    """Lock pauses, and wishes, against changes by others. Raises StorageError."""
    path = data_dir / _LOCK
    with contextlib.closing(fs.open_append(path)) as lock:
        with storage_errors(path, "locking"):
            fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
        yield


def _write(fs: Fs, data_dir: Path, pauses: Iterable[Pause]) -> None:
    fs.replace_file(data_dir / PAUSES, msgspec.json.encode(tuple(pauses)))


def call_off(fs: Fs, data_dir: Path, logs: Sequence[str], now_ms: int) -> tuple[UnderWay, ...]:
    """Cancel the rounds under way of these logs, all if none is named; returns those rounds.

    The service must be running: rounds in the queue of a killed service are not under way. A round
    that is being committed at this moment may still succeed. Raises StorageError, CorruptData.
    """
    progress, queue = read_progress(data_dir), read_queue(data_dir)
    if progress is None or queue is None or not is_running(progress, now_ms):
        return ()
    present = (r for r in queue.rounds if os.path.isdir(r.dir))  # else the round's topic is gone
    chosen = tuple(r for r in present if not logs or r.log in logs)
    for r in chosen:
        cancel_round(fs, Path(r.dir), r.round_id)
    return chosen
