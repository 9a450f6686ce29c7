"""Runs audit units in threads of this process: the kernels release Python's global lock."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lapse.base.clock import Clock
from lapse.lifecycle.erase.findings import AuditUnit, Findings
from lapse.lifecycle.erase.look_into import look_into
from lapse.lifecycle.erase.places import FileState
from lapse.lifecycle.erase.search import Search
from lapse.lifecycle.erase.table import table_of
from lapse.lifecycle.round.progress import OnProgress, Progress


class InlineRuns:
    """Searches in this process; nothing is kept between two searches."""

    def __init__(self, clock: Clock, on_progress: OnProgress) -> None:
        self._clock, self._on_progress = clock, on_progress

    def __call__(self, search: Search) -> InlineAudits:
        """The run that looks files through for one search."""
        return InlineAudits(search, self._clock, self._on_progress)

    def rest(self) -> None:
        """Nothing will be looked through for a while."""


class InlineAudits:
    """Runs units here; `on_progress` is called from several threads, one at a time."""

    def __init__(
        self, search: Search, clock: Clock, on_progress: OnProgress, threads: int | None = None
    ) -> None:
        self._search, self._clock, self._on_progress = search, clock, on_progress
        self._threads = threads or os.cpu_count() or 1
        self._lock = threading.Lock()
        self._done = self._total = 0

    def __call__(self, units: Sequence[AuditUnit]) -> Iterator[Findings]:
        if not units:
            return
        self._total += sum(map(unit_bytes, units))
        table = table_of(self._search)

        def one(unit: AuditUnit) -> Findings:
            return look_into(unit, self._search, table, self._clock, self.count)

        with ThreadPoolExecutor(min(self._threads, len(units))) as pool:
            yield from pool.map(one, units)

    def count(self, more: int) -> None:
        """Note that `more` further bytes were looked through."""
        with self._lock:
            self._done += more
            self._on_progress(Progress(self._done, max(self._total, self._done)))


def state_of(unit: AuditUnit) -> FileState | None:
    """A unit's file as it is seen from here; None if it is not."""
    if unit.listed is not None:
        return unit.listed
    try:
        return FileState.of((Path(unit.replica) / unit.path).stat())
    except OSError:
        return None


def unit_bytes(unit: AuditUnit) -> int:
    """How many bytes there are to read; 0 if that cannot be found out."""
    end, state = unit.end, state_of(unit) if unit.end is None else None
    if end is None:
        end = 0 if state is None else state.size
    return max(end - unit.start, 0)
