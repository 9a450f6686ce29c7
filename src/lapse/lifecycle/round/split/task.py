"""One attempt at one request of a split plan: what every stage shares.

As `round.engine.run_plan` for a small plan: an attempt writes only to its own folder, so it may run
twice, be killed anywhere, or race with another attempt; a failure is returned as its answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from lapse.base.clock import Clock
from lapse.base.errors import CorruptData, LapseError
from lapse.base.fs import Fs
from lapse.lifecycle.round.cancel import require_not_cancelled
from lapse.lifecycle.round.engine import IoBudget, in_words
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.progress import PROGRESS_FILE, ProgressFile
from lapse.lifecycle.round.source import BadSegment, SourceSegment, Workplace
from lapse.lifecycle.round.split.parts import checksum, read_at
from lapse.lifecycle.round.split.requests import Answer, Blob, bits_file, folder_of

T = TypeVar("T")


@dataclass(slots=True)
class Attempt:
    """The place and the costs of one attempt.

    Attributes:
        bytes_read: bytes read of log files.
    """

    attempt_id: str
    fs: Fs
    folder: Path
    progress: ProgressFile
    budget: IoBudget
    bytes_read: int = 0

    @property
    def workplace(self) -> Workplace:
        return Workplace(self.fs, self.folder)

    def tick(self, n_bytes: int) -> None:
        """Count `n_bytes` more of the log as done."""
        self.bytes_read += n_bytes
        self.progress.tick(n_bytes)
        self.budget.spend(n_bytes)

    def spend(self, n_bytes: int) -> None:
        """Count `n_bytes` more as written, or read from other files."""
        self.budget.spend(n_bytes)


def attempt(
    plan: RoundPlan, attempt_id: str, fs: Fs, clock: Clock, work: Callable[[Attempt], T]
) -> Answer[T]:
    """Carry out one attempt."""
    start = clock.monotonic()

    def failed(error: Exception, bad: BadSegment | None = None) -> Answer[T]:
        spot = None if bad is None else bad.spot
        seconds, why = clock.monotonic() - start, in_words(plan, error)
        return Answer(attempt_id, os.getpid(), seconds, 0, None, why, spot)

    folder = folder_of(plan, attempt_id)
    try:
        require_not_cancelled(folder)
        fs.make_dir(folder)
        progress = ProgressFile(fs, folder / PROGRESS_FILE, clock)
        this = Attempt(attempt_id, fs, folder, progress, IoBudget(plan.io_bytes_per_second, clock))
        done = work(this)
        if this.bytes_read:
            this.fs.write_file(folder / PROGRESS_FILE, b"%d" % this.bytes_read)
    except BadSegment as e:
        return failed(e, e)
    except (LapseError, OSError) as e:
        return failed(e)
    return Answer(attempt_id, os.getpid(), clock.monotonic() - start, this.bytes_read, done)


def write_bits(this: Attempt, index: int, segment: SourceSegment) -> Blob:
    """Write the map stage's findings on a segment: superseded, keyless, batches with tombstones."""
    arrays = (segment.superseded, segment.keyless, np.packbits(segment.tombstones > 0))
    data = np.concatenate(arrays)
    this.fs.write_file(this.folder / bits_file(index), data.data)
    this.spend(len(data))
    return Blob(this.attempt_id, len(data), checksum(data))


def read_bits(plan: RoundPlan, index: int, blob: Blob, segment: SourceSegment) -> None:
    """Restore them in the segment, opened anew. Raises CorruptData, StorageError."""
    path = folder_of(plan, blob.attempt_id) / bits_file(index)
    data = read_at(path, 0, blob.size)
    n_bits, n_batches = len(segment.superseded), len(segment.rows)
    if checksum(data) != blob.crc or blob.size != 2 * n_bits + (n_batches + 7) // 8:
        raise CorruptData(str(path), 0, "it is not what its receipt says")
    segment.superseded[:] = data[:n_bits]
    segment.keyless[:] = data[n_bits : 2 * n_bits]
    segment.tombstones[:] = np.unpackbits(data[2 * n_bits :], count=n_batches)
