"""What clients did and were told in one run: their history, and the errors beside it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from threading import Lock

from lapse.base.clock import SystemClock
from lapse.base.fs import RealFs
from lapse.testing.history.events import Event
from lapse.testing.history.recorder import HistoryFile, Recorder


class Record(Recorder):
    """A history by this process' clock, which no fault reaches; in memory and in a file.

    Attributes:
        events: all so far.
        errors: what clients were told, by the error's name.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(self._keep, SystemClock())
        self.events: list[Event] = []
        self.errors: Counter[str] = Counter()
        self._file = HistoryFile(RealFs(), path)
        self._errors_lock = Lock()

    def error(self, name: str) -> None:
        """A client was told so."""
        with self._errors_lock:
            self.errors[name] += 1

    def close(self) -> None:
        self._file.close()

    def _keep(self, event: Event) -> None:
        self.events.append(event)
        self._file(event)
