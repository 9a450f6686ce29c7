"""A history written down while clients make it: `lapse.testing.history`'s events."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

from lapse.testing.history.events import Event
from lapse.testing.history.lines import to_line


class Recorder:
    """Events in the order they were noted, from any thread, in memory and in a file.

    Attributes:
        events: all so far.
        errors: what clients were told, by the error's name.
    """

    def __init__(self, path: Path) -> None:
        self.events: list[Event] = []
        self.errors: Counter[str] = Counter()
        self._file = path.open("wb")
        self._lock = threading.Lock()

    def note(self, event: Event) -> None:
        """One more."""
        with self._lock:
            self.events.append(event)
            self._file.write(to_line(event))

    def error(self, name: str) -> None:
        """A client was told so."""
        with self._lock:
            self.errors[name] += 1

    def close(self) -> None:
        self._file.close()


def now_ms() -> int:
    """The wall clock of this process, which no fault reaches."""
    return time.time_ns() // 1_000_000
