"""What a lifecycle service does, as its files say: for `lapse rounds` and the HTTP port."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from lapse.base.errors import CorruptData
from lapse.lifecycle.status.pauses import Pause, read_pauses
from lapse.lifecycle.status.reports import (
    PROGRESS,
    QUEUE,
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
        running: whether a service is there, as far as its last words tell.
        service: those; None if there never was one.
        queue: who has a round, waits for one, or is left alone for a while.
    """

    now_ms: int
    running: bool
    service: ServiceProgress | None
    queue: Queue
    pauses: tuple[Pause, ...]


def read_status(data_dir: Path, now_ms: int) -> Status:
    """Raises CorruptData where a file is none of the service's."""
    try:
        told, queue = read_progress(data_dir), read_queue(data_dir) or Queue()
    except msgspec.MsgspecError as e:
        where = f"{data_dir}: {PROGRESS} or {QUEUE}"
        raise CorruptData(where, 0, f"not a service's ({e})") from e
    pauses = tuple(read_pauses(data_dir, now_ms))
    return Status(now_ms, told is not None and is_running(told, now_ms), told, queue, pauses)
