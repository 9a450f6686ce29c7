"""How far a run or an attempt is, in bytes: what an engine reports, and an attempt writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lapse.base.clock import Clock
from lapse.base.fs import Fs
from lapse.lifecycle.round.cancel import require_not_cancelled
from lapse.lifecycle.round.plan import RoundPlan

PROGRESS_FILE = "progress"
PROGRESS_BYTES = 64 << 20
PROGRESS_SECONDS = 0.5
GUESS_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class LogProgress:
    """The progress of one round."""

    log: str
    round_id: str
    bytes_done: int
    bytes_total: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes done and to do, over all plans of a run.

    Attributes:
        under_way: rounds that have begun and are not done, as far as the engine knows them.
    """

    bytes_done: int
    bytes_total: int
    under_way: tuple[LogProgress, ...] = ()

    def left_ms(self, elapsed_s: float) -> int | None:
        """Time left at the present speed; None while it cannot be estimated."""
        if self.bytes_done <= 0 or elapsed_s < GUESS_SECONDS:
            return None
        left = max(self.bytes_total - self.bytes_done, 0)
        return round(elapsed_s * 1000 * left / self.bytes_done)


NO_PROGRESS = Progress(0, 0)
OnProgress = Callable[[Progress], None]


class ProgressFile:
    """The file in which an attempt counts bytes done, for the engine; rewritten now and then."""

    def __init__(self, fs: Fs, path: Path, clock: Clock) -> None:
        self._fs, self._path, self._clock = fs, path, clock
        self._done = self._written = 0
        self._written_at = clock.monotonic()

    def tick(self, n_bytes: int) -> None:
        """Count `n_bytes` more as done. Raises Cancelled if the round was cancelled."""
        self._done += n_bytes
        now = self._clock.monotonic()
        if (
            self._done - self._written >= PROGRESS_BYTES
            or now - self._written_at >= PROGRESS_SECONDS
        ):
            require_not_cancelled(self._path.parent)
            self._fs.write_file(self._path, b"%d" % self._done)
            self._written, self._written_at = self._done, now


def read_progress(folder: Path) -> int:
    """Bytes an attempt reports as done; 0 while it has reported nothing that can be read."""
    try:
        return int((folder / PROGRESS_FILE).read_bytes() or b"0")
    except (OSError, ValueError):
        return 0


def work_bytes(plan: RoundPlan) -> int:
    """Bytes that `Progress` counts for a plan: each segment twice, for map or probe and rewrite."""
    return 2 * plan.bytes_to_read
