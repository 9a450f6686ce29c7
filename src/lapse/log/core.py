"""What the parts of an open log share: its state, its locks, and whether it takes changes.

Three locks, taken in this order where more than one is needed:

- the deleter's own, for the file that keeps the log start (KIP-107, L11);
- `files_lock` for code that renames, removes or syncs files: names are stable under it, and so are
  the sealed segments, but for new ones at their end;
- `append_lock` for appends, rolls, and every change of `state`. Nothing is synced under it, and
  only the active segment's side files are written (by a roll, by the beginning of a flush): the
  swap of a round, retention and facts just copy and set references under it, so that an append
  never waits for them.

Readers take none: they take `state`.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from pathlib import Path

from lapse.base.config import TopicConfig
from lapse.base.errors import ErrorCode, KafkaError, LapseError, os_error
from lapse.base.ids import TopicPartition
from lapse.log.env import LogEnv
from lapse.log.manifest import ManifestKeeper
from lapse.log.segment import Segment
from lapse.log.state import LogState

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a log takes no writes just now, for operators: an append failed, or none will be tried.

    Attributes:
        since_ms: when the first of them failed, by the wall clock.
        size: bytes of the latest one.
        errno: the system's, where it gave one.
        is_final: the log takes no changes until it is opened again; else the next append may do.
        reopens: `PartitionLog.open_again` may do that, once there is room.
    """

    since_ms: int
    why: str
    size: int = 0
    errno: int | None = None
    is_final: bool = False
    reopens: bool = False


def refused(before: Refusal | None, now_ms: int, size: int, error: BaseException) -> Refusal:
    """After another append failed."""
    since_ms = now_ms if before is None else before.since_ms
    of_system = os_error(error)
    return Refusal(since_ms, str(error), size, None if of_system is None else of_system.errno)


@dataclass(slots=True, eq=False)
class LogCore:
    """The shared part of one open log; `PartitionLog` makes it, its parts change it.

    Attributes:
        dir: its directory.
        config: the topic's settings in force.
        state: what readers see; replaced under `append_lock`, never changed.
        keeper: of its manifest; used under `files_lock`.
        recovery_point: everything below it is synced, or below the log start.
        unflushed: sealed segments of which something may not be synced.
        generation: changes when files change that a plan was made for.
        is_proven: it was closed in order, or its last batch is known to be the leader's.
        is_syncing: a write to the active segment would have to wait for its sync.
        offline_reason: why it takes no more changes; None while it does.
        refusal: why it takes no writes just now; None while it does.
    """

    dir: Path
    partition: TopicPartition
    env: LogEnv
    config: TopicConfig
    state: LogState
    keeper: ManifestKeeper
    recovery_point: int
    unflushed: list[Segment]
    generation: int
    is_proven: bool = True
    is_syncing: bool = False
    is_closed: bool = False
    offline_reason: str | None = None
    refusal: Refusal | None = None
    files_lock: threading.RLock = field(default_factory=threading.RLock)
    append_lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def takes_changes(self) -> bool:
        """Whether it is open and not offline."""
        return not self.is_closed and self.offline_reason is None

    def require_online(self) -> None:
        """Raise KafkaError KAFKA_STORAGE_ERROR where it takes no changes."""
        if self.is_closed:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.partition}: the log is closed")
        if self.offline_reason is not None:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.partition}: offline since {self.offline_reason}",
            )

    def go_offline(self, cause: LapseError, *, reopens: bool = False) -> None:
        """No change from here on; what can be read is still read. Opening again recovers."""
        if self.offline_reason is None:
            self.offline_reason = str(cause)
            of_system = os_error(cause)
            self.refusal = Refusal(
                self.env.clock.now_ms(), self.offline_reason, is_final=True, reopens=reopens,
                errno=None if of_system is None else of_system.errno,
            )  # fmt: skip
            until = "there is room" if reopens else "opened again"
            _log.error("%s takes no more changes until %s: %s", self.partition, until, cause)

    def forget_refusal(self) -> None:
        """Clear the refusal once the disk has room again: the next append shows whether it has."""
        with self.append_lock:
            if self.offline_reason is None:
                self.refusal = None

    def come_back(self) -> None:
        """Changes again: its files were taken up as they are."""
        self.offline_reason = self.refusal = None
        _log.info("%s takes changes again", self.partition)

    def replace_segments(self, old: list[Segment], new: list[Segment]) -> None:
        """Put synced segments in the place of others; for the holder of `append_lock`."""
        gone = set(old)
        kept = [s for s in self.state.segments if s not in gone]
        ordered = sorted([*kept, *new], key=lambda s: s.base_offset)
        self.state = self.state.with_segments(tuple(ordered))
        self.unflushed = [s for s in self.unflushed if s not in gone]

    def renew(self, old: Segment, new: Segment) -> None:
        """Replace a segment by the same one of which more is known."""
        with self.append_lock:
            segments = tuple(new if s is old else s for s in self.state.segments)
            self.state = self.state.with_segments(segments)
            self.unflushed = [new if s is old else s for s in self.unflushed]
