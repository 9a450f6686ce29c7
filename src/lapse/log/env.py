"""What a log needs from outside: file system, clock, and a bound on files held open for reading."""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lapse.base.clock import Clock
from lapse.base.fs import Fs

_OPEN_FILES_MAX = 256  # of three files each, at most


class OpenFiles:
    """Keeps the most recently opened things open; what falls out closes when its last user ends.

    One for all logs of a process, so that ten thousand idle logs hold no descriptor each.
    """

    def __init__(self, limit: int = _OPEN_FILES_MAX) -> None:
        self._kept: deque[object] = deque(maxlen=limit)

    def keep(self, opened: object) -> None:
        """Hold on to it until `limit` newer ones came."""
        self._kept.append(opened)

    def let_go(self, opened: object) -> None:
        """Hold on to it no longer: it closes when its last user ends."""
        with contextlib.suppress(ValueError):  # it fell out, or another thread was here first
            while True:
                self._kept.remove(opened)


def _free_bytes(path: Path) -> int:
    return shutil.disk_usage(path).free


@dataclass(frozen=True, slots=True)
class LogEnv:
    """Passed to everything in this package that reads a clock or changes a file.

    Attributes:
        clock_jump_max_ms: lapse.clock.jump.max.ms: what is further ahead of the clock was noted by
            one that was wrong.
        free_bytes: of the disk that a path is on.
        unique_name: for directories on their way out; Kafka uses a UUID in hex.
    """

    fs: Fs
    clock: Clock
    files: OpenFiles = field(default_factory=OpenFiles)
    unique_name: Callable[[], str] = lambda: uuid.uuid4().hex
    clock_jump_max_ms: int = 3_600_000
    free_bytes: Callable[[Path], int] = _free_bytes
