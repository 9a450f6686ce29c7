"""What a lifecycle service does, according to its files: for `lapse rounds` and the HTTP port."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lapse.lifecycle.status.pauses import Pause, pauses_or_all
from lapse.lifecycle.status.reports import (
    Queue,
    ServiceProgress,
    is_running,
    read_progress,
    read_queue,
)


@dataclass(frozen=True, slots=True)
class Status:
    """One look.

    Attributes:
        running: whether a service is running, according to its last progress.
        service: that progress; None if there never was a service.
        queue: which logs have a round, wait for one, or are left alone for a while; none where no
            service is running.
    """

    now_ms: int
    running: bool
    service: ServiceProgress | None
    queue: Queue
    pauses: tuple[Pause, ...]


def read_status(data_dir: Path, now_ms: int) -> Status:
    """Read the files; raises CorruptData if one was not written by a service.

    Pauses that cannot be read pause every log, as they do for the service.
    """
    progress, queue = read_progress(data_dir), read_queue(data_dir)
    pauses = tuple(pauses_or_all(data_dir, now_ms))
    running = progress is not None and is_running(progress, now_ms)
    if queue is None or not running:  # one that was killed leaves its queue behind
        queue = Queue()
    return Status(now_ms, running, progress, queue, pauses)
